/** The field that the service refused. */
import { ServiceError } from "../../src/sdk/sdk.ts";
import { messageOf } from "./toasts.ts";

export interface RefusedField {
  /** One of the form's. */
  path: string;
  /** A sentence to stand beside it. */
  text: string;
}

/** The one of `paths` that an error names, itself or by an entry, as `network.allow` by `network.allow[3]`; undefined: none. */
export function refusedField(error: unknown, paths: readonly string[]): RefusedField | undefined {
  const field = error instanceof ServiceError ? error.details?.field : undefined;
  if (typeof field !== "string") return undefined;
  const path = paths.find((each) => field === each || field.startsWith(`${each}[`));
  return path === undefined ? undefined : { path, text: sentence(messageOf(error), field, path) };
}

/** With words in place of the field's path, which the message begins with, in a capital. */
function sentence(message: string, field: string, path: string): string {
  if (!message.toLowerCase().startsWith(field.toLowerCase())) return message;
  const at = /^\[(\d+)\]/.exec(field.slice(path.length))?.[1];
  return `${at === undefined ? "It" : `Entry ${Number(at) + 1}`}${message.slice(field.length)}`;
}
