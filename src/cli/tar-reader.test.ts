/** Headers of an archive, which a capsule may fill with anything. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { type Member, pax, tar } from "../../test/tar.ts";
import { membersOf, type TarMember } from "./tar-reader.ts";

async function* whole(bytes: Uint8Array) {
  yield bytes;
}

async function read(...members: Member[]): Promise<TarMember[]> {
  const found: TarMember[] = [];
  for await (const member of membersOf(whole(tar(...members)))) found.push(member);
  return found;
}

test("a member's records and long names have 1 MiB together", async () => {
  const half = "a".repeat(400_000);
  const parts = [pax({ comment: half }), pax({ "user.b": half }), { name: "L", kind: "L", content: half }];
  await assert.rejects(read(...parts, { name: "a" }), /more than 1048576 bytes of names and attributes/);
  // Each member has its own.
  const apart = parts.flatMap((part, at) => [part, { name: `${at}` }]);
  assert.deepEqual(
    (await read(...apart)).map(({ name }) => name),
    ["0", "1", half],
  );
});

test("a time that no file can have is left out", async () => {
  for (const [text, seconds] of [
    ["1e300", 7],
    ["Infinity", 7],
    ["", 7],
    ["1234567890123", 7],
    ["-1.25", -1.25],
    ["1700000000.5", 1_700_000_000.5],
  ] as const) {
    const [member] = await read(pax({ mtime: text }), { name: "a", mtime: 7 });
    assert.equal(member!.mtimeSec, seconds, text);
  }
});

test("a long name ends at its zero or with its content", async () => {
  for (const end of ["", "\0", "\0rest"]) {
    const parts = ["L", "K"].map((kind) => ({ name: "long", kind, content: `${kind}-name${end}` }));
    const [member] = await read(...parts, { name: "a", kind: "2", link: "b" });
    assert.deepEqual([member!.name, member!.target], ["L-name", "K-name"]);
  }
});
