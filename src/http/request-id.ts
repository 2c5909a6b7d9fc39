/** The id of a request, in its answer's `X-Request-Id` and in the log. */
import { randomBytes } from "node:crypto";

const requestIdBytes = 16;

export function newRequestId(): string {
  return randomBytes(requestIdBytes).toString("hex");
}
