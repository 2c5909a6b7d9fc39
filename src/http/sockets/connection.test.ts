/** Messages in both directions do not leak memory. */
import assert from "node:assert/strict";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { after, before, test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { type RawData, WebSocket } from "ws";
import { Api, keys } from "../../../test/api.ts";
import type { FakePty } from "../../../test/fakes/agent.ts";
import { waitFor } from "../../../test/wait-for.ts";

setFlagsFromString("--expose-gc");
const collect: () => void = runInNewContext("gc");

const round = 5_000;
const rounds = 8;
/** The least that a leak would keep of a message: pointers. */
const leakedBytes = 32;

const api = new Api();
before(() => api.app.listen({ host: "127.0.0.1", port: 0 }));
after(() => api.app.close());

function heapBytes(): number {
  for (let i = 0; i < 3; i++) collect();
  return process.memoryUsage().heapUsed;
}

test("40 000 messages in each direction keep no memory", async () => {
  const { port } = api.app.server.address() as AddressInfo;
  const id = await api.capsule();
  const path = `ws://127.0.0.1:${port}/v1/capsules/${id}/pty`;
  const socket = new WebSocket(path, { headers: { "x-api-key": keys.red } });
  await once(socket, "open");
  socket.send('{"type":"start"}');
  await once(socket, "message");
  const pty = api.agent(id).ptys[0] as FakePty;
  pty.echoes = false;
  let typed = 0;
  pty.write = () => ++typed > 0;
  let printed = 0;
  let wake = () => {};
  socket.on("message", (data: RawData) => {
    const message = JSON.parse(data.toString()) as { type: string; data: string };
    if (message.type !== "output") return; // pings, on a slow machine
    printed += Buffer.from(message.data, "base64").length;
    wake();
  });
  const heaps: number[] = [];
  for (let done = 1; done <= rounds; done++) {
    for (let i = 0; i < round; i++) socket.send('{"type":"input","data":"eA=="}');
    await waitFor(`${done * round} keys are typed`, () => typed >= done * round);
    for (let i = 0; i < round; i++) {
      pty.print("pty", "y");
      const heard = new Promise<void>((resolve) => {
        wake = resolve;
      });
      if (printed < (done - 1) * round + i + 1) await heard;
    }
    heaps.push(heapBytes());
  }
  assert.deepEqual([typed, printed, pty.consumedBytes], [rounds * round, rounds * round, rounds * round]);
  const growths = heaps.slice(2).map((bytes, at) => bytes - heaps[at + 1]!);
  const usualBytes = growths.toSorted((a, b) => a - b)[growths.length / 2]!;
  assert.ok(usualBytes < round * leakedBytes, `each round adds ${usualBytes} bytes: ${growths}`);
  socket.close();
  await once(socket, "close");
});
