/** Holds the SDK's types against the schemas of src/wire: if they differ, this file does not compile. */
import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import type { Static } from "typebox";
import type { Capsule } from "../wire/capsule.ts";
import type { Key, NewKey, Session } from "../wire/credentials.ts";
import type { FileEntry } from "../wire/file.ts";
import type { Health } from "../wire/health.ts";
import type { Limits } from "../wire/limits.ts";
import type { NetworkState, PortUrl } from "../wire/network.ts";
import type { Port } from "../wire/port.ts";
import type { Process } from "../wire/process.ts";
import type { Template } from "../wire/template.ts";
import { camelKeys, snakeKeys } from "./key-case.ts";
import type * as sdk from "./resources.ts";

type Camel<Key> = Key extends `${infer Head}_${infer Tail}` ? `${Head}${Capitalize<Camel<Tail>>}` : Key;
type CamelKeys<T> = T extends (infer Item)[]
  ? CamelKeys<Item>[]
  : T extends object
    ? { [Key in keyof T as Camel<Key>]: CamelKeys<T[Key]> }
    : T;
type Keeps<Wire extends Promise, Promise> = [Wire, Promise];
export type Promises = [
  Keeps<CamelKeys<Capsule>, sdk.CapsuleInfo>,
  Keeps<CamelKeys<Template>, sdk.TemplateInfo>,
  Keeps<CamelKeys<FileEntry>, sdk.FileEntry>,
  Keeps<CamelKeys<Process>, sdk.ProcessInfo>,
  Keeps<CamelKeys<Port>, sdk.PortInfo>,
  Keeps<CamelKeys<NetworkState>, sdk.NetworkState>,
  Keeps<CamelKeys<PortUrl>, sdk.PortUrl>,
  Keeps<CamelKeys<Key>, sdk.KeyInfo>,
  Keeps<CamelKeys<Static<typeof NewKey>>, sdk.NewKey>,
  Keeps<CamelKeys<Static<typeof Session>>, sdk.SessionInfo>,
  Keeps<CamelKeys<Health>, sdk.HealthInfo>,
  Keeps<CamelKeys<Limits>, sdk.LimitInfo>,
];

test("keys go to camelCase and back at any depth, and values are unchanged", () => {
  const wire = { memory_mb: 512, list: [{ created_at: "a_b" }, null, 1], nested: { exec_output_max_bytes: true } };
  const ours = { memoryMb: 512, list: [{ createdAt: "a_b" }, null, 1], nested: { execOutputMaxBytes: true } };
  assert.deepEqual(camelKeys(wire), ours);
  assert.deepEqual(snakeKeys(ours), wire);
  const name = fc.stringMatching(/^[a-z]+(_[a-z]+){0,4}$/);
  fc.assert(
    fc.property(fc.dictionary(name, fc.integer()), (value) =>
      assert.deepEqual(snakeKeys(camelKeys(value)), { ...value }),
    ),
  );
});
