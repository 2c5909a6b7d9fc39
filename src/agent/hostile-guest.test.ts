/** A guest that answers with random and false frames. The connection may end; the host must not fail otherwise. */
import assert from "node:assert/strict";
import { it } from "node:test";
import fc from "fast-check";
import { entriesOf, processesOf } from "../../test/collected.ts";
import { FakeGuest } from "../../test/fakes/fake-guest.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Agent, OutputSink } from "./agent.ts";
import { connectAgent } from "./connection.ts";
import { encodeFrame, FrameType } from "./frames.ts";
import { emptyRecord, endRecord, windowRecord } from "./protocol.ts";
import { RecordWriter } from "./records.ts";

const deadlineMs = 60_000;

const { DATA, END, WINDOW, EVENT, RESULT, FAIL } = FrameType;
const started = new RecordWriter().u32(7).str("proc-00000000").bare();
const startedEvent = new RecordWriter().u16(1).raw(started).finish();
const exited = new RecordWriter().u32(0).u8(0).u64(5n).finish();
const failed = new RecordWriter().str("not_found").str("no \u001b[31m such thing").finish();
const listed = new RecordWriter().raw(started).str("x").strs(["y", "z"]).bare();

/** Valid answers to each call below, so that false frames arrive in every state. */
const truths: [stream: number, type: number, payload: Uint8Array, flags?: number][] = [
  [1, EVENT, startedEvent],
  [1, DATA, Buffer.alloc(5_000), 1],
  [1, DATA, Buffer.alloc(50), 2],
  [1, RESULT, exited],
  [2, RESULT, emptyRecord],
  [3, RESULT, Buffer.concat([started, emptyRecord])],
  [4, DATA, listed],
  [4, DATA, listed.subarray(0, 20)],
  [4, DATA, listed.subarray(20)],
  [4, RESULT, new RecordWriter().u32(1).finish()],
  [5, FAIL, failed],
  [6, FAIL, failed],
  [7, EVENT, new RecordWriter().u16(32).u64(10n).finish()],
  [7, DATA, Buffer.alloc(10)],
  [7, END, endRecord(10)],
  [7, RESULT, emptyRecord],
  [8, WINDOW, windowRecord(100)],
  [8, WINDOW, windowRecord(65_536)],
  [8, RESULT, endRecord(300_000)],
  [9, EVENT, startedEvent],
  [9, DATA, Buffer.alloc(65_536)],
  [9, WINDOW, windowRecord(30_000)],
  [9, FAIL, failed],
  [10, EVENT, startedEvent],
  [10, EVENT, new RecordWriter().u16(2).u64(7n).finish()],
  [10, EVENT, new RecordWriter().u16(2).u64(4n).finish()],
  [10, DATA, Buffer.alloc(5_000), 1],
  [10, RESULT, exited],
  [
    11,
    EVENT,
    new RecordWriter()
      .u16(3)
      .u64(10n)
      .u64(2n ** 60n)
      .finish(),
  ],
  [
    11,
    EVENT,
    new RecordWriter()
      .u16(3)
      .u64(2n ** 40n)
      .u64(0n)
      .finish(),
  ],
  [11, DATA, Buffer.alloc(10)],
  [11, END, endRecord(10)],
  [11, RESULT, emptyRecord],
  [12, EVENT, new RecordWriter().u16(35).str("/x").finish()],
  [12, DATA, new RecordWriter().u8(0).str("/x/y").u8(0).u8(5).str("").u8(0).bare()],
  [12, DATA, new RecordWriter().u8(3).str("/x/y").bare()],
  [12, DATA, new RecordWriter().u8(1).str("/x").bare()],
  [12, RESULT, emptyRecord],
];
const plausible = fc.constantFrom(...truths);
const spoken = ([stream, type, payload, flags = 0]: (typeof truths)[number]) => ({
  stream,
  type,
  payload,
  flags,
  otherEpoch: false,
});
const forged = fc.record({
  type: fc.oneof({ weight: 20, arbitrary: fc.integer({ min: 4, max: 9 }) }, fc.nat(255)),
  flags: fc.oneof({ weight: 8, arbitrary: fc.constantFrom(0, 0, 1, 2) }, fc.nat(255)),
  otherEpoch: fc.integer({ min: 0, max: 9 }).map((n) => n === 0),
  stream: fc.oneof({ weight: 20, arbitrary: fc.integer({ min: 1, max: 12 }) }, fc.nat(0xffff_ffff)),
  payload: fc.oneof(
    plausible.map(([, , payload]) => payload),
    fc.uint8Array({ maxLength: 80 }),
  ),
});
const word = fc.oneof(
  { weight: 30, arbitrary: plausible.map(spoken) },
  { weight: 2, arbitrary: forged },
  fc.uint8Array({ maxLength: 30 }),
);
/** Valid frames with gaps, followed by random ones. */
const speech = fc
  .tuple(fc.subarray(truths), fc.array(word, { maxLength: 40, size: "max" }))
  .map(([truthful, words]) => [...truthful.map(spoken), ...words]);

