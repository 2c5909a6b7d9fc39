/** Frames that a hostile guest may send on its port: only its own capsule suffers; and what the protocol promises a good one. */
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { describe, test } from "node:test";
import { setImmediate as tick } from "node:timers/promises";
import { EchoDialler } from "../../test/relay/echo-dialler.ts";
import { GatewayPeer } from "../../test/relay/gateway-peer.ts";
import { randomOf } from "../../test/relay/mutations.ts";
import { policyOf, Relayed, testLimits } from "../../test/relay/relayed.ts";
import { waitFor } from "../../test/wait-for.ts";
import { encodeFrame, FrameType } from "../agent/frames.ts";
import { emptyRecord, endRecord, windowRecord } from "../agent/protocol.ts";
import { RecordWriter } from "../agent/records.ts";
import { ByteBudget } from "./byte-budget.ts";
import { Port } from "./port.ts";
import type { PortStream } from "./port-stream.ts";
import { Share, Turns } from "./turns.ts";

const { OPEN, DATA, END, WINDOW, EVENT, RESULT, FAIL, CANCEL, NOTICE, RESET } = FrameType;
const connect = (port = 22) => new RecordWriter().u16(51).u32(0x09090909).u16(port).finish();
const limits = { ...testLimits, connectionsBurst: 100_000, connectionsMax: 100_000, teamConnectionsMax: 100_000 };

async function twoCapsules() {
  const dialler = new EchoDialler();
  const relay = new Relayed({}, { limits }, dialler);
  const [bad, good] = [await relay.attach({ egress: "public" }), await relay.attach({ egress: "public" }, "other")];
  return { relay, dialler, bad, good };
}

async function echoes(peer: GatewayPeer): Promise<void> {
  const stream = await peer.connected("9.9.9.9", 22);
  stream.end("still here");
  assert.equal(await stream.text(), "still here");
}

describe("a gateway that breaks the protocol is lost, and no other capsule", () => {
  type Break = (peer: GatewayPeer, stream: number) => void;
  const breaks: Record<string, Break> = {
    "opens a stream with the number of an open one": (peer, stream) => peer.frame(OPEN, stream, connect()),
    "opens a stream with a lower number": (peer, stream) => {
      peer.frame(OPEN, stream + 5, connect());
      peer.frame(OPEN, stream + 3, connect());
    },
    "opens stream 0": (peer) => peer.frame(OPEN, 0, connect()),
    "sends data beyond its window": (peer, stream) => {
      for (const _ of [1, 2, 3]) peer.frame(DATA, stream, Buffer.alloc(16_385));
    },
    "sends data before OPENED": (peer, stream) => {
      peer.frame(OPEN, stream + 1, connect());
      peer.frame(DATA, stream + 1, Buffer.from("x"));
    },
    "sends empty data": (peer, stream) => peer.frame(DATA, stream, Buffer.alloc(0)),
    "sends data after its end": (peer, stream) => {
      peer.frame(DATA, stream, Buffer.from("x"));
      peer.frame(END, stream, endRecord(1));
      peer.frame(DATA, stream, Buffer.from("x"));
    },
    "counts its bytes wrong": (peer, stream) => peer.frame(END, stream, endRecord(1)),
    "grants no credit": (peer, stream) => peer.frame(WINDOW, stream, windowRecord(0)),
    "grants credit without end": (peer, stream) => {
      peer.frame(WINDOW, stream, windowRecord(2 ** 32 - 1));
    },
    "resets with a record that is not empty": (peer, stream) => peer.frame(RESET, stream, endRecord(0)),
    "asks with an unknown verb": (peer, stream) =>
      peer.frame(OPEN, stream + 1, new RecordWriter().u16(49).u16(80).finish()),
    "asks in half a record": (peer, stream) => peer.frame(OPEN, stream + 1, connect().subarray(0, 5)),
    "claims a payload of 1 GiB": (peer) => {
      const frame = encodeFrame({ type: DATA, flags: 0, epoch: 1, stream: 1 }, Buffer.alloc(0));
      frame.writeUInt32LE(2 ** 30, 8);
      peer.socket.write(frame);
    },
    "sends frames of the relay": (peer, stream) => peer.frame(RESULT, stream, emptyRecord),
    "sends a frame of another protocol": (peer) => peer.frame(NOTICE, 0, new RecordWriter().u16(1).finish()),
    "sends an event": (peer, stream) => peer.frame(EVENT, stream, new RecordWriter().u16(1).finish()),
    "cancels a stream": (peer, stream) => peer.frame(CANCEL, stream, emptyRecord),
    "fails a stream": (peer, stream) => peer.frame(FAIL, stream, new RecordWriter().str("x").str("x").finish()),
    "sends a frame without a type": (peer) => peer.frame(0x55, 1, emptyRecord),
    "floods padding": (peer) => peer.socket.write(Buffer.alloc(2 << 20)),
    "floods frames of closed streams": (peer) => {
      for (let count = 0; count < 40; count++) peer.frame(DATA, 4_000_000_000, Buffer.alloc(65_536));
    },
    "floods frames of another epoch": (peer) => {
      for (let count = 0; count < 100_000; count++) peer.frame(RESET, 1, emptyRecord, 0xffff);
    },
  };
  for (const [name, act] of Object.entries(breaks)) {
    test(name, async () => {
      const { relay, dialler, bad, good } = await twoCapsules();
      await using _ = relay;
      const stream = await bad.peer.connected("9.9.9.9", 22);
      act(bad.peer, stream.id);
      assert.match(await relay.lost(bad.run), /^protocol: /);
      assert.equal(relay.connectionsOpen(bad.run), 0);
      assert.ok(dialler.ends.includes("reset"));
      await echoes(good.peer);
    });
  }
});

