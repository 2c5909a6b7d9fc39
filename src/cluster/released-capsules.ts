/** Requests on capsules that no host holds: what their rows answer, where they are placed, and how they are acquired and destroyed. */
import { allow, allowOnTheWay } from "../capsules/lifecycle.ts";
import { portAccessOf } from "../capsules/networks.ts";
import type { Capsule, CapsuleStore } from "../capsules/store.ts";
import { viewOf } from "../capsules/view.ts";
import type { Need, ReleasedCapsule, ReleasedCapsules } from "../http/released.ts";
import { CapsuleError } from "../wire/errors.ts";
import { type Action, cannot, requires } from "../wire/requirements.ts";
import type { Acquiring } from "./acquiring.ts";
import type { DecidedByDatabase } from "./decided.ts";
import { Refusal } from "./failures.ts";
import type { Membership } from "./membership.ts";
import type { Postgres } from "./postgres.ts";
import { decodeReleased, type Released } from "./released.ts";
import type { RowWaits } from "./row-waits.ts";

export interface ReleasedPlacesOptions {
  sql: Postgres;
  membership: Pick<Membership, "me" | "hosts">;
  acquiring: Pick<Acquiring, "acquire">;
  decided: Pick<DecidedByDatabase, "decide">;
  store: Pick<CapsuleStore, "get" | "wasDestroyed" | "noteDestroyed">;
  waits: Pick<RowWaits, "until">;
}

/** The capsule of a row that names no host. Throws "agent_error" where it is not one that a release has written. */
export function releasedCapsule(row: unknown): ReleasedCapsule {
  return capsuleOf(decodeReleased(row));
}

function capsuleOf({ row, kept, epoch, lastHost, isMoving }: Released): ReleasedCapsule {
  return {
    ...{ id: row.id, teamId: row.teamId, epoch, lastHost, row, isMoving, urlSecret: kept.url_secret },
    view: { ...viewOf(row, undefined), host: null },
    portAccess: portAccessOf({ ...row, secret: kept.port_secret }),
  };
}

/** A capsule as its row shows it. `host`: its holder, or the host that brings it back. */
export function capsuleByRow(row: Capsule, { host, epoch }: { host: string | null; epoch: number }): ReleasedCapsule {
  return {
    ...{ id: row.id, teamId: row.teamId, epoch, lastHost: host, row, urlSecret: null },
    view: { ...viewOf(row, undefined), host },
    portAccess: portAccessOf({ ...row, secret: null }),
  };
}

/** A capsule that a host still holds which cannot be reached: nothing of it is acquired. */
export function leftCapsule(
  row: Capsule,
  { host, epoch, isLost }: { host: string; epoch: number; isLost: boolean },
): ReleasedCapsule {
  return { ...capsuleByRow(row, { host, epoch }), holder: { name: host, isLost } };
}

export class ReleasedByDatabase implements ReleasedCapsules {
  readonly #options: ReleasedPlacesOptions;

  constructor(options: ReleasedPlacesOptions) {
    this.#options = options;
  }

  needOf({ row, isMoving = false }: ReleasedCapsule, action: Action, mayResume: boolean): Need {
    const isWoken = requires[action] === "resumable" && row.autoResume !== 0 && mayResume && row.status === "paused";
    if (isWoken) {
      requireTemplate(row, { action: "resume" });
      return "wake";
    }
    (isMoving ? allowOnTheWay : allow)(action, row.id, row.status, row.intent);
    if (action !== "resume" && action !== "start") return "held";
    requireTemplate(row, {});
    return "resume";
  }

  /** The last one may have the files still; the emptiest of the others next to this one. */
  hostsFor({ lastHost }: ReleasedCapsule): (string | null)[] {
    const { membership } = this.#options;
    const own = membership.me.name;
    const up = membership.hosts().filter(({ isExpired, state }) => !isExpired && state === "up");
    const freeMb = new Map(up.map(({ name, load }) => [name, typeof load.free_mb === "number" ? load.free_mb : 0]));
    const byRoom = [...freeMb.keys()].sort((a, b) => freeMb.get(b)! - freeMb.get(a)!);
    const first = [lastHost, own].filter((name) => name !== null && freeMb.has(name)) as string[];
    return [...new Set([...first, ...byRoom])].map((name) => (name === own ? null : name));
  }

  acquire(of: { id: string; need: Need; onBegin?: () => void }): Promise<boolean> {
    return this.#options.acquiring.acquire(of);
  }

  wait(...of: Parameters<RowWaits["until"]>): ReturnType<RowWaits["until"]> {
    return this.#options.waits.until(...of);
  }

  hasLeft(id: string): boolean {
    const { store } = this.#options;
    return store.get(id) === undefined && !store.wasDestroyed(id);
  }

  /** A tombstone here tells it to a database that was put back. */
  async destroy({ id, epoch, holder }: ReleasedCapsule): Promise<void> {
    const { sql, store, decided } = this.#options;
    const what = `destroy capsule ${id}`;
    try {
      await decided.decide(what, () => sql.call("delete_capsule", [id, epoch, holder?.name ?? null], { what }));
      store.noteDestroyed(id);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      if (error.raised === "CP003") throw new CapsuleError("not_found", `there is no capsule ${id}`);
      if (error.raised !== "CP008") throw error;
      const message = `cannot destroy capsule ${id}: a host is bringing it back at this moment`;
      throw new CapsuleError("unavailable", message, { cause: error, retryAfterSec: 1 });
    }
  }
}

/** As its holder says it; `details`: of a resume that the service begins by itself. */
function requireTemplate({ id, blockedBy }: Pick<Capsule, "id" | "blockedBy">, details: Record<string, unknown>): void {
  if (blockedBy === null) return;
  const message = `${cannot("resume", id)}: its template ${blockedBy} was deleted`;
  throw new CapsuleError("conflict", message, { details: { template: blockedBy, ...details } });
}
