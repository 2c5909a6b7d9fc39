/**
 * The quotas of a team and its usage. A quota is checked in the same tick in which the row that uses it up is inserted (for
 * a template: its name claimed), so that two requests cannot share the last unit. A row that waits for a decision counts from the check
 * on.
 */
import { Counts } from "../counts.ts";
import type { CapsuleRows } from "../db/capsule-rows.ts";
import type { TemplateRows } from "../db/template-rows.ts";
import type { Shape } from "../host/host.ts";
import { CapsuleError } from "../wire/errors.ts";
import { live } from "./lifecycle.ts";
import { Promised } from "./promised.ts";

export interface QuotaLimits {
  /** Capsules in every status. */
  capsules: number;
  runningVcpus: number;
  runningMemoryMb: number;
  diskBytes: number;
  templates: number;
  /** Creates and resumes that wait for their turn or are under way. */
  starts: number;
  /** Memory of the running capsules of all teams together. */
  hostMemoryMb: number;
}

export interface Usage {
  capsules: number;
  runningVcpus: number;
  runningMemoryMb: number;
  diskBytes: number;
  templates: number;
}

export interface QuotasOptions {
  rows: CapsuleRows;
  templates: TemplateRows;
  limits: QuotaLimits;
  /** Bytes on disk of one capsule, as last measured. */
  diskOf: (id: string) => number;
  /** The memory of all teams' running capsules. */
  runningMemoryMb: () => number;
}

export class Quotas {
  readonly #options: QuotasOptions;
  /** Counts as used, but is not part of `usage`. */
  readonly promised = new Promised();
  /** Starts under way, by team. */
  readonly #starts = new Counts();

  constructor(options: QuotasOptions) {
    this.#options = options;
  }

  /** Counts a start of the team's as being under way until `starting` has settled. */
  async duringStart<T>(teamId: string, starting: () => Promise<T>): Promise<T> {
    this.#starts.add(teamId);
    try {
      return await starting();
    } finally {
      this.#starts.subtract(teamId);
    }
  }

  usage(teamId: string): Usage {
    const { rows, templates, diskOf } = this.#options;
    const own = templates.sizes(teamId);
    const disk = rows.idsOf(teamId).reduce((sum, id) => sum + diskOf(id), own.bytes);
    return { ...rows.usage(teamId, live), diskBytes: disk, templates: own.named };
  }

  /** Throws "quota_exceeded", and "no_capacity" when the host's own bound is reached. */
  requireCreate(teamId: string, shape: Shape): void {
    const { limits } = this.#options;
    const usage = this.usage(teamId);
    const capsules = usage.capsules + this.promised.ofTeam(teamId).capsules;
    within("create a capsule", "capsules", capsules, 1, limits.capsules);
    within("create a capsule", "bytes on disk", usage.diskBytes, 1, limits.diskBytes);
    this.#requireRunning("create a capsule", teamId, usage, shape);
  }

  /** As `requireCreate`, for a capsule that exists. */
  requireRevival(teamId: string, shape: Shape, action: "resume" | "start"): void {
    this.#requireRunning(`${action} a capsule`, teamId, this.usage(teamId), shape);
  }

  /**
   * Throws "quota_exceeded". `isNew`: it replaces none of the team's templates. `capturing`: new ones being captured now,
   * which have no row yet.
   */
  requireCapture(teamId: string, { isNew, capturing }: { isNew: boolean; capturing: number }): void {
    const { limits } = this.#options;
    const usage = this.usage(teamId);
    within("capture a capsule", "templates", usage.templates + capturing, isNew ? 1 : 0, limits.templates);
    within("capture a capsule", "bytes on disk", usage.diskBytes, 1, limits.diskBytes);
  }

  isOverDisk(teamId: string): boolean {
    return this.usage(teamId).diskBytes > this.#options.limits.diskBytes;
  }

  #requireRunning(what: string, teamId: string, usage: Usage, { vcpus, memoryMb }: Shape): void {
    const { limits, runningMemoryMb } = this.#options;
    const more = this.promised.ofTeam(teamId);
    within(what, "running vCPUs", usage.runningVcpus + more.vcpus, vcpus, limits.runningVcpus);
    within(what, "MiB of running memory", usage.runningMemoryMb + more.memoryMb, memoryMb, limits.runningMemoryMb);
    within(what, "starts under way", this.#starts.of(teamId) + more.starts, 1, limits.starts);
    if (runningMemoryMb() + this.promised.memoryMb + memoryMb > limits.hostMemoryMb) {
      throw new CapsuleError("no_capacity", `cannot ${what}: the host has promised as much memory as it may`);
    }
  }
}

function within(what: string, unit: string, used: number, more: number, limit: number): void {
  if (used + more <= limit) return;
  const message = `cannot ${what}: the team has ${used} ${unit} and may have ${limit}`;
  throw new CapsuleError("quota_exceeded", message, { details: { quota: unit, used, limit } });
}

export interface DiskUseOptions {
  ids: () => string[];
  /** Bytes that the capsule's files take; 0 when there are none. */
  measure: (id: string) => Promise<number>;
}

/**
 * Bytes on disk per capsule, measured in the background one capsule after the other: guests write without asking, and no
 * request waits for these figures.
 */
export class DiskUse {
  readonly #options: DiskUseOptions;
  #bytes = new Map<string, number>();
  #measuring: Promise<void> | undefined;

  constructor(options: DiskUseOptions) {
    this.#options = options;
  }

  /** As last measured; 0 for a capsule that was not measured yet. */
  of(id: string): number {
    return this.#bytes.get(id) ?? 0;
  }

  /** Measures all capsules; a call during a measurement joins it. */
  measure(): Promise<void> {
    this.#measuring ??= this.#measureAll().finally(() => {
      this.#measuring = undefined;
    });
    return this.#measuring;
  }

  async #measureAll(): Promise<void> {
    const found = new Map<string, number>();
    for (const id of this.#options.ids()) found.set(id, await this.#options.measure(id).catch(() => this.of(id)));
    this.#bytes = found;
  }
}
