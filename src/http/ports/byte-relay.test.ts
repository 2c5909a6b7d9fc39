import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import { Readable, Writable } from "node:stream";
import { text } from "node:stream/consumers";
import { test } from "node:test";
import { Api } from "../../../test/api.ts";
import { bytesOf, GuestServer, ok, PortUrls, parsed } from "../../../test/port-urls.ts";
import { waitFor } from "../../../test/wait-for.ts";
import { ChunkTurns, chunkMinBytes, turnBytes } from "../access/chunk-turns.ts";
import { relayBytes } from "./byte-relay.ts";

const turnUnits = turnBytes / chunkMinBytes;
const chunk = Buffer.alloc(64 * 1024, "x");

/** A sink that takes a chunk when the test says so. */
function slowSink() {
  let taken = 0;
  let take = () => {};
  const sink = new Writable({
    highWaterMark: chunk.length,
    write(bytes: Buffer, _encoding, done) {
      take = () => {
        taken += bytes.length;
        done();
      };
    },
  });
  return { sink, take: () => take(), taken: () => taken };
}

const pace = (turns = new ChunkTurns()) => ({
  teamId: "team",
  turns,
  client: new Writable(),
  onBytes: () => {},
  onEnd: () => {},
});

test("the source is read no faster than the sink takes it", async () => {
  const source = Readable.from(Array.from({ length: 10 }, () => chunk));
  const { sink, take, taken } = slowSink();
  relayBytes(source, sink, pace());
  while (taken() < 10 * chunk.length) {
    await waitFor("a chunk waits in the sink", () => sink.writableLength > 0);
    assert.ok(sink.writableLength <= 2 * chunk.length);
    take();
  }
});

test("a team's bytes take its turns, in their order, and none pass once it is stopped", async () => {
  const turns = new ChunkTurns();
  const count = (3 * turnBytes) / chunk.length;
  const sent = Array.from({ length: count }, () => randomBytes(chunk.length));
  const received: Buffer[] = [];
  let waits = 0;
  const enter = turns.enter.bind(turns);
  turns.enter = (...of) => {
    const turn = enter(...of);
    if (turn !== undefined) waits++;
    return turn;
  };
  const sink = new Writable({
    write(bytes: Buffer, _encoding, done) {
      received.push(bytes);
      done();
    },
  });
  const source = Readable.from(sent);
  const stop = relayBytes(source, sink, pace(turns));
  await once(source, "end");
  await waitFor("all has passed", () => received.length === count);
  assert.ok(Buffer.concat(received).equals(Buffer.concat(sent)));
  assert.ok(waits >= 2);
  stop();
  source.emit("data", chunk);
  assert.equal(received.length, count);
});

test("a large answer and a large body arrive whole through a port's URL", async (t) => {
  const api = new Api();
  const urls = new PortUrls(api);
  await urls.listen();
  t.after(() => urls.close());
  const id = await api.capsule();
  const large = randomBytes(8 << 20);
  const inside = createServer(async (request, response) => {
    const body: Buffer[] = [];
    for await (const bytes of request) body.push(bytes);
    response.end(Buffer.concat(body));
  });
  api.agent(id).servers.set(80, (connection) => inside.emit("connection", connection));
  const socket = await urls.connection();
  socket.write(bytesOf(`80-${id}.localhost`, "/", [`Content-Length: ${large.length}`]).replace("GET", "POST"));
  socket.write(large);
  const answer = Buffer.from(await text(socket.setEncoding("latin1")), "latin1");
  assert.ok(answer.subarray(answer.indexOf("\r\n\r\n") + 4).equals(large));
});

test("the end follows the chunk that waits for its turn", async (t) => {
  const api = new Api();
  const urls = new PortUrls(api);
  await urls.listen();
  t.after(() => urls.close());
  const id = await api.capsule();
  const chunks = (count: number) => `${"1\r\na\r\n".repeat(count)}0\r\n\r\n`;
  const bodyOf = (text: string) => text.slice(text.indexOf("\r\n\r\n") + 4);
  for (const count of [turnUnits, turnUnits + 1, 2 * turnUnits + 1]) {
    GuestServer.answering(api, id, 80, `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${chunks(count)}`);
    assert.equal(bodyOf(await urls.exchange(bytesOf(`80-${id}.localhost`, "/"))), chunks(count));
    const server = new GuestServer(api, id, 81, (connection, text) => {
      if (text.endsWith("0\r\n\r\n")) connection.end(ok);
    });
    const head = bytesOf(`81-${id}.localhost`, "/", ["Transfer-Encoding: chunked"]).replace("GET", "POST");
    assert.equal(parsed(await urls.exchange(head + chunks(count))).status, 200);
    assert.equal(bodyOf(server.heard[0] as string).replaceAll(/[^a]/g, "").length, count);
  }
});
