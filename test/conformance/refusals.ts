/** The common form of error answers. */
import assert from "node:assert/strict";
import type { Reply } from "../client.ts";

/** Throws unless the reply has this status and code, and a message. */
export function refused({ status, json, text }: Reply, expectedStatus: number, code: string, what = ""): void {
  assert.equal(status, expectedStatus, `${what} ${text}`);
  assert.equal(json?.error.code, code, what);
  assert.ok(typeof json.error.message === "string" && json.error.message.length > 10, text);
}
