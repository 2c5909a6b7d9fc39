/** The files and the shape that a new capsule of a template gets. */
import type { TemplateRows } from "../db/template-rows.ts";
import type { Host } from "../host/host.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { CreateRequest } from "./new-row.ts";
import type { Quotas } from "./quotas.ts";

export interface Resolved {
  /** Null: a built-in image. */
  storage: string | null;
  vcpus: number;
  memoryMb: number;
  diskMb: number;
  /** The disk is larger than the template's. */
  isGrown: boolean;
}

/**
 * A snapshot template brings its own shape. The team's own comes before an image of its name that was added later. Throws
 * CapsuleError: "not_found"; for a disk "invalid_request" when it is smaller than the template's, "conflict" when the template cannot
 * have a larger one.
 */
export function resolveTemplate(
  { templates, host }: { templates: TemplateRows; host: Pick<Host, "images"> },
  teamId: string,
  { template, vcpus, memoryMb, diskMb: asked }: CreateRequest,
): Resolved {
  const found = templates.named(teamId, template);
  const image = host.images().find(({ name }) => name === template);
  if (found === undefined && image === undefined) throw noTemplate(template);
  const least = found?.diskMb ?? image!.diskMb;
  const diskMb = asked ?? least;
  if (diskMb < least) {
    const message = `disk_mb is ${diskMb}, and the disk of template ${template} has ${least} MiB: it can be made larger only`;
    throw new CapsuleError("invalid_request", message, { details: { field: "disk_mb" } });
  }
  const isGrown = diskMb > least;
  if (isGrown && found?.canGrow === 0) throw tooOld(template);
  if (found === undefined) return { storage: null, vcpus, memoryMb, diskMb, isGrown };
  return { storage: found.storage, vcpus: found.vcpus, memoryMb: found.memoryMb, diskMb, isGrown };
}

/**
 * For a disk that is to be larger. Throws CapsuleError: "conflict" when the agent of the built-in image cannot make it so,
 * "quota_exceeded" before a base is made to find that out, and what the host says when it can make none.
 */
export async function requireGrowth(
  { host, quotas }: { host: Pick<Host, "canGrow">; quotas: Pick<Quotas, "requireCreate"> },
  teamId: string,
  template: string,
  { storage, ...shape }: Resolved,
): Promise<void> {
  if (storage !== null) return;
  quotas.requireCreate(teamId, shape);
  if (!(await host.canGrow(template, shape, { owner: teamId }))) throw tooOld(template);
}

function tooOld(template: string): CapsuleError {
  const message = `template ${template} was made by an earlier release, and its disk cannot be made larger`;
  return new CapsuleError("conflict", message);
}

export function noTemplate(name: string): CapsuleError {
  return new CapsuleError("not_found", `there is no template ${JSON.stringify(name)}`);
}
