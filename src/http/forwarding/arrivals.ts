/**
 * Requests that wait for a capsule which comes to a host. The wait has a limit of time and one of requests, and ends with the client's
 * connection; the acquire goes on. A request that shows the capsule is answered from its row without a wait.
 */
import { resumeWaitersMax, resumeWaitMs } from "../../wire/capsule.ts";
import { CapsuleError } from "../../wire/errors.ts";
import type { Exchange, Places } from "../forwarding.ts";

const defaultRowMs = 2_000;
const retryAfterSec = 1;

export interface ArrivalTimes {
  /** How long a request waits that destroys the capsule, or shows one whose row cannot be read now; default 2 s. */
  rowMs?: number;
  /** How long any other request waits; default: as for a resume. */
  arrivalMs?: number;
}

export class Arrivals {
  readonly #places: Pick<Places, "coming" | "comingRow" | "isHere">;
  readonly #times: ArrivalTimes;
  /** Requests that wait, by team and key: clients without a key take no place of the team's. */
  readonly #waiting = new Map<string, number>();

  constructor(places: Pick<Places, "coming" | "comingRow" | "isHere">, times: ArrivalTimes = {}) {
    this.#places = places;
    this.#times = times;
  }

  /** Requests that wait. */
  get waiting(): number {
    return [...this.#waiting.values()].reduce((sum, count) => sum + count, 0);
  }

  /** Resolves when the capsule is here, or does not come; "row": its row answers the request already. Rejects with "unavailable". */
  async of(team: string | undefined, key: string, exchange: Exchange): Promise<"row" | undefined> {
    const coming = this.#places.coming?.(team, key);
    if (coming === undefined) return undefined;
    if (team !== undefined && exchange.isShow === true && (await this.#isShown(team, key, exchange))) return "row";
    const entry = `${team ?? ""}/${key}`;
    const count = this.#waiting.get(entry) ?? 0;
    if (count >= resumeWaitersMax) throw onItsWay(key);
    this.#waiting.set(entry, count + 1);
    try {
      await arrived(key, coming, exchange, this.#times);
    } finally {
      const left = (this.#waiting.get(entry) ?? 1) - 1;
      if (left > 0) this.#waiting.set(entry, left);
      else this.#waiting.delete(entry);
    }
    return undefined;
  }

  /** A capsule that has come while its row was read is shown by its host. */
  async #isShown(team: string, key: string, { needOf }: Exchange): Promise<boolean> {
    const capsule = await this.#places.comingRow?.(team, key).catch(() => undefined);
    return capsule !== undefined && !this.#places.isHere(team, key) && (await needOf?.(capsule)) === "row";
  }
}

/** Settles as `coming`. Rejects with "unavailable" at the limit of time, and when the client has gone. */
export async function arrived<T>(
  key: string,
  coming: Promise<T>,
  { response, upgrade, isOfRow }: Pick<Exchange, "response" | "upgrade" | "isOfRow">,
  { rowMs = defaultRowMs, arrivalMs = resumeWaitMs }: ArrivalTimes,
): Promise<T> {
  const client = upgrade?.socket ?? response;
  const { promise, reject } = Promise.withResolvers<never>();
  const end = () => reject(onItsWay(key));
  const timer = setTimeout(end, isOfRow === true ? rowMs : arrivalMs);
  client.once("close", end);
  if (client.destroyed) end();
  try {
    return await Promise.race([coming, promise]);
  } finally {
    clearTimeout(timer);
    client.off("close", end);
  }
}

function onItsWay(key: string): CapsuleError {
  return new CapsuleError("unavailable", `capsule ${key} is being brought back`, { retryAfterSec });
}
