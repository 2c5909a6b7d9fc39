/**
 * What one team may have at once, and what it has. Checked in the same tick as the row that uses it up is written (or, of
 * a template, its name is claimed), so that of two requests at once for the last place one wins.
 */
import type { CapsuleRows } from "../db/capsule-rows.ts";
import type { TemplateRows } from "../db/template-rows.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Status } from "./lifecycle.ts";

export interface QuotaLimits {
  /** Of every status. */
  capsules: number;
  runningVcpus: number;
  runningMemoryMb: number;
  diskBytes: number;
  templates: number;
  /** Memory of the running capsules of all teams together: what the host may have promised. */
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
  /** Bytes on disk of one capsule, as of the last look. */
  diskOf: (id: string) => number;
}

/** A capsule in these has a VM, or is about to. */
const live: Status[] = ["pending", "starting", "running"];

interface Shape {
  vcpus: number;
  memoryMb: number;
}

export class Quotas {
  readonly #options: QuotasOptions;

  constructor(options: QuotasOptions) {
    this.#options = options;
  }

  usage(teamId: string): Usage {
    const { rows, templates, diskOf } = this.#options;
    const own = templates.sizes(teamId);
    const disk = rows.idsOf(teamId).reduce((sum, id) => sum + diskOf(id), own.bytes);
    return { ...rows.usage(teamId, live), diskBytes: disk, templates: own.named };
  }

  /** Throws "quota_exceeded", and "no_capacity" when it is the host that has promised enough. */
  requireCreate(teamId: string, shape: Shape): void {
    const { limits } = this.#options;
    const usage = this.usage(teamId);
    within("create a capsule", "capsules", usage.capsules, 1, limits.capsules);
    within("create a capsule", "bytes on disk", usage.diskBytes, 1, limits.diskBytes);
    this.#requireRunning("create a capsule", usage, shape);
  }

  /** As `requireCreate`. */
  requireResume(teamId: string, shape: Shape): void {
    this.#requireRunning("resume a capsule", this.usage(teamId), shape);
  }

  /**
   * Throws "quota_exceeded". `isNew`: it replaces none of the team's templates. `underWay`: how many new ones are being
   * made already, since their rows come only at their ends.
   */
  requireCapture(teamId: string, { isNew, underWay }: { isNew: boolean; underWay: number }): void {
    const { limits } = this.#options;
    const usage = this.usage(teamId);
    within("capture a capsule", "templates", usage.templates + underWay, isNew ? 1 : 0, limits.templates);
    within("capture a capsule", "bytes on disk", usage.diskBytes, 1, limits.diskBytes);
  }

  #requireRunning(what: string, usage: Usage, { vcpus, memoryMb }: Shape): void {
    const { limits, rows } = this.#options;
    within(what, "running vCPUs", usage.runningVcpus, vcpus, limits.runningVcpus);
    within(what, "MiB of running memory", usage.runningMemoryMb, memoryMb, limits.runningMemoryMb);
    if (rows.runningMemoryMb(live) + memoryMb > limits.hostMemoryMb) {
      throw new CapsuleError("no_capacity", `cannot ${what}: the host has promised as much memory as it may`);
    }
  }
}

function within(what: string, unit: string, used: number, more: number, limit: number): void {
  if (used + more <= limit) return;
  const message = `cannot ${what}: the team has ${used} ${unit} and may have ${limit}`;
  throw new CapsuleError("quota_exceeded", message, { details: { quota: unit, used, limit } });
}
