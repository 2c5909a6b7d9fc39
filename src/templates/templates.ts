/**
 * Templates: the built-in images and the snapshots that teams captured. A name is unique in its team; the files behind it
 * lie under a storage id, and stay as long as a capsule needs them.
 */
import type { Capsules } from "../capsules/capsules.ts";
import type { Clock } from "../capsules/clock.ts";
import { newStorageId, newTemplateName } from "../capsules/ids.ts";
import type { CaptureStep } from "../capsules/owned-changes.ts";
import type { KeyedAnswer } from "../capsules/ownership.ts";
import type { Quotas } from "../capsules/quotas.ts";
import type { CapsuleRows } from "../db/capsule-rows.ts";
import { type Database, transact } from "../db/database.ts";
import type { TemplateRow, TemplateRows } from "../db/template-rows.ts";
import type { Host } from "../host/host.ts";
import type { Step } from "../host/steps.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { RetiredTemplates } from "./retired-templates.ts";

/** A template as teams see it; `createdAt` in epoch milliseconds. */
export interface TemplateView {
  name: string;
  type: "base" | "snapshot";
  vcpus: number | null;
  memoryMb: number | null;
  sizeBytes: number;
  createdAt: number;
}

export interface CaptureRequest {
  capsuleId: string;
  name?: string | undefined;
  overwrite: boolean;
}

/** Must not throw. `view` is undefined when the template is gone. */
type Listener = (teamId: string, name: string, view: TemplateView | undefined) => void;

const namePattern = /^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$/;

export interface TemplatesOptions {
  database: Database;
  rows: TemplateRows;
  capsuleRows: CapsuleRows;
  capsules: Capsules;
  quotas: Quotas;
  host: Host;
  retired: RetiredTemplates;
  clock: Pick<Clock, "now">;
  step: Step;
}

export class Templates {
  readonly #options: TemplatesOptions;
  /** Names being captured, as `team/name`: the second capture into one is refused. */
  readonly #claimed = new Map<string, { teamId: string; isNew: boolean }>();
  readonly #listeners = new Set<Listener>();

  constructor(options: TemplatesOptions) {
    this.#options = options;
  }

