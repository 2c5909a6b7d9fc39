/**
 * What should not be there, looked for now and then: capsules whose destruction failed half-way, and folders without a
 * record. A folder that is being made or removed at this moment can look like one, so it goes only when two looks in a
 * row find it.
 */
import type { Host } from "../host/host.ts";
import type { Changes, Log } from "./changes.ts";
import type { Records } from "./records.ts";
import type { Turns } from "./turns.ts";

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

  constructor(options: ReconcilerOptions) {
    this.#o = options;
  }

  /** One look; resolves with the names of the folders it removed. */
  async look(): Promise<string[]> {
    const { host, log } = this.#o;
    await this.#destroyCondemned();
    const orphans = this.orphans();
    const removed: string[] = [];
    for (const { name, remove } of orphans) {
      if (!this.#suspects.has(name)) continue;
      await remove();
      removed.push(name);
      log.warn({ folder: name }, "a folder without a record was removed");
    }
    await host.trimBases();
    this.#suspects = new Set(orphans.map(({ name }) => name).filter((name) => !removed.includes(name)));
    return removed;
  }

  /** Nobody sees these any more, but what they hold is still there. */
  async #destroyCondemned(): Promise<void> {
    const { records, turns, changes } = this.#o;
    for (const row of records.all()) {
      if (row.intent === "destroy" && !turns.isTaken(row.id)) await changes.destroy(row);
    }
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
