/** Labels and variables as text: a line KEY=VALUE for each. */

export type Pairs = Record<string, string>;

export function textOfPairs(pairs: Readonly<Pairs>): string {
  return Object.entries(pairs)
    .map(([key, value]) => `${key}=${value}`)
    .join("\n");
}

/** Empty lines do not count. Throws an Error for a line without `=`, or a second one of a key. */
export function pairsIn(text: string, what: string): Pairs {
  const pairs = new Map<string, string>();
  for (const line of text.split("\n")) {
    if (line.trim() === "") continue;
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`${what}: ${JSON.stringify(line)} is not KEY=VALUE`);
    const key = line.slice(0, at).trim();
    if (pairs.has(key)) throw new Error(`${what}: ${key} stands there twice`);
    pairs.set(key, line.slice(at + 1));
  }
  return Object.fromEntries(pairs);
}

/** The change that turns `before` into `after`: null takes a key away. Undefined: there is none. */
export function changeOfPairs(
  before: Readonly<Pairs>,
  after: Readonly<Pairs>,
): Record<string, string | null> | undefined {
  const gone = Object.keys(before).filter((key) => !Object.hasOwn(after, key));
  const changed = Object.entries(after).filter(([key, value]) => before[key] !== value);
  const change = [...gone.map((key): [string, null] => [key, null]), ...changed];
  return change.length === 0 ? undefined : Object.fromEntries(change);
}
