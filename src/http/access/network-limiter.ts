/** Rates of clients without a valid key: of each address or /64 network, and of the larger networks of one IPv6 site. */
import { largerNetworks, ratedNetworks } from "./network.ts";
import { RateLimiter } from "./rate-limiter.ts";

export class NetworkLimiter {
  /** By how many times the rate of one address holds. */
  readonly #rates: Map<number, RateLimiter>;

  constructor(ratePerSec: number, burst: number, now?: () => number) {
    const { small, large } = largerNetworks;
    this.#rates = new Map(
      [1, small, large].map((times) => [times, new RateLimiter(times * ratePerSec, times * burst, now)]),
    );
  }

  /**
   * Takes a token of the address and of each network around it and returns 0, or returns the seconds until there is one of each. A
   * request that is refused for its own network takes none of the larger ones, which others share.
   */
  take(address: string): number {
    for (const { name, times } of ratedNetworks(address)) {
      const waitSec = this.#rates.get(times)?.take(name) ?? 0;
      if (waitSec > 0) return waitSec;
    }
    return 0;
  }

  /** Undoes a `take` that returned 0. */
  giveBack(address: string): void {
    for (const { name, times } of ratedNetworks(address)) this.#rates.get(times)?.charge(name, -1);
  }
}
