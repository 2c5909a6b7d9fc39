/**
 * Repairs at intervals what a failure left behind: destroys that failed half-way, running capsules without a guest, intents
 * whose change has ended, folders without a row. A folder may be missing its row only because it is being made or removed,
 * so it is settled when two passes in a row find it.
 */
import type { Host } from "../host/host.ts";
import type { Log } from "../log.ts";
import type { Adoptions } from "./adoptions.ts";
import type { Captures } from "./captures.ts";
import type { CapsuleLocks } from "./locks.ts";
import type { Orphans } from "./orphans.ts";
import type { Runs } from "./runs.ts";
import type { Capsule, CapsuleStore } from "./store.ts";
import type { Transitions } from "./transitions.ts";

export interface ReconcilerOptions {
  store: CapsuleStore;
  host: Host;
  locks: CapsuleLocks;
  runs: Pick<Runs, "guest">;
  adoptions: Pick<Adoptions, "has">;
  transitions: Transitions;
  log: Log;
  orphans: Orphans;
  captures: Captures;
  /** Forgets what is needed no longer to explain a folder. */
  forget: () => void;
}

export class Reconciler {
  readonly #options: ReconcilerOptions;
  #suspects = new Set<string>();
  #reconciling: Promise<string[]> | undefined;

  constructor(options: ReconcilerOptions) {
    this.#options = options;
  }

  /**
   * One pass; a call during a pass joins it. Resolves with the names of the folders it settled. The next pass retries what
   * failed.
   */
  reconcile(): Promise<string[]> {
    this.#reconciling ??= this.#pass().finally(() => {
      this.#reconciling = undefined;
    });
    return this.#reconciling;
  }

  async #pass(): Promise<string[]> {
    const { host, orphans, forget, log } = this.#options;
    const attempt = async (what: string, work: () => Promise<unknown>): Promise<boolean> => {
      try {
        await work();
        return true;
      } catch (error) {
        log.error({ err: error, what }, "reconciling failed; it will be tried again");
        return false;
      }
    };
    for (const row of this.#unlocked()) await attempt(row.id, () => this.#repair(row));
    const found = orphans.find();
    const settled: string[] = [];
    for (const { name, settle } of found) {
      if (this.#suspects.has(name) && (await attempt(name, settle))) settled.push(name);
    }
    await attempt("bases", () => host.trimBases());
    await attempt("lost+found", () => host.lostFound.removeExpired());
    await attempt("storages", async () => forget());
    this.#suspects = new Set(found.map(({ name }) => name).filter((name) => !settled.includes(name)));
    return settled;
  }

  #unlocked(): Capsule[] {
    const { store, locks } = this.#options;
    return store.all().filter((row) => !locks.isLocked(row.id));
  }

  /** Writes the outcome that could not be written at the time. A row that has changed since it was read is left alone. */
  async #repair(row: Capsule): Promise<void> {
    const { store, runs, adoptions, transitions, captures } = this.#options;
    if (row.intent === "capture" && (await captures.complete(row)) !== undefined) return;
    const needsGuest = row.status === "running" || row.status === "starting";
    const isLost = needsGuest && runs.guest(row.id) === undefined && !adoptions.has(row.id);
    if (row.intent === "destroy") await transitions.destroy(row);
    else if (isLost) store.commit(row, "fail", { errorReason: "its VM is gone" });
    else if (row.intent !== null) await transitions.undo(row);
  }
}
