/**
 * What should not be there, looked for now and then: capsules whose destruction failed half-way, running ones without a
 * guest, intents that nobody carries out, folders without a record. A folder that is being made or removed at this moment
 * can look like one, so it goes only when two looks in a row find it.
 */
import type { Host } from "../host/host.ts";
import type { Turns } from "./locks.ts";
import type { Capsule, Records } from "./store.ts";
import type { Changes, Log } from "./transitions.ts";

export interface ReconcilerOptions {
  records: Records;
  host: Host;
  turns: Turns;
  changes: Changes;
  log: Log;
  /** Storage ids of all template records. */
  storages: () => Set<string>;
}

export class Reconciler {
  readonly #o: ReconcilerOptions;
  #suspects = new Set<string>();
  #looking: Promise<string[]> | undefined;

  constructor(options: ReconcilerOptions) {
    this.#o = options;
  }

  /**
   * One look, or the one that is under way: two at once would be two in a row. Resolves with the names of the folders it
   * removed. What fails is left to the next look.
   */
  look(): Promise<string[]> {
    this.#looking ??= this.#lookAtAll().finally(() => {
      this.#looking = undefined;
    });
    return this.#looking;
  }

  async #lookAtAll(): Promise<string[]> {
    const { host, log } = this.#o;
    const attempt = async (what: string, work: () => Promise<unknown>): Promise<boolean> => {
      try {
        await work();
        return true;
      } catch (error) {
        log.error({ err: error, what }, "reconciling failed; it will be tried again");
        return false;
      }
    };
    for (const row of this.#atRest()) await attempt(row.id, () => this.#mend(row));
    const orphans = this.orphans();
    const removed: string[] = [];
    for (const { name, remove } of orphans) {
      if (!this.#suspects.has(name) || !(await attempt(name, remove))) continue;
      removed.push(name);
      log.warn({ folder: name }, "a folder without a record was removed");
    }
    await attempt("bases", () => host.trimBases());
    this.#suspects = new Set(orphans.map(({ name }) => name).filter((name) => !removed.includes(name)));
    return removed;
  }

  #atRest(): Capsule[] {
    const { records, turns } = this.#o;
    return records.all().filter((row) => !turns.isTaken(row.id));
  }

  /** What happened to it could not be written when it did. A row that has moved on since it was read stays as it is. */
  async #mend(row: Capsule): Promise<void> {
    const { records, changes } = this.#o;
    const needsGuest = row.status === "running" || row.status === "starting";
    const isLost = needsGuest && changes.guest(row.id) === undefined;
    if (row.intent === "destroy") await changes.destroy(row);
    else if (isLost) records.settle(row, "fail", { errorReason: "its VM is gone" });
    else if (row.intent !== null) await changes.takeBack(row);
  }

  /** Folders that have no record now. */
  orphans(): { name: string; remove: () => Promise<void> }[] {
    const { records, host, storages } = this.#o;
    const { capsules, templates } = host.inventory();
    const named = storages();
    return [
      ...capsules
        .filter((id) => records.get(id) === undefined)
        .map((id) => ({ name: `capsules/${id}`, remove: () => host.remove(id) })),
      ...templates
        .filter((storage) => !named.has(storage))
        .map((storage) => ({ name: `templates/${storage}`, remove: () => host.removeTemplate(storage) })),
    ];
  }
}
