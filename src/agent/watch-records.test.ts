/** Frames of a hostile guest that is asked for a watch. */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { FakeGuest } from "../../test/fakes/fake-guest.ts";
import { waitFor, within } from "../../test/wait-for.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { ChangeStream, TakenChange } from "./agent.ts";
import { connectAgent } from "./connection.ts";
import { FrameType } from "./frames.ts";
import { EventKind, emptyRecord, limits } from "./protocol.ts";
import { RecordWriter } from "./records.ts";

const { DATA, EVENT, RESULT, WINDOW } = FrameType;
const deadlineMs = 60_000;
const asked = { path: "/a", recursive: true, directoriesMax: 10 };

function watching(path = "/a"): Buffer {
  return new RecordWriter().u16(EventKind.WATCHING).str(path).finish();
}

function change(kind: number, path: string, to?: string): Buffer {
  return new RecordWriter().u8(kind).str(path).optionalStr(to).bare();
}

/** A watch of a guest that says these frames; its stream is number 1. */
async function watched(...frames: [type: number, payload: Uint8Array, flags?: number][]) {
  const guest = await FakeGuest.listen();
  const agent = await connectAgent(guest.socketPath, { deadlineMs });
  const taken: TakenChange[] = [];
  const failures: Error[] = [];
  const stream: ChangeStream = agent.watch(asked, {
    watching() {},
    available() {
      for (let next = stream.take(); next !== undefined; next = stream.take()) {
        taken.push(next);
        if (next === "end") return;
      }
    },
    failed: (error) => failures.push(error),
  });
  await guest.heard((heard) => heard.stream === 1);
  for (const [type, payload, flags] of frames) guest.frame(type, 1, payload, flags);
  return { guest, agent, stream, taken, failures };
}

describe("a guest that breaks the protocol loses its connection", () => {
  const breaches: Record<string, Parameters<typeof watched>> = {
    "changes before the directory is watched": [[DATA, change(0, "/a/b")]],
    "an end before that": [[RESULT, emptyRecord]],
    "a directory that is watched twice": [
      [EVENT, watching()],
      [EVENT, watching()],
    ],
    "a relative directory": [[EVENT, watching("a")]],
    "another channel": [
      [EVENT, watching()],
      [DATA, change(0, "/a/b"), 1],
    ],
    "an unknown kind": [
      [EVENT, watching()],
      [DATA, change(6, "/a/b")],
    ],
    "a rename without its end": [
      [EVENT, watching()],
      [DATA, change(3, "/a/b")],
    ],
    "a create with two paths": [
      [EVENT, watching()],
      [DATA, change(0, "/a/b", "/a/c")],
    ],
    "an overflow of a path": [
      [EVENT, watching()],
      [DATA, change(5, "/a")],
    ],
    "a path outside": [
      [EVENT, watching()],
      [DATA, change(0, "/ab")],
    ],
    "a rename to the outside": [
      [EVENT, watching()],
      [DATA, change(3, "/a/b", "/b")],
    ],
    "dots in a path": [
      [EVENT, watching()],
      [DATA, change(0, "/a/../b")],
    ],
    "an empty component": [
      [EVENT, watching()],
      [DATA, change(0, "/a//b")],
    ],
    "NUL in a path": [
      [EVENT, watching()],
      [DATA, change(0, "/a/b\0")],
    ],
    "a path that is too long": [
      [EVENT, watching()],
      [DATA, change(0, `/a/${"b".repeat(4_096)}`)],
    ],
    "the length of one": [
      [EVENT, watching()],
      [DATA, new RecordWriter().u8(0).u32(4_097).bare()],
    ],
    "half a change at the end": [
      [EVENT, watching()],
      [DATA, change(0, "/a/b").subarray(0, 8)],
      [RESULT, emptyRecord],
    ],
  };
  for (const [name, frames] of Object.entries(breaches)) {
    it(name, async () => {
      const { guest, agent, failures, taken } = await watched(...frames);
      await using _ = guest;
      const reason = await within("the connection is closed", agent.closed);
      assert.ok(reason instanceof CapsuleError && reason.message.includes("broke the protocol"), String(reason));
      assert.deepEqual([failures.length, taken], [1, []]);
    });
  }
});

it("changes are read from pieces of any size, and the end follows the last", async () => {
  const bytes = Buffer.concat([change(0, "/a/b"), change(3, "/a/b", "/a/c"), change(5, ""), change(2, "/a")]);
  const pieces = Array.from(bytes, (byte): [number, Uint8Array] => [DATA, Buffer.from([byte])]);
  const { guest, agent, taken } = await watched([EVENT, watching()], ...pieces, [RESULT, emptyRecord]);
  await using _ = guest;
  await waitFor("the end is taken", () => taken.at(-1) === "end");
  assert.deepEqual(taken, [
    { event: "create", path: "/a/b" },
    { event: "rename", path: "/a/b", to: "/a/c" },
    "overflow",
    { event: "remove", path: "/a" },
    "end",
  ]);
  agent.close();
});

it("the guest gets credit for what is taken", async () => {
  const guest = await FakeGuest.listen();
  await using _ = guest;
  const agent = await connectAgent(guest.socketPath, { deadlineMs });
  let arrived = 0;
  const stream = agent.watch(asked, { watching() {}, available: () => arrived++, failed() {} });
  await guest.heard((heard) => heard.stream === 1);
  guest.frame(EVENT, 1, watching());
  const one = change(1, "/a/b");
  const each = Buffer.concat(Array.from({ length: Math.floor(65_536 / one.length) }, () => one));
  for (let sent = 0; sent + each.length <= limits.windowBytes; sent += each.length) guest.frame(DATA, 1, each);
  await waitFor("all has arrived", () => arrived >= 4);
  assert.ok(!guest.frames.some(({ type }) => type === WINDOW), "nothing is taken");
  for (let taken = 0; taken <= limits.grantBytes; taken += one.length) stream.take();
  await waitFor("credit is granted", () => guest.frames.some(({ type }) => type === WINDOW));
  agent.close();
});
