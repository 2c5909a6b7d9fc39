/**
 * Requests on capsules that no host holds: one host after the other is asked to acquire the capsule, this one among them, and the request
 * goes to the one that has. Requests for one capsule wait for the same acquire.
 */
import { resumeWaitersMax } from "../../wire/capsule.ts";
import { CapsuleError } from "../../wire/errors.ts";
import type { Exchange } from "../forwarding.ts";
import type { Need, ReleasedCapsule, ReleasedCapsules } from "../released.ts";
import { type AcquireTimes, type Asking, askToAcquire } from "./acquire-questions.ts";
import { type ArrivalTimes, arrived } from "./arrivals.ts";

/** Hosts that are asked for one capsule. */
const askedMax = 32;
/** Capsules that are waited for at once, and those of one team. */
const [placedMax, teamPlacedMax] = [256, 64];

/** Null: this host. `elsewhere`: the database knows where. */
export type Taken = { host: string | null } | "elsewhere";

interface Placing {
  teamId: string;
  /** Requests that wait. */
  count: number;
  taken: Promise<Taken>;
}

export class ReleasedRequests {
  readonly #released: Pick<ReleasedCapsules, "acquire" | "hostsFor">;
  readonly #asking: Asking;
  readonly #times: AcquireTimes & ArrivalTimes;
  readonly #placings = new Map<string, Placing>();

  constructor(
    released: Pick<ReleasedCapsules, "acquire" | "hostsFor">,
    asking: Asking,
    times: AcquireTimes & ArrivalTimes = {},
  ) {
    this.#released = released;
    this.#asking = asking;
    this.#times = times;
  }

  /** Resolves with the host that holds the capsule by now. Rejects with its refusal; then nothing was begun, or it goes on. */
  async take(capsule: ReleasedCapsule, need: Need, exchange: Exchange): Promise<Taken> {
    const placing = this.#placing(capsule, need);
    if (placing.count >= resumeWaitersMax)
      throw tooMany(`${placing.count} requests wait for capsule ${capsule.id}, as many as may`, resumeWaitersMax);
    placing.count++;
    try {
      return await arrived(capsule.id, placing.taken, exchange, this.#times);
    } catch (error) {
      throw need === "wake" ? ofResume(error) : error;
    } finally {
      placing.count--;
    }
  }

  /** As `take`, for no request. */
  async place(capsule: ReleasedCapsule, need: Need): Promise<Taken> {
    return await this.#placing(capsule, need).taken;
  }

  #placing(capsule: ReleasedCapsule, need: Need): Placing {
    const key = `${need} ${capsule.id}`;
    return this.#placings.get(key) ?? this.#begin(key, capsule, need);
  }

  #begin(key: string, capsule: ReleasedCapsule, need: Need): Placing {
    const { teamId } = capsule;
    const ofTeam = [...this.#placings.values()].filter((each) => each.teamId === teamId).length;
    if (ofTeam >= teamPlacedMax || this.#placings.size >= placedMax)
      throw tooMany(`${ofTeam} capsules of the team are being brought back, as many as may now`, teamPlacedMax);
    const taken = this.#ask(capsule, need).finally(() => this.#placings.delete(key));
    const placing = { teamId, count: 0, taken };
    this.#placings.set(key, placing);
    taken.catch(() => {}); // every request may have gone
    return placing;
  }

  /**
   * A host that cannot run it, has no room, or has files that do not verify, leaves it to the next one; a refusal of the cluster's is that
   * of all.
   */
  async #ask(capsule: ReleasedCapsule, need: Need): Promise<Taken> {
    let refused: unknown;
    for (const host of this.#released.hostsFor(capsule).slice(0, askedMax)) {
      try {
        const taken = await this.#askOne(host, capsule, need);
        if (taken !== undefined) return taken;
        refused = passing(refused, unreached(capsule.id, host));
      } catch (error) {
        if (!isOfHost(error)) throw error;
        refused = passing(refused, error);
      }
    }
    throw refused ?? unreached(capsule.id, null);
  }

  /** undefined: that host does not answer. */
  async #askOne(host: string | null, capsule: ReleasedCapsule, need: Need): Promise<Taken | undefined> {
    const { id, teamId: team } = capsule;
    if (host === null) return (await this.#released.acquire({ id, need })) ? { host } : "elsewhere";
    const acquired = await askToAcquire(this.#asking, host, { id, team, need }, this.#times);
    if (acquired === "unreached") return undefined;
    return acquired === "held" ? { host } : "elsewhere";
  }
}

/** `agent_error`: files do not verify, among which a host may have a folder of other bytes than the capsule stands on. */
const ofHost = new Set(["conflict", "no_space", "no_capacity", "unavailable", "agent_error"]);

function isOfHost(error: unknown): boolean {
  return error instanceof CapsuleError && ofHost.has(error.code);
}

/** The refusal that the client gets: one that passes, where there is one, since its request may then be repeated. */
function passing(former: unknown, next: unknown): unknown {
  return former instanceof CapsuleError && former.code !== "conflict" ? former : next;
}

/** As a holder tells the refusal of a resume apart from one of the request itself. */
function ofResume(error: unknown): unknown {
  if (!(error instanceof CapsuleError)) return error;
  const { code, message, details, retryAfterSec } = error;
  const retry = retryAfterSec === undefined ? {} : { retryAfterSec };
  return new CapsuleError(code, message, { cause: error, details: { ...details, action: "resume" }, ...retry });
}

function unreached(id: string, host: string | null): CapsuleError {
  const message = `capsule ${id} is held by no host, and none that could hold it can be reached now`;
  return new CapsuleError("unavailable", message, host === null ? {} : { details: { host } });
}

function tooMany(message: string, limit: number): CapsuleError {
  return new CapsuleError("quota_exceeded", message, { details: { quota: "resume_waiters", used: limit, limit } });
}