  /** Built-in images first, then the team's own, newest first. */
  list(teamId: string, type?: "base" | "snapshot"): TemplateView[] {
    const bases = this.#options.host.images().map((image): TemplateView => {
      return { ...image, type: "base", vcpus: null, memoryMb: null };
    });
    const snapshots = this.#options.rows.ofTeam(teamId).map(viewOf);
    if (type === "base") return bases;
    return type === "snapshot" ? snapshots : [...bases, ...snapshots];
  }

  /**
   * Captures a running capsule and destroys it, in one transaction with `alongside`; `answerOf`: as of Ownership.capture. Throws
   * CapsuleError: "not_found", "invalid_state", "unavailable", "invalid_request" for a bad name, "name_reserved", "template_name_taken",
   * "quota_exceeded", "no_space", "agent_error".
   */
  async capture(
    teamId: string,
    request: CaptureRequest,
    alongside: (template: TemplateView) => void = () => {},
    answerOf: (template: TemplateView) => KeyedAnswer | undefined = () => undefined,
  ): Promise<TemplateView> {
    const { capsules, rows, retired } = this.#options;
    const adoption = capsules.adoption(teamId, request.capsuleId, "snapshot");
    if (adoption !== undefined) await adoption;
    const name = request.name ?? newTemplateName();
    if (!namePattern.test(name)) {
      throw new CapsuleError(
        "invalid_request",
        "a template's name is 1 to 64 letters, digits, dots, dashes and underscores and begins with a letter or digit",
      );
    }
    this.#requireFree(teamId, name, request.overwrite);
    const isNew = rows.named(teamId, name) === undefined;
    const capturing = [...this.#claimed.values()].filter((each) => each.teamId === teamId && each.isNew).length;
    this.#options.quotas.requireCapture(teamId, { isNew, capturing });
    const claim = `${teamId}/${name}`;
    this.#claimed.set(claim, { teamId, isNew });
    const storage = newStorageId();
    let made: TemplateView;
    try {
      const to = { storage, name, overwrites: request.overwrite };
      const view: CaptureStep<TemplateView> = ({ vcpus, memoryMb }, { sizeBytes }, createdAt) => {
        return { name, type: "snapshot", vcpus, memoryMb, sizeBytes, createdAt };
      };
      const commit: CaptureStep<TemplateView> = (capsule, captured, createdAt) => {
        const { vcpus, memoryMb, diskMb } = capsule;
        const { sizeBytes } = captured;
        const old = rows.named(teamId, name);
        if (old !== undefined) rows.retire(old.storage, createdAt);
        const canGrow = captured.canGrow ? 1 : 0;
        rows.insert({ storage, teamId, name, vcpus, memoryMb, diskMb, canGrow, sizeBytes, createdAt });
        const template = view(capsule, captured, createdAt);
        alongside(template);
        return template;
      };
      made = await capsules.capture(teamId, request.capsuleId, to, {
        commit,
        answerOf: (...of) => answerOf(view(...of)),
      });
    } finally {
      this.#claimed.delete(claim);
    }
    this.#notify(teamId, name, made);
    await retired.collect();
    return made;
  }

  /** Throws CapsuleError("not_found"), also for a built-in image. */
  async delete(teamId: string, name: string): Promise<void> {
    const { rows, capsuleRows, database, clock, step, retired, host } = this.#options;
    const row = rows.named(teamId, name);
    if (row === undefined) {
      const isImage = host.images().some((image) => image.name === name);
      const isOperators = `${name} is an image of the server, not a snapshot template: only its operator removes it`;
      throw new CapsuleError(
        "not_found",
        isImage ? isOperators : `there is no snapshot template ${JSON.stringify(name)}`,
      );
    }
    transact(database, () => {
      rows.retire(row.storage, clock.now());
      capsuleRows.block(row.storage, name);
    });
    step("template.retired");
    this.#notify(teamId, name, undefined);
    await retired.collect();
  }

  /** Templates of any team that were deleted or replaced elsewhere. */
  async retire(gone: readonly { storage: string; name: string; teamId: string; isDeleted: boolean }[]): Promise<void> {
    const { rows, capsuleRows, database, clock, retired } = this.#options;
    const used = gone.filter(({ storage, name, teamId }) => rows.named(teamId, name)?.storage === storage);
    transact(database, () => {
      for (const { storage, name, isDeleted } of used) {
        rows.retire(storage, clock.now());
        if (isDeleted) capsuleRows.block(storage, name);
      }
    });
    for (const { teamId, name, isDeleted } of used) if (isDeleted) this.#notify(teamId, name, undefined);
    await retired.collect();
  }

  /** Calls `listener` when a template is captured, replaced or deleted, until the returned function is called. */
  onChange(listener: Listener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #notify(teamId: string, name: string, view: TemplateView | undefined): void {
    for (const listener of this.#listeners) listener(teamId, name, view);
  }

  #requireFree(teamId: string, name: string, isOverwriting: boolean): void {
    const { rows, host } = this.#options;
    if (host.images().some((image) => image.name === name)) {
      throw new CapsuleError("name_reserved", `the name ${name} is a built-in template's`);
    }
    if (this.#claimed.has(`${teamId}/${name}`)) {
      throw new CapsuleError("template_name_taken", `a template ${name} is being made at this moment`);
    }
    if (!isOverwriting && rows.named(teamId, name) !== undefined) {
      throw new CapsuleError("template_name_taken", `the name ${name} is taken; overwrite=true replaces that template`);
    }
  }
}

function viewOf(row: TemplateRow): TemplateView {
  const { name, vcpus, memoryMb, sizeBytes, createdAt } = row;
  return { name, type: "snapshot", vcpus, memoryMb, sizeBytes, createdAt };
}
