/** The table of docs/operations/expose.md of how long proxies and clients keep an idle connection. */
import { readFileSync } from "node:fs";
import { resolve } from "node:path";

const document = resolve(import.meta.dirname, "../docs/operations/expose.md");
const heading = "| proxy or client | keeps an idle connection for |\n|---|---|\n";
const secondsOf: Record<string, number> = { s: 1, min: 60, h: 3_600 };

export interface IdleLimit {
  name: string;
  /** The longest of those that it has; undefined when it has no limit of its own. */
  maxSec: number | undefined;
  said: string;
}

/** Throws when the table is not there. */
export function idleLimits(text = readFileSync(document, "utf8")): IdleLimit[] {
  const at = text.indexOf(heading);
  if (at === -1) throw new Error("docs/operations/expose.md has no table of idle limits");
  const rows = text
    .slice(at + heading.length)
    .split("\n\n", 1)[0]!
    .trimEnd()
    .split("\n");
  return rows.map((row) => {
    const [, name = "", said = ""] = /^\| (.*) \| (.*) \|$/.exec(row) ?? [];
    const all = [...said.matchAll(/(\d+) (s|min|h)\b/g)].map(([, count, unit]) => Number(count) * secondsOf[unit!]!);
    return { name, said, maxSec: all.length === 0 ? undefined : Math.max(...all) };
  });
}
