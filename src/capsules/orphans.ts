/**
 * Folders of capsules and templates without a row. A folder that this database explains is removed: its capsule was destroyed,
 * its template removed, its capture began here and failed, or it was never finished. Any other may belong to a database that was
 * lost or exchanged, and is kept in lost+found (docs/adr/0036).
 */
import type { TemplateRows } from "../db/template-rows.ts";
import type { Host, SavedKind } from "../host/host.ts";
import type { Log } from "../log.ts";
import type { Ownership } from "./ownership.ts";
import type { Promised } from "./promised.ts";
import type { CapsuleStore } from "./store.ts";

export interface Orphan {
  /** Relative to the data folder. */
  name: string;
  settle(): Promise<"removed" | "kept">;
}

export interface OrphansOptions {
  store: Pick<CapsuleStore, "all" | "get" | "wasDestroyed">;
  templates: Pick<TemplateRows, "all" | "isNoted">;
  host: Pick<Host, "inventory" | "remove" | "removeTemplate" | "keepLost" | "lostFound">;
  ownership: Pick<Ownership, "captured">;
  log: Log;
  promised: Pick<Promised, "hasFolder">;
}

export class Orphans {
  readonly #options: OrphansOptions;

  constructor(options: OrphansOptions) {
    this.#options = options;
  }

  /** Folders that have no row now. */
  find(): Orphan[] {
    const { store, templates, host, promised, ownership } = this.#options;
    const found = host.inventory();
    const named = new Set(templates.all().map(({ storage }) => storage));
    const capsules = found.capsules.filter((id) => store.get(id) === undefined && !promised.hasFolder(id));
    // The files of a capture that is decided elsewhere are there before its row, and as long as its outcome is not known.
    const isCapturing = ownership.captured !== undefined && store.all().some(({ intent }) => intent === "capture");
    const storages = found.templates.filter(
      (storage) => !named.has(storage) && !promised.hasFolder(storage) && !(isCapturing && templates.isNoted(storage)),
    );
    return [
      ...capsules.map((id) => this.#orphan("capsules", id)),
      ...storages.map((storage) => this.#orphan("templates", storage)),
    ];
  }

  #orphan(kind: SavedKind, name: string): Orphan {
    const { host, log } = this.#options;
    const settle = async () => {
      if (host.lostFound.isSaved(kind, name) && !this.#isExplained(kind, name)) {
        await host.keepLost(kind, name);
        log.warn({ folder: `${kind}/${name}` }, "a folder that the database does not know was moved to lost+found");
        return "kept";
      }
      await (kind === "capsules" ? host.remove(name) : host.removeTemplate(name));
      log.warn({ folder: `${kind}/${name}` }, "a folder without a record was removed");
      return "removed";
    };
    return { name: `${kind}/${name}`, settle };
  }

  #isExplained(kind: SavedKind, name: string): boolean {
    const { store, templates } = this.#options;
    return kind === "capsules" ? store.wasDestroyed(name) : templates.isNoted(name);
  }
}
