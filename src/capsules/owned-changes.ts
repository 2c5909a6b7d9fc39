/** Changes by clients that need a decision about the capsule first: of its settings, which may have a new name, and its ends. */
import type { CapsuleSettings } from "../db/capsule-rows.ts";
import type { TemplateRows } from "../db/template-rows.ts";
import type { Captured } from "../host/host.ts";
import type { Clock } from "./clock.ts";
import type { Decisions } from "./decisions.ts";
import type { Networks } from "./networks.ts";
import { type KeyedAnswer, type Ownership, type TemplatePlace, Undecided } from "./ownership.ts";
import type { Quotas } from "./quotas.ts";
import type { Runs } from "./runs.ts";
import { changesNothing, type SettingsChange, settingsAfter } from "./settings.ts";
import { type Capsule, type CapsuleStore, missing } from "./store.ts";
import type { Transitions } from "./transitions.ts";
import type { CapsuleView } from "./view.ts";

export type CaptureStep<T> = (capsule: CapsuleView, captured: Captured, createdAt: number) => T;

export interface Capturing<T> {
  /** Makes the template's row, inside the transaction that ends the capsule; its result is the capture's. */
  commit: CaptureStep<T>;
  /** As of Ownership.capture. */
  answerOf?: CaptureStep<KeyedAnswer | undefined>;
}

export interface OwnedChangesOptions {
  store: CapsuleStore;
  templates: TemplateRows;
  transitions: Transitions;
  runs: Runs;
  clock: Clock;
  quotas: Pick<Quotas, "promised">;
  networks: Pick<Networks, "changed" | "keepInjected">;
  ownership: Ownership;
  decisions: Decisions;
  /** Throws "name_taken". */
  requireFree: (teamId: string, name: string | null) => void;
}

export class OwnedChanges {
  readonly #options: OwnedChangesOptions;

  constructor(options: OwnedChangesOptions) {
    this.#options = options;
  }

  /** As Capsules.update. */
  async update(teamId: string, id: string, change: SettingsChange): Promise<Capsule> {
    const { store, clock, quotas, ownership, decisions, requireFree } = this.#options;
    using promises = new DisposableStack();
    let row: Capsule;
    let settings: CapsuleSettings;
    const read = () => {
      row = store.require(teamId, id);
      settings = settingsAfter(row, change, clock.now());
    };
    const ask = () => {
      read();
      const isNew = settings.name !== row.name;
      // The row's own name is asked for too: the cluster may have decided another one, whose answer did not come.
      if (!isNew && change.name === undefined) return undefined;
      if (isNew) requireFree(teamId, settings.name);
      const decided = ownership.rename(row, settings.name);
      if (isNew && decided !== undefined) promises.use(quotas.promised.name(teamId, settings.name));
      return decided;
    };
    return await decisions.make(id, ask, (hasWaited) => {
      if (hasWaited) read(); // its status may be another one, on which the end of its lifetime depends
      return this.#set(row, settings, change);
    });
  }

  #set(row: Capsule, settings: CapsuleSettings, change: SettingsChange): Capsule {
    const { store, runs, networks } = this.#options;
    const { injected = [] } = change;
    if (changesNothing(row, settings) && injected.every(({ value }) => value === null)) return row;
    const keep = () => networks.keepInjected(row.id, injected);
    const changed = store.set(row, settings, change.network === undefined ? undefined : keep);
    runs.changed(changed);
    if (change.network !== undefined) networks.changed(row.id);
    return changed;
  }

  /** As Capsules.capture. */
  async capture<T>(
    permitted: Capsule,
    { storage, ...place }: TemplatePlace,
    view: () => CapsuleView,
    { commit, answerOf = () => undefined }: Capturing<T>,
  ): Promise<T> {
    const { store, transitions, templates, clock, ownership, decisions } = this.#options;
    const row = store.setIntent(permitted, "capture", () => templates.note(storage, clock.now()));
    let result: { value: T } | undefined;
    const commitFiles = async (captured: Captured) => {
      const createdAt = clock.now();
      const ask = () => {
        if (store.isBeingDestroyed(row.id)) throw missing(row.id);
        const { sizeBytes, canGrow } = captured;
        const template = { ...place, storage, sizeBytes, canGrow, createdAt };
        return ownership.capture(row, template, () => answerOf(view(), captured, createdAt));
      };
      const begin = (hasWaited: boolean) => {
        try {
          store.beginDestroy(row, () => {
            result = { value: commit(view(), captured, createdAt) };
          });
        } catch (error) {
          if (!hasWaited || ownership.captured === undefined) throw error;
          throw new Undecided(row.id, error); // it is decided, and can be asked for
        }
      };
      await decisions.make(row.id, ask, begin);
    };
    let isKept = false;
    const keep = async ({ sizeBytes }: Captured, signal: AbortSignal) => {
      isKept = true;
      await ownership.keepFiles?.({ storage, sizeBytes }, signal);
    };
    try {
      const steps = { ...(ownership.keepFiles === undefined ? {} : { keep }), commit: commitFiles };
      await transitions.capture(row, storage, steps);
    } catch (error) {
      // Files that cannot be dropped now are forgotten in time.
      if (isKept && !(error instanceof Undecided)) await ownership.dropFiles?.(storage).catch(() => {});
      throw error;
    }
    if (result === undefined) throw new Error(`the capture of capsule ${row.id} was not committed`);
    return result.value;
  }

  /** As Capsules.destroy. */
  async destroy(teamId: string, id: string): Promise<void> {
    const { store, transitions, ownership, decisions } = this.#options;
    let row: Capsule;
    const read = () => {
      row = store.require(teamId, id);
    };
    const ask = () => {
      read();
      return ownership.destroy(row);
    };
    const { destroyed } = await decisions.make(id, ask, (hasWaited) => {
      if (hasWaited) read(); // other changes go on meanwhile
      return { destroyed: transitions.destroy(store.beginDestroy(row)) };
    });
    await destroyed;
  }
}
