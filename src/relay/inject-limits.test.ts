/** Limits of connections whose requests get headers: how often, how long, and how much is held. */
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { setImmediate as tick } from "node:timers/promises";
import { TestAuthority } from "../../test/relay/certificates.ts";
import { EchoDialler } from "../../test/relay/echo-dialler.ts";
import { Relayed, testLimits } from "../../test/relay/relayed.ts";
import { ServerDialler, UpstreamServer } from "../../test/relay/upstream-server.ts";
import { ByteBudget } from "./byte-budget.ts";
import type { InflowShared } from "./inflow.ts";
import type { PortStream } from "./port-stream.ts";
import { GuestSocket } from "./stream-sockets.ts";

const zone = { "api.example": ["9.9.9.1"] };
const inject = [{ host: "api.example", headers: { "X-Key": "secret" } }];
const authority = new TestAuthority();
after(() => authority[Symbol.dispose]());

test("each further request of a connection counts as a connection: beyond the limit it is 429", async () => {
  await using server = await new UpstreamServer(authority.sign("api.example")).listen();
  const limits = { ...testLimits, connectionsBurst: 2, connectionsPerSec: 0 };
  const settings = { roots: [authority.certificate], limits };
  await using relay = new Relayed(zone, settings, new ServerDialler(server.port));
  const { peer, run } = await relay.attach({ egress: "public", inject });
  const stream = await peer.connected("9.9.9.1", 80);
  stream.end("GET / HTTP/1.1\r\nHost: api.example\r\n\r\n".repeat(3));
  const statuses = [...(await stream.text()).matchAll(/HTTP\/1\.1 (\d+) /g)].map(([, status]) => Number(status));
  assert.deepEqual(statuses, [200, 200, 429]);
  assert.equal(server.seen.length, 2);
  assert.deepEqual(relay.recent(run), ["allowed api.example 9.9.9.1 443 ×2", "denied limit api.example 443"]);
});

test("a request line that is not whole after 10 seconds is refused, and nothing is dialled", async (t) => {
  const dialler = new EchoDialler();
  await using relay = new Relayed(zone, {}, dialler);
  const { peer, run } = await relay.attach({ egress: "public", inject });
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const stream = await peer.connected("9.9.9.1", 80);
  stream.write("GET / HTTP/1.1\r\nHost: api.exa");
  await peer.addresses("localhost"); // the relay has read the bytes before
  t.mock.timers.tick(9_999);
  assert.equal(relay.recent(run).length, 0);
  t.mock.timers.tick(1);
  stream.end();
  assert.match(await stream.text(), /^HTTP\/1\.1 403 .*an incomplete head/s);
  assert.deepEqual(dialler.dialled, []);
  assert.deepEqual(relay.recent(run), ["denied not listed 9.9.9.1 80"]);
});

test("while a capsule holds its limit, no answer is read on for it", async () => {
  const held = new ByteBudget(100);
  let isTaken = false;
  let queuedBytes = 0;
  const stream = {
    send: (bytes: Uint8Array) => {
      queuedBytes = isTaken ? 0 : bytes.length;
      return isTaken;
    },
    reset() {},
    get queuedBytes() {
      return queuedBytes;
    },
  } as unknown as PortStream;
  const socket = new GuestSocket(stream, { held, heldChanged() {}, countBytes() {} } as unknown as InflowShared);
  const written: string[] = [];
  const write = (name: string) => socket.write(Buffer.alloc(60), () => written.push(name));
  write("without credit");
  assert.equal(held.bytes, 60);
  await tick();
  assert.deepEqual(written, []);
  isTaken = true;
  stream.sink!.drained();
  await tick();
  assert.deepEqual([written, held.bytes], [["without credit"], 0]);
  held.add(100); // of other connections
  write("with credit");
  await tick();
  assert.deepEqual(written, ["without credit"]);
  held.free(1);
  socket.resumeWriting();
  await tick();
  assert.deepEqual(written, ["without credit", "with credit"]);
});
