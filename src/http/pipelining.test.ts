/** Requests on one connection that do not wait for the answers to earlier ones. */
import assert from "node:assert/strict";
import { once } from "node:events";
import net from "node:net";
import { type TestContext, test } from "node:test";
import { Api, keys } from "../../test/api.ts";
import { countTurns } from "../../test/count-turns.ts";
import { waitFor, within } from "../../test/wait-for.ts";
import { pipelinedMax } from "./pipelining.ts";

const get = (path: string, key = "") => `GET ${path} HTTP/1.1\r\nHost: test\r\nX-API-Key: ${key}\r\n\r\n`;

/** A connection, the statuses of its answers, and the turns of the event loop in which requests were handled. */
async function connect(t: TestContext) {
  const api = new Api();
  const turn = countTurns(t);
  const turns: number[] = [];
  api.app.addHook("onSend", async () => void turns.push(turn())); // refused ones, too
  await api.app.listen({ port: 0, host: "127.0.0.1" });
  const socket = net.connect((api.app.server.address() as net.AddressInfo).port, "127.0.0.1");
  t.after(async () => {
    socket.destroy();
    await api.app.close();
  });
  await once(socket, "connect");
  let text = "";
  socket.on("data", (bytes) => {
    text += String(bytes);
  });
  const statuses = () => [...text.matchAll(/HTTP\/1\.1 (\d+)/g)].map(([, status]) => Number(status));
  return { socket, statuses, turns };
}

test("they are answered in order, each handled in a turn of the event loop of its own, refused ones too", async (t) => {
  const { socket, statuses, turns } = await connect(t);
  const texts = Array.from({ length: pipelinedMax + 1 }, (_, index) =>
    index % 2 === 0 ? get("/v1/keys", keys.red) : get("/v1/keys"),
  );
  socket.write(texts.join(""));
  await waitFor("all are answered", () => statuses().length === texts.length);
  assert.deepEqual(
    statuses(),
    texts.map((_, index) => (index % 2 === 0 ? 200 : 401)),
  );
  assert.equal(new Set(turns).size, texts.length);
  socket.write(get("/healthz"));
  await waitFor("the next one is answered", () => statuses().length === texts.length + 1);
});

test("a connection with more of them is reset, and no more are handled", async (t) => {
  const { socket, turns } = await connect(t);
  socket.on("error", () => {});
  socket.write(get("/v1/keys").repeat(800));
  await within("it is closed", once(socket, "close"));
  assert.ok(turns.length <= 1, `${turns.length} were handled`);
});
