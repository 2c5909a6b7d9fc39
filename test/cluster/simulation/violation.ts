/** The finding of a schedule. */
export class Violation extends Error {}

export function violated(what: string): never {
  throw new Violation(what);
}
