/** A compiled check of untrusted data, with one sentence about the first thing that is wrong. */
import type { Static, TSchema } from "typebox";
import { Compile } from "typebox/compile";

export interface Flaw {
  /** Where, as in `/args/0`; empty for the whole value. */
  path: string;
  /** What, as in `must be integer`. */
  problem: string;
}

export type Check<T> = (value: unknown) => { value: T } | { flaw: Flaw };

export function compileCheck<const T extends TSchema>(schema: T): Check<Static<T>> {
  const validator = Compile(schema);
  return (value) => {
    if (validator.Check(value)) return { value: value as Static<T> };
    const error = validator.Errors(value)[0];
    return { flaw: { path: error?.instancePath ?? "", problem: error === undefined ? "is invalid" : said(error) } };
  };
}

function said(error: { keyword: string; message: string; params: object }): string {
  if (error.keyword === "boolean") return "is not allowed";
  if (error.keyword !== "enum") return error.message;
  const { allowedValues } = error.params as { allowedValues: unknown[] };
  return `must be one of ${allowedValues.join(", ")}`;
}
