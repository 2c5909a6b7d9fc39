import assert from "node:assert/strict";
import { test } from "node:test";
import { FakeTransport } from "../../../test/fakes/stream-transport.ts";
import { InputGate } from "./client-input.ts";

const mib = 1024 * 1024;

test("messages of one byte stop the client's sending at 1 MiB, and wait in blocks of 64 KiB", () => {
  const transport = FakeTransport.withoutCredit();
  let isPaused = false;
  const connection = {
    pause: () => {
      isPaused = true;
    },
    resume: () => {
      isPaused = false;
    },
  };
  const gate = new InputGate(connection, {
    write: (bytes) => transport.stream.send(bytes),
    onDrain: (callback) => {
      transport.onDrained = callback;
    },
  });
  let messages = 0;
  for (; !isPaused && messages < 2 * mib; messages++) gate.write(Buffer.of(messages & 0xff));
  assert.equal(messages, mib + 1);
  for (let granted = 0; granted < mib; granted += 262_144) transport.grant(262_144);
  assert.equal(isPaused, true);
  transport.grant(1);
  assert.equal(isPaused, false);
  const frames = transport.take();
  assert.ok(frames.length <= mib / 65_536 + 1, `${frames.length} frames`);
  assert.ok(Buffer.concat(frames).equals(Buffer.from(Array.from({ length: messages }, (_, at) => at & 0xff))));
});