/** One call of each kind; resolves when all have ended. */
function callEverything(agent: Agent): Promise<unknown>[] {
  const ends: Promise<unknown>[] = [];
  const sink = (): OutputSink => {
    const { promise, resolve } = Promise.withResolvers<void>();
    ends.push(promise);
    return { started() {}, output() {}, exited: () => resolve(), failed: () => resolve() };
  };
  const command = { cmd: "x", args: [] };
  agent.run(command, sink());
  ends.push(agent.probe(), agent.start(command), processesOf(agent), entriesOf(agent, "/", 1, 10), agent.mkdir("/x"));
  ends.push(
    agent.read("/x").then(async ({ body }) => {
      for await (const chunk of body) assert.ok(chunk.length > 0);
    }),
  );
  const upload = agent.write("/x");
  ends.push(upload.write(Buffer.alloc(300_000)).then(() => upload.end()));
  agent.pty(command, { cols: 80, rows: 24 }, sink()).write(Buffer.alloc(300_000));
  agent.attachFrom({ pid: 7 }, 5, sink());
  ends.push(
    agent.logs({ pid: 7 }, { stream: "both" }).then(async ({ body }) => {
      for await (const chunk of body) assert.ok(chunk.length > 0);
    }),
  );
  const { promise, resolve } = Promise.withResolvers<void>();
  ends.push(promise);
  const watch = agent.watch(
    { path: "/x", recursive: true, directoriesMax: 10 },
    {
      watching() {},
      available() {
        for (let change = watch.take(); change !== undefined; change = watch.take()) {
          if (change !== "end") continue;
          resolve();
          return;
        }
      },
      failed: () => resolve(),
    },
  );
  return ends;
}

it("calls to a hostile guest end with errors and nothing else", async () => {
  const strays: unknown[] = [];
  const onStray = (error: unknown) => strays.push(error);
  process.on("unhandledRejection", onStray);
  await fc.assert(
    fc.asyncProperty(speech, async (words) => {
      await using guest = await FakeGuest.listen();
      const agent = await connectAgent(guest.socketPath, { deadlineMs });
      const calls = callEverything(agent);
      const ends = Promise.allSettled(calls);
      await guest.heard((heard) => heard.stream === calls.length);
      for (const word of words) {
        if (word instanceof Uint8Array) guest.say(word);
        else guest.say(encodeFrame({ ...word, epoch: guest.epoch ^ (word.otherEpoch ? 1 : 0) }, word.payload));
      }
      guest.connection?.end();
      const reason = await agent.closed;
      assert.ok(reason instanceof CapsuleError && reason.code === "agent_error", String(reason));
      for (const end of await ends) {
        if (end.status === "rejected") assert.ok(end.reason instanceof CapsuleError, String(end.reason));
      }
    }),
    { numRuns: 300 },
  );
  process.off("unhandledRejection", onStray);
  assert.deepEqual(strays, []);
});
