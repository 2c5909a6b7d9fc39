/** Where a capsule comes from. */
import type { Origin } from "../host/host.ts";
import type { Capsule } from "./store.ts";

/** The parent that a capsule starts from: a template's files, or a built-in image by its name. */
export function originOf({ storage, template }: Pick<Capsule, "storage" | "template">): Origin {
  return storage === null ? { kind: "base", name: template } : { kind: "template", storage };
}