describe("a gateway that is odd within the rules", () => {
  test("frames of streams that were never opened or are closed are ignored", async () => {
    const { relay, bad } = await twoCapsules();
    await using _ = relay;
    const stream = await bad.peer.connected("9.9.9.9", 22);
    stream.end("x");
    await stream.text();
    for (const id of [stream.id, 77]) {
      bad.peer.frame(RESET, id, emptyRecord);
      bad.peer.frame(DATA, id, Buffer.from("late"));
      bad.peer.frame(WINDOW, id, windowRecord(5));
    }
    await echoes(bad.peer);
  });

  test("a stream reset before its answer is not opened", async () => {
    const { relay, bad } = await twoCapsules();
    await using _ = relay;
    const id = bad.peer.open(connect());
    bad.peer.frame(RESET, id, emptyRecord);
    await echoes(bad.peer);
    assert.ok(!bad.peer.streams.has(id));
    assert.equal(relay.connectionsOpen(bad.run), 0);
  });

  test("a gateway that begins anew gets a new HELLO, and every connection before it is reset", async () => {
    const { relay, dialler, bad } = await twoCapsules();
    await using _ = relay;
    for (const _ of [1, 2]) {
      await bad.peer.settled();
      const { hellos } = bad.peer;
      await bad.peer.connected("9.9.9.9", 22);
      for (const _ of [1, 2]) bad.peer.begin();
      await bad.peer.inStep(hellos + 1);
      await bad.peer.settled(); // a busy relay repeats a HELLO
      await echoes(bad.peer);
    }
    assert.deepEqual(dialler.ends, ["reset", "end", "reset", "end"]);
  });
});

test("whatever is written to a port, its capsule is lost or goes on, and others are served", {
  timeout: 120_000,
}, async (t) => {
  const { random, seed } = randomOf();
  t.diagnostic(`seed ${seed}`);
  const types = [OPEN, DATA, END, WINDOW, RESET, EVENT, 0, 0x99];
  const dialler = new EchoDialler();
  const relay = new Relayed({}, { limits }, dialler);
  await using _ = relay;
  const good = await relay.attach({ egress: "public" }, "other");
  for (let round = 0; round < 100; round++) {
    const { peer, run } = await relay.attach({ egress: "public" });
    for (let count = 0; count < 30; count++) {
      const type = types[Math.floor(random() * types.length)]!;
      const records = [connect(), endRecord(0), windowRecord(100), emptyRecord, randomBytes(random() * 50)];
      peer.frame(type, Math.floor(random() * 4), records[Math.floor(random() * records.length)]!);
    }
    if (random() < 0.3) peer.socket.write(randomBytes(500));
    relay.runs.take({ kind: "detach", run });
  }
  await echoes(good.peer);
});

test("beside guests that flood small frames another is served", { timeout: 120_000 }, async () => {
  const dialler = new EchoDialler();
  const relay = new Relayed({}, { limits: { ...limits, connectionsBurst: 10 } }, dialler);
  await using _ = relay;
  const good = await relay.attach({ egress: "public" }, "other");
  const flood = Buffer.concat(
    Array.from({ length: 50_000 }, (_, index) =>
      encodeFrame({ type: OPEN, flags: 0, epoch: 0, stream: index + 1 }, connect()),
    ),
  );
  for (let count = 0; count < 8; count++) {
    const { peer } = await relay.attach({ egress: "public" });
    const epoch = await epochOf(peer);
    const bytes = Buffer.from(flood);
    for (let at = 0; at < bytes.length; at += 12 + connect().length) bytes.writeUInt16LE(epoch, at + 2);
    peer.socket.write(bytes);
  }
  for (let count = 0; count < 5; count++) await echoes(good.peer);
});

