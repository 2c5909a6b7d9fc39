/** The addresses of this machine's interfaces, which no capsule reaches. */
import { networkInterfaces } from "node:os";
import { type AddressRange, rangeOf } from "../network/destinations.ts";

const readAgainMs = 1_000;

export class OwnAddresses {
  #ranges: AddressRange[] = [];
  #readMs = Number.NEGATIVE_INFINITY;

  /** Read anew at most once a second. */
  ranges(): readonly AddressRange[] {
    const nowMs = performance.now();
    if (nowMs - this.#readMs < readAgainMs) return this.#ranges;
    this.#readMs = nowMs;
    const addresses = Object.values(networkInterfaces()).flatMap((each) => each ?? []);
    this.#ranges = addresses.map(({ address }) => rangeOf(address)).filter((range) => range !== undefined);
    return this.#ranges;
  }
}
