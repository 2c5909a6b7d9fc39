/** Uploads of one team, as many as it likes at once: in one turn of the event loop the server passes on a share of them. */
import assert from "node:assert/strict";
import { once } from "node:events";
import type { IncomingMessage } from "node:http";
import net from "node:net";
import { type TestContext, test } from "node:test";
import { Api, keys } from "../../test/api.ts";
import { countTurns } from "../../test/count-turns.ts";
import { FakeUpload } from "../../test/fakes/agent.ts";
import { waitFor, within } from "../../test/wait-for.ts";
import { turnBytes } from "./access/chunk-turns.ts";

const uploads = 100;
const file = Buffer.alloc(300_000, "x");
const form = Buffer.concat([
  Buffer.from('--b\r\nContent-Disposition: form-data; name="path"\r\n\r\n/f\r\n'),
  Buffer.from('--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n'),
  file,
  Buffer.from("\r\n--b--\r\n"),
]);
const tar = Buffer.alloc(307_200);

const sum = (numbers: readonly number[]) => numbers.reduce((a, b) => a + b, 0);

async function serve(t: TestContext) {
  const api = new Api();
  await api.app.listen({ port: 0, host: "127.0.0.1" });
  t.after(() => api.app.close());
  const { port } = api.app.server.address() as net.AddressInfo;
  const connect = async () => {
    const socket = net.connect(port, "127.0.0.1");
    t.after(() => socket.destroy());
    await once(socket, "connect");
    return socket;
  };
  return { api, connect };
}

/** The sizes of the chunks that are passed to a guest, by turn of the loop. The guest takes the first ones when it is `told` to. */
function chunksByTurn(t: TestContext, told: Promise<void>): Map<number, number[]> {
  const turn = countTurns(t);
  const turns = new Map<number, number[]>();
  const { write } = FakeUpload.prototype;
  t.mock.method(FakeUpload.prototype, "write", function (this: FakeUpload, bytes: Uint8Array) {
    if (bytes.length > 0) turns.set(turn(), [...(turns.get(turn()) ?? []), bytes.length]);
    return told.then(() => write.call(this, bytes));
  });
  return turns;
}

function head(target: string, type: string, bytes: number, key: string | null = keys.red): string {
  const access = key === null ? "" : `X-API-Key: ${key}\r\n`;
  const method = key === null ? "PUT" : "POST";
  return `${method} ${target} HTTP/1.1\r\nHost: t\r\n${access}Content-Type: ${type}\r\nContent-Length: ${bytes}\r\n\r\n`;
}

test("of one team's uploads 1 MiB is passed on in a turn, whatever their route", async (t) => {
  const { api, connect } = await serve(t);
  const id = await api.capsule();
  const told = Promise.withResolvers<void>();
  const turns = chunksByTurn(t, told.promise);
  const requests: IncomingMessage[] = [];
  api.app.server.on("request", (request: IncomingMessage) => requests.push(request));
  const { json } = await api.call("POST", `/v1/capsules/${id}/files/url`, { json: { path: "/f", method: "PUT" } });
  const { pathname, search } = new URL(json.url);
  const files = `/v1/capsules/${id}/files`;
  const multipart = "multipart/form-data; boundary=b";
  const kinds: [string, Buffer][] = [
    [head(`${files}/write`, multipart, form.length), form],
    [head(`${files}/stream/write`, multipart, form.length), form],
    [head(`${files}/extract?path=/`, "application/x-tar", tar.length), tar],
    [head(pathname + search, "text/plain", file.length, null), file],
  ];
  const sockets = await Promise.all(Array.from({ length: uploads }, connect));
  const answers = sockets.map(async (socket, index) => {
    const [top, body] = kinds[index % kinds.length]!;
    socket.write(Buffer.concat([Buffer.from(top), body]));
    return Number(String((await once(socket, "data"))[0]).split(" ")[1]);
  });
  const hasNext = ({ readableLength, readableEnded }: IncomingMessage) => readableLength > 0 || readableEnded;
  await waitFor("the next chunk of each is there", () => requests.length === uploads && requests.every(hasNext));
  told.resolve();
  const statuses = await within("all are answered", Promise.all(answers));
  assert.deepEqual(new Set(statuses), new Set([204]), String(statuses));
  const most = Math.max(...[...turns.values()].map((sizes) => sum(sizes.slice(0, -1))));
  assert.ok(most < turnBytes, `before the last chunk of a turn ${most} bytes were passed on in it`);
});

test("an upload whose client leaves while a chunk of it waits for its turn is abandoned", async (t) => {
  const { api, connect } = await serve(t);
  const id = await api.capsule();
  const { capsules } = api.service;
  const use = capsules.use.bind(capsules);
  let ended = 0;
  t.mock.method(capsules, "use", (...given: Parameters<typeof use>) => use(...given).finally(() => ended++));
  const top = head(`/v1/capsules/${id}/files/stream/write`, "multipart/form-data; boundary=b", 2 * form.length);
  const sockets = await Promise.all(Array.from({ length: uploads }, connect));
  for (const socket of sockets) socket.write(Buffer.concat([Buffer.from(top), form.subarray(0, -10)]));
  await waitFor("all have begun", () => api.agent(id).uploads.length === uploads);
  for (const socket of sockets) socket.destroy();
  await waitFor("none uses the capsule", () => ended === uploads);
  assert.ok(api.agent(id).uploads.every(({ cancelled }) => cancelled));
});
