/** The files and the shape that a new capsule of a template gets. */
import type { TemplateRows } from "../db/template-rows.ts";
import type { Host } from "../host/host.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { CreateRequest } from "./new-row.ts";

export interface Resolved {
  /** Null: a built-in image. */
  storage: string | null;
  vcpus: number;
  memoryMb: number;
}

/**
 * A snapshot template brings its own shape. The team's own comes before an image of its name that was added later. Throws
 * CapsuleError("not_found").
 */
export function resolveTemplate(
  { templates, host }: { templates: TemplateRows; host: Pick<Host, "images"> },
  teamId: string,
  { template, vcpus, memoryMb }: CreateRequest,
): Resolved {
  const found = templates.named(teamId, template);
  if (found !== undefined) return { storage: found.storage, vcpus: found.vcpus, memoryMb: found.memoryMb };
  if (host.images().some((image) => image.name === template)) return { storage: null, vcpus, memoryMb };
  throw new CapsuleError("not_found", `there is no template ${JSON.stringify(template)}`);
}
