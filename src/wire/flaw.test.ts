/** The first flaw of a value: the one that TypeBox lists first, found without a visit to every part. */
import assert from "node:assert/strict";
import { test } from "node:test";
import Type from "typebox";
import { Errors } from "typebox/value";
import { capsuleNamePattern } from "./defaults.ts";
import { Environment } from "./schema.ts";
import { compileCheck } from "./validation.ts";

const schema = Type.Object({
  cmd: Type.String({ minLength: 1 }),
  args: Type.Optional(Type.Array(Type.String(), { maxItems: 400_000 })),
  envs: Type.Optional(Environment),
  mode: Type.Optional(Type.String({ enum: ["a", "b"] })),
  strict: Type.Optional(Type.Object({ only: Type.Optional(Type.Number()) }, { additionalProperties: false })),
});
const check = compileCheck(schema);

for (const value of [
  [],
  null,
  { args: [1] },
  { cmd: 1 },
  { cmd: "" },
  { cmd: "c", args: {} },
  { cmd: "c", args: ["a", "b", null, 4] },
  { cmd: "c", args: Array(400_001).fill("") },
  { cmd: "c", envs: { ok: "v", "a=b": "v" } },
  { cmd: "c", envs: { ok: "v", "a/b~c": 1 } },
  { cmd: "c", envs: [] },
  { cmd: "c", mode: "c" },
  { cmd: "c", strict: { only: 1, other: 2 } },
  { cmd: "c", strict: { only: "1" } },
]) {
  test(`of ${JSON.stringify(value).slice(0, 60)} it is TypeBox's first`, () => {
    const [first] = Errors(schema, value);
    const result = check(value);
    assert.ok("flaw" in result);
    assert.equal(result.flaw.path, first!.instancePath);
    if (first!.keyword !== "enum" && first!.keyword !== "boolean") assert.equal(result.flaw.problem, first!.message);
  });
}

test("a capsule's name that is refused is told its form in words", () => {
  const result = compileCheck(Type.Object({ name: Type.String({ pattern: capsuleNamePattern }) }))({ name: "a b" });
  assert.ok("flaw" in result);
  assert.deepEqual(result.flaw, {
    path: "/name",
    problem: "must be 1 to 63 of a–z, 0–9 and - within, not beginning with cl-",
  });
});

/** A list that counts how often its items are read. */
function counted(items: readonly unknown[]): { list: unknown[]; reads: () => number } {
  let reads = 0;
  const list = new Proxy([...items], {
    get(target, name, receiver) {
      if (typeof name === "string" && /^\d+$/.test(name)) reads++;
      return Reflect.get(target, name, receiver) as unknown;
    },
  });
  return { list, reads: () => reads };
}

test("no item after the bad one is read, and those before it twice", () => {
  const size = 10_000;
  const { list, reads } = counted([...Array(size).fill("good"), ...Array(size).fill(0)]);
  const result = check({ cmd: "c", args: list });
  assert.deepEqual(result, { flaw: { path: `/args/${size}`, problem: "must be string" } });
  assert.ok(reads() <= 3 * size + 10, `${reads()} reads`);
});

test("no item is read when a field is missing", () => {
  const { list, reads } = counted(Array(10_000).fill(0));
  assert.deepEqual(check({ args: list }), { flaw: { path: "", problem: "must have required properties cmd" } });
  assert.ok(reads() <= 10, `${reads()} reads`);
});
