/** One setting of the operator: its name, its default, and how its value is parsed. */
import { resolve } from "node:path";

export interface Row<T> {
  name: string;
  /** The default, as it would stand in the environment. */
  fallback: string;
  /** The default in words where it depends on the machine. */
  fallbackSaid: string;
  meaning: string;
  /** Throws an Error whose message completes "CAPSULE_X …". */
  parse(text: string): T;
}

export type Values<Rows extends Record<string, Row<unknown>>> = {
  readonly [Key in keyof Rows]: Rows[Key] extends Row<infer T> ? T : never;
};

export function row<T>(
  name: string,
  fallback: string,
  parse: (text: string) => T,
  meaning: string,
  fallbackSaid = fallback,
): Row<T> {
  return { name, fallback, fallbackSaid, meaning, parse };
}

export type Environment = Record<string, string | undefined>;

/** Values that cannot be read are added to `problems`. */
export function read<Rows extends Record<string, Row<unknown>>>(
  rows: Rows,
  environment: Environment,
  problems: string[],
): Values<Rows> {
  const values: Record<string, unknown> = {};
  for (const [key, each] of Object.entries(rows)) {
    const text = environment[each.name] || each.fallback;
    try {
      values[key] = each.parse(text);
    } catch (error) {
      problems.push(`${each.name} ${(error as Error).message}; it is ${JSON.stringify(text)}`);
    }
  }
  return values as Values<Rows>;
}

/** A model's name, without the properties that QEMU would accept after a comma. */
export function cpuModel(text: string): string {
  if (!/^[A-Za-z0-9][\w.-]*$/.test(text))
    throw new Error("must be a model's name; qemu-system-x86_64 -cpu help lists them");
  return text;
}

export function integer(least: number, most: number): (text: string) => number {
  return (text) => {
    const value = /^\d{1,15}$/.test(text) ? Number(text) : Number.NaN;
    if (!(value >= least && value <= most)) throw new Error(`must be a whole number from ${least} to ${most}`);
    return value;
  };
}

/** FIRST-LAST, two whole numbers that span at least `fewest`. */
export function range(least: number, most: number, fewest: number): (text: string) => { first: number; last: number } {
  return (text) => {
    const [first = Number.NaN, last = Number.NaN] = /^\d{1,15}-\d{1,15}$/.test(text) ? text.split("-").map(Number) : [];
    if (first >= least && last <= most && last - first + 1 >= fewest) return { first, last };
    throw new Error(`must be FIRST-LAST, from ${least} to ${most} and ${fewest} of them at least`);
  };
}

export function oneOf<const T extends string>(...words: T[]): (text: string) => T {
  return (text) => {
    const found = words.find((each) => each === text);
    if (found === undefined) throw new Error(`must be one of ${words.join(", ")}`);
    return found;
  };
}

export function word(text: string): string {
  if (!/^[\x21-\x7e]+$/.test(text)) throw new Error("must be one word of printable characters");
  return text;
}

/** Comma-separated; an empty text means none. Each as browsers send it: lower case, no path, no default port. */
export function origins(text: string): string[] {
  const listed = text === "" ? [] : text.split(",").map((each) => each.trim());
  const bad = listed.find((each) => !URL.canParse(each) || !/^https?:/.test(each) || new URL(each).origin !== each);
  if (bad === undefined) return listed;
  throw new Error(`must be origins such as https://app.example.org, by comma; ${JSON.stringify(bad)} is none`);
}

export function httpUrl(text: string): string {
  if (!URL.canParse(text) || !/^https?:\/\//.test(text)) throw new Error("must be an http or https URL");
  return text;
}

/** As a header can carry it, and too long to be guessed. */
export function bearerToken(text: string): string {
  if (!/^[\x21-\x7e]{16,256}$/.test(text)) throw new Error("must be 16 to 256 printable characters without spaces");
  return text;
}

/** HOST or HOST:PORT; an empty text means none. */
export function peerAddress(text: string): { address: string; port: number | undefined } | undefined {
  if (text === "") return undefined;
  const [, address, port] = /^([A-Za-z0-9.-]{1,253})(?::(\d{1,5}))?$/.exec(text) ?? [];
  if (address === undefined || Number(port ?? 0) > 65_535) throw new Error("must be HOST or HOST:PORT");
  return { address, port: port === undefined ? undefined : Number(port) };
}

/** An empty text means none. */
export function file(text: string): string | undefined {
  return text === "" ? undefined : folder(text);
}

export function folder(text: string): string {
  if (text.includes("\0")) throw new Error("must be a path");
  return resolve(text);
}
