/** Checks of the fields of a JSON file, which may be damaged or of another release. */

export type Fields = Record<string, unknown>;

export function isObject(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export function isText(value: unknown): value is string {
  return typeof value === "string" && value.length > 0;
}

/** A whole number above 0. */
export function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) > 0;
}

/** A whole number, also 0. */
export function isSize(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

export function isSha256(value: unknown): value is string {
  return typeof value === "string" && /^[0-9a-f]{64}$/.test(value);
}

/** Throws an Error that names `what` and the formats. */
export function requireFormat(found: unknown, newest: number): asserts found is number {
  if (!isCount(found)) throw new Error(`its format is ${String(found)}`);
  if (found > newest) throw new NewerFormatError(found, newest);
}

/** Written by a later release. */
export class NewerFormatError extends Error {
  constructor(found: number, newest: number) {
    super(`it has format ${found}, and this release opens formats 1 to ${newest}`);
  }
}
