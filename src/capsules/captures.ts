/**
 * Captures that were decided and have not ended here: the answer was lost, or the server ended before it was written. The capsule
 * becomes the template then, as decided; it is never destroyed without.
 */
import { setTimeout as delay } from "node:timers/promises";
import type { TemplateRows } from "../db/template-rows.ts";
import type { Host } from "../host/host.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Decisions } from "./decisions.ts";
import type { DecidedTemplate, Ownership } from "./ownership.ts";
import type { Capsule, CapsuleStore } from "./store.ts";
import type { Transitions } from "./transitions.ts";

export interface CapturesOptions {
  store: CapsuleStore;
  templates: TemplateRows;
  host: Pick<Host, "inventory">;
  transitions: Pick<Transitions, "destroy">;
  ownership: Ownership;
  decisions: Decisions;
  /** Removes the files of retired templates. Never rejects. */
  onFreed: () => Promise<void>;
}

const askAgainMs = 1_000;

export class Captures {
  readonly #options: CapturesOptions;

  constructor(options: CapturesOptions) {
    this.#options = options;
  }

  /**
   * Undefined: the capsule was not captured, or the template's files are not here. Otherwise its template has a row, and `ended`
   * resolves when the capsule is gone. Throws "unavailable" where nobody can tell.
   */
  async complete({ id }: Capsule): Promise<{ ended: Promise<void> } | undefined> {
    const { store, host, ownership, decisions, transitions, onFreed } = this.#options;
    if (ownership.captured === undefined) return undefined;
    let decided: DecidedTemplate | undefined;
    const ask = async () => {
      const row = store.get(id);
      decided = row === undefined ? undefined : await ownership.captured?.(row);
    };
    return await decisions.make(id, ask, () => {
      const row = store.get(id);
      if (row === undefined || row.intent === "destroy") return { ended: Promise.resolve() };
      if (decided === undefined || !host.inventory().templates.includes(decided.storage)) return undefined;
      const begun = store.beginDestroy(row, () => this.#insert(row, decided!));
      const ended = transitions.destroy(begun).then(async () => {
        if (decided?.retiredAt !== null) await onFreed(); // it was deleted since
      });
      ended.catch(() => {}); // the reconciler tries it again
      return { ended };
    });
  }

  /** As `complete`, asked until it is known or `signal` fires. `onWait`: nobody can tell yet. */
  async completed(row: Capsule, signal: AbortSignal, onWait: () => void): Promise<boolean> {
    for (;;) {
      try {
        return (await this.complete(row)) !== undefined;
      } catch (error) {
        if (!(error instanceof CapsuleError) || error.code !== "unavailable") throw error;
      }
      onWait();
      await delay(askAgainMs, undefined, { signal, ref: false });
    }
  }

  #insert({ teamId, vcpus, memoryMb, diskMb }: Capsule, decided: DecidedTemplate): void {
    const { templates } = this.#options;
    const { storage, name, sizeBytes, canGrow, createdAt, retiredAt } = decided;
    const old = templates.named(teamId, name);
    if (old?.storage === storage) return;
    if (old !== undefined && retiredAt !== null) return; // a later one of that name: the files are needed no longer
    if (old !== undefined) templates.retire(old.storage, createdAt);
    const shape = { vcpus, memoryMb, diskMb, canGrow: canGrow ? 1 : 0, sizeBytes };
    templates.insert({ storage, teamId, name, ...shape, createdAt });
    if (retiredAt !== null) templates.retire(storage, retiredAt);
  }
}
