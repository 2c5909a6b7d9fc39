/** Agents without AWAIT, in capsules made by an older daemon. */
import assert from "node:assert/strict";
import { it } from "node:test";
import { FakeGuest } from "../../test/fakes/fake-guest.ts";
import { connectAgent } from "./connection.ts";
import { FrameType } from "./frames.ts";
import { Verb } from "./protocol.ts";
import { RecordWriter } from "./records.ts";

const { OPEN, EVENT, DATA, RESULT, FAIL, CANCEL } = FrameType;
const unknownVerb = new RecordWriter().str("invalid").str("this agent has no verb 22").finish();
const started = new RecordWriter().u16(1).u32(7).str("job").finish();
const exited = new RecordWriter().u32(6).u8(0).u64(5n).finish();

/** A guest without AWAIT; `says` is its answer to ATTACH. */
async function oldGuest(says: (guest: FakeGuest, stream: number) => void): Promise<FakeGuest> {
  return FakeGuest.listen({
    awake: true,
    onFrame: ({ type, stream, payload }, guest) => {
      if (type !== OPEN) return;
      if (payload.readUInt16LE() === Verb.AWAIT) guest.frame(FAIL, stream, unknownVerb);
      else says(guest, stream);
    },
  });
}

it("an exit is awaited by attaching when the agent lacks AWAIT", async () => {
  await using guest = await oldGuest((guest, stream) => {
    guest.frame(EVENT, stream, started);
    guest.frame(DATA, stream, Buffer.from("unread output"), 1);
    guest.frame(RESULT, stream, exited);
  });
  const agent = await connectAgent(guest.socketPath, { deadlineMs: 60_000 });
  assert.equal((await agent.exit({ tag: "job" })).exitCode, 6);
  agent.close();
});

it("an aborted wait detaches", async () => {
  const leaving = new AbortController();
  await using guest = await oldGuest((guest, stream) => {
    guest.frame(EVENT, stream, started);
    leaving.abort(new Error("enough"));
  });
  const agent = await connectAgent(guest.socketPath, { deadlineMs: 60_000 });
  await assert.rejects(agent.exit({ tag: "job" }, leaving.signal), /enough/);
  await guest.heard(({ type }) => type === CANCEL);
  agent.close();
});
