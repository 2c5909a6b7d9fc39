/** Paths inside a capsule, as clients give them. */
import { CapsuleError } from "../wire/errors.ts";
import { bytesOfName } from "../wire/file-names.ts";

/** Throws invalid_request unless the path is absolute, without NUL, encodable and not too long. */
export function checkPath(path: string, maxBytes: number, field = "path"): string {
  const problem = pathProblem(path, maxBytes);
  if (problem === undefined) return path;
  throw new CapsuleError("invalid_request", `${field} ${problem}`, { details: { field } });
}

function pathProblem(path: string, maxBytes: number): string | undefined {
  if (!path.startsWith("/")) return "must be absolute";
  const bytes = bytesOfName(path);
  if (bytes.includes(0)) return "must not contain NUL";
  if (!path.isWellFormed()) return "must be encodable as UTF-8";
  if (bytes.length > maxBytes) return `must not be longer than ${maxBytes} bytes`;
  return undefined;
}
