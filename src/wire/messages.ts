/** What all WebSocket conversations share: a message is a JSON object in a text frame, told apart by its `type`. */
import type { Static, TSchema } from "typebox";
import { type Check, compileCheck } from "./validation.ts";

export type Decoded<T> = { message: T } | { problem: string };

/** A codec of the messages one side may send, by their `type`. Fields it does not know are ignored. */
export function messageDecoder<const Schemas extends Record<string, TSchema>>(
  schemas: Schemas,
): (text: string) => Decoded<Static<Schemas[keyof Schemas]>> {
  type Message = Static<Schemas[keyof Schemas]>;
  const checks = new Map<unknown, Check<unknown>>();
  for (const [type, schema] of Object.entries(schemas)) checks.set(type, compileCheck(schema));
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
