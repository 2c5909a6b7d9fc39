/** Options by names that a method does not have, which TypeScript finds and plain JavaScript does not. */

/** Throws TypeError for each option in `rest`, the part of a method's options that it does not know; undefined counts as left out. */
export function refuseUnknown(method: string, rest: object): void {
  const names = Object.entries(rest).flatMap(([name, value]) => (value === undefined ? [] : JSON.stringify(name)));
  if (names.length > 0) throw new TypeError(`${method} has no option ${names.join(", ")}`);
}

/** Throws TypeError for arguments of a command that are no array, such as options in their place. */
export function checkArgs(method: string, args: unknown): void {
  if (!Array.isArray(args)) throw new TypeError(`${method} takes an array of arguments before its options`);
}
