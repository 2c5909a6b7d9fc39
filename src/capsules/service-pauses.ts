/** Changes without a request: at deadlines of capsules, pauses of large ones when the host is short of memory, and pauses for moves. */
import { serviceOwner } from "../host/host.ts";
import type { DeadlineAction } from "../wire/capsule.ts";
import type { Decisions } from "./decisions.ts";
import { type Intent, reviving } from "./lifecycle.ts";
import type { CapsuleLocks } from "./locks.ts";
import type { MemoryPause } from "./memory-watch.ts";
import type { Ownership } from "./ownership.ts";
import type { Capsule, CapsuleStore } from "./store.ts";
import type { Transitions } from "./transitions.ts";

/** Which deadline of a capsule has passed. */
export type DeadlineCause = "idle" | "lifetime" | "retention";

/** Why the service paused a capsule: a deadline, the host is short of memory, or is drained. */
export type PauseCause = DeadlineCause | "memory" | "drain";

export interface ServicePausesOptions {
  store: CapsuleStore;
  locks: CapsuleLocks;
  transitions: Transitions;
  ownership: Ownership;
  decisions: Decisions;
  /** Called when the service has paused a capsule by itself. */
  onPaused: (teamId: string, id: string, cause: PauseCause) => void;
  /** Called when a destruction by the service itself is recorded. */
  onDestroyed: (teamId: string, id: string, cause: DeadlineCause) => void;
}

/** Changes that give a capsule a VM; the others end it. */
function isStart(intent: Intent): boolean {
  return intent === "create" || intent === "reboot" || reviving.includes(intent);
}

export class ServicePauses {
  readonly #options: ServicePausesOptions;

  constructor(options: ServicePausesOptions) {
    this.#options = options;
  }

  /** By the same path as a client's. `row` was read in this turn of the event loop, and no decision about it is under way. */
  async atDeadline(row: Capsule, action: DeadlineAction, cause: DeadlineCause): Promise<void> {
    const { store, transitions, ownership, decisions, onDestroyed } = this.#options;
    if (action === "pause") {
      await this.#pause(row.id, cause);
      return;
    }
    const ask = () => ownership.destroy(row);
    const { destroyed } = await decisions.make(row.id, ask, (hasWaited) => {
      const destroying = store.beginDestroy(hasWaited ? store.require(row.teamId, row.id) : row);
      onDestroyed(row.teamId, row.id, cause);
      return { destroyed: transitions.destroy(destroying) };
    });
    await destroyed;
  }

  /** The memory watch's pause, which does not wait behind other saves of the team. Resolves when the VM has ended. */
  async forMemory(id: string): Promise<MemoryPause> {
    const { locks, store } = this.#options;
    const isEnding = () => {
      const row = store.get(id);
      if (row === undefined) return true;
      return row.intent === null ? row.status === "paused" : !isStart(row.intent);
    };
    if (isEnding()) return "ending";
    if (locks.isLocked(id)) return "refused";
    try {
      if (!(await this.#pause(id, "memory", serviceOwner))) return "refused";
    } catch (error) {
      if (isEnding()) return "ending"; // destroyed meanwhile
      throw error;
    }
    await locks.runExclusive(id, async () => {}); // the pause is answered before the VM has ended
    return "paused";
  }

  /**
   * The pause of a capsule that is moved to another host: `mark` is called in the transaction that begins it. False: the capsule does not run, or
   * is being changed already. Rejects when it fails, and the capsule runs on.
   */
  async toMove(id: string, mark: () => void): Promise<boolean> {
    const { store, transitions, onPaused } = this.#options;
    const row = this.#idleRow(id);
    if (row === undefined) return false;
    await transitions.pause(store.setIntent(row, "pause", mark), row.teamId, "moved");
    onPaused(row.teamId, id, "drain");
    return true;
  }

  /** undefined: the capsule does not run, or is being changed already. */
  #idleRow(id: string): Capsule | undefined {
    const row = this.#options.store.get(id);
    return row?.status === "running" && row.intent === null ? row : undefined;
  }

  /** False: the capsule does not run, or is being changed already. */
  async #pause(id: string, cause: PauseCause, owner?: string): Promise<boolean> {
    const { store, transitions, onPaused } = this.#options;
    const row = this.#idleRow(id);
    if (row === undefined) return false;
    await transitions.pause(store.setIntentUnsynced(row, "pause"), owner);
    onPaused(row.teamId, id, cause);
    return true;
  }
}
