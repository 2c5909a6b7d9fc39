/** The guest's end of a connection whose requests are read: what waits for a reader that is slow. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { InflowShared } from "./inflow.ts";
import type { PortStream } from "./port-stream.ts";
import { GuestSocket } from "./stream-sockets.ts";

test("single bytes that nobody reads wait joined, and are not credited", async () => {
  let consumed = 0;
  const stream = { consumed: (bytes: number) => (consumed += bytes), reset: () => {} } as unknown as PortStream;
  const socket = new GuestSocket(stream, { countBytes: () => {} } as unknown as InflowShared);
  const sent = Buffer.from(Array.from({ length: 100_000 }, (_, at) => at & 255));
  for (const byte of sent) socket.received(Buffer.of(byte));
  socket.receivedEnd();
  assert.equal(consumed, 0);
  const got: Buffer[] = [];
  for await (const chunk of socket.iterator({ destroyOnReturn: false })) got.push(chunk as Buffer);
  assert.ok(Buffer.concat(got).equals(sent));
  assert.ok(got.length < 10, `${got.length} pieces`);
  assert.equal(consumed, sent.length);
});
