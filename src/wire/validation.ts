/** Compiled checks of untrusted data: of a value, and of a WebSocket message by its `type`. */
import type { Static, TSchema } from "typebox";
import { Compile } from "typebox/compile";
import { type Flaw, flawOf } from "./flaw.ts";

export type Check<T> = (value: unknown) => { value: T } | { flaw: Flaw };

export function compileCheck<const T extends TSchema>(schema: T): Check<Static<T>> {
  const validator = Compile(schema);
  return (value) => {
    if (validator.Check(value)) return { value: value as Static<T> };
    return { flaw: flawOf(schema, value) };
  };
}

interface ObjectSchema {
  type?: string | string[];
  properties?: Record<string, ObjectSchema>;
  required?: string[];
}

/** Names of the fields that may be left out and have no null of their own. */
export function omittableFields({ properties = {}, required = [] }: ObjectSchema): string[] {
  return Object.keys(properties).filter((name) => !required.includes(name) && !allowsNull(properties[name] ?? {}));
}

function allowsNull({ type = [] }: ObjectSchema): boolean {
  return [type].flat().includes("null");
}

/** Removes each null that stands for a field left out, also in objects within. */
export function dropNulls(schema: ObjectSchema, value: unknown): void {
  if (typeof value !== "object" || value === null) return;
  const fields = value as Record<string, unknown>;
  for (const name of omittableFields(schema)) if (fields[name] === null) delete fields[name];
  for (const [name, inner] of Object.entries(schema.properties ?? {})) {
    if (Object.hasOwn(fields, name)) dropNulls(inner, fields[name]);
  }
}

export type Decoded<T> = { message: T } | { problem: string };

/** Decodes the messages of one side, by their `type`. Unknown fields are ignored. */
export function messageDecoder<const Schemas extends Record<string, TSchema>>(
  schemas: Schemas,
): (text: string) => Decoded<Static<Schemas[keyof Schemas]>> {
  type Message = Static<Schemas[keyof Schemas]>;
  const checks = new Map<unknown, Check<unknown>>();
  for (const [type, schema] of Object.entries(schemas)) {
    const check = compileCheck(schema);
    checks.set(type, (value) => {
      dropNulls(schema, value);
      return check(value);
    });
  }
  const types = [...checks.keys()].join(", ");
  return (text) => {
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch {
      return { problem: "a message must be JSON" };
    }
    const type = (value as { type?: unknown } | null)?.type;
    const check = checks.get(type);
    if (check === undefined) return { problem: `a message's type must be one of ${types}` };
    const result = check(value);
    if ("value" in result) return { message: result.value as Message };
    const { path, problem } = result.flaw;
    return { problem: `the message ${type} cannot be used: ${path === "" ? "it" : path.slice(1)} ${problem}` };
  };
}