/** The epoch of a peer, by a frame that it would send. */
async function epochOf(peer: GatewayPeer): Promise<number> {
  const write = peer.socket.write.bind(peer.socket);
  let epoch = 0;
  peer.socket.write = ((bytes: Buffer) => {
    epoch = bytes.readUInt16LE(2);
    return true;
  }) as never;
  peer.frame(RESET, 1, emptyRecord);
  peer.socket.write = write as never;
  return epoch;
}

describe("flow control", () => {
  test("a peer outside that reads nothing stops the guest at a window, one that reads fast widens it up to 1 MiB", async () => {
    const dialler = new EchoDialler();
    const relay = new Relayed({}, { limits }, dialler);
    await using _ = relay;
    const { peer } = await relay.attach({ egress: "public" });
    const stream = await peer.connected("9.9.9.9", 22);
    const sent = randomBytes(3 << 20);
    stream.end(sent);
    const chunks: Buffer[] = [];
    for await (const chunk of stream) chunks.push(chunk as Buffer);
    assert.ok(Buffer.concat(chunks).equals(sent));
    const windows = peer.windows.filter(({ stream: id }) => id === stream.id).map(({ credit }) => credit);
    const granted = windows.reduce((sum, credit) => sum + credit, 16_384);
    assert.ok(granted <= sent.length + (1 << 20), `${granted}`);
    assert.ok(Math.max(...windows) >= 1 << 18, `${windows}`);

    dialler.takes = false;
    const stopped = await peer.connected("9.9.9.9", 22);
    stopped.write(randomBytes(1 << 20));
    await echoesWithTaking(peer, dialler);
    assert.ok(!peer.windows.some(({ stream: id }) => id === stopped.id));
    stopped.destroy();
  });

  test("a guest that takes nothing holds up the peer outside, within the limit of its capsule", async () => {
    const dialler = new EchoDialler();
    const relay = new Relayed({}, { limits: { ...limits, heldMaxBytes: 300_000 } }, dialler);
    await using _ = relay;
    const { peer } = await relay.attach({ egress: "public" });
    dialler.greeting = "x".repeat(65_536);
    peer.grants = false;
    const streams = [];
    for (let count = 0; count < 20; count++) streams.push(await peer.connected("9.9.9.9", 22));
    assert.ok(dialler.read <= 10 * 65_536, `${dialler.read}`);
    peer.grants = true;
    for (const stream of streams) {
      peer.frame(WINDOW, stream.id, windowRecord(100_000));
      stream.end();
    }
    for (const stream of streams) assert.equal((await stream.text()).length, 65_536);
  });
});

async function echoesWithTaking(peer: GatewayPeer, dialler: EchoDialler): Promise<void> {
  dialler.takes = true;
  await echoes(peer);
}

test("answers that a gateway does not read are joined, and few of them wait in its socket", async () => {
  const relay = new Relayed({}, { limits }, new EchoDialler());
  await using _ = relay;
  const { peer, socket } = await GatewayPeer.pair();
  let most = 0;
  const write = socket.write.bind(socket) as (bytes: Uint8Array) => boolean;
  socket.write = (bytes: Uint8Array) => {
    const hasRoom = write(bytes);
    most = Math.max(most, socket.writableLength);
    return hasRoom;
  };
  relay.runs.take({ kind: "attach", run: 1, capsule: "cl-1", team: "team", policy: policyOf({}) }, socket);
  await peer.settled(); // a busy relay repeats a HELLO
  most = 0;
  peer.socket.pause();
  const question = new RecordWriter().u16(52).str("localhost").u16(1).finish();
  let isLost = false;
  const lost = relay.lost(1).finally(() => {
    isLost = true;
  });
  while (!isLost) {
    for (let count = 0; count < 500; count++) peer.open(question);
    if (peer.socket.writableNeedDrain)
      await Promise.race([new Promise((resolve) => peer.socket.once("drain", resolve)), lost]);
    else await tick();
  }
  assert.equal(await lost, "the gateway does not read");
  assert.ok(most <= 4 * 65_536, `${most} bytes`);
  peer.socket.destroy();
});

test("bytes that the gateway has read count no more", async () => {
  const { peer, socket } = await GatewayPeer.pair();
  const unwritten = new ByteBudget(1 << 20);
  const owner = { asked: (stream: PortStream) => stream.result({ rcode: 0, records: [] }), lost() {} };
  const share = new Share(new Turns());
  const port = new Port(socket, { share, owner, windows: new ByteBudget(0), unwritten });
  await peer.settled();
  await waitFor("nothing is unwritten", () => {
    port.countUnwritten();
    return unwritten.bytes === 0;
  });
  port.close();
  peer.socket.destroy();
});
