/** Connections to ports, of a service whose agent is a fake. */
import assert from "node:assert/strict";
import type { Duplex } from "node:stream";
import { type TestContext, test } from "node:test";
import { Api, keys } from "../../test/api.ts";
import { waitFor, within } from "../../test/wait-for.ts";
import { Client } from "./client.ts";
import { hasCode } from "./errors.ts";

async function setUp(t: TestContext, serve: (connection: Duplex) => void) {
  const api = new Api();
  const url = await api.app.listen({ host: "127.0.0.1", port: 0 });
  t.after(() => api.app.close());
  const id = await api.capsule("running");
  api.agent(id).servers.set(80, serve);
  const capsule = new Client({ url, apiKey: keys.red, retries: 0 }).capsule(id);
  return { api, id, capsule };
}

async function textOf(readable: ReadableStream<Uint8Array>): Promise<string> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of readable as unknown as AsyncIterable<Uint8Array>) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

test("bytes go both ways, and each direction ends alone", async (t) => {
  const { capsule } = await setUp(t, (connection) => connection.pipe(connection));
  await using connection = await capsule.connect(80);
  const writer = connection.writable.getWriter();
  const text = "0123456789".repeat(100_000);
  const received = textOf(connection.readable);
  await writer.write(Buffer.from(text));
  await writer.close();
  assert.ok((await within("the echo", received)) === text);
});

test("a reset, a pause and a closed port are errors with their codes", async (t) => {
  let server: Duplex | undefined;
  const { api, id, capsule } = await setUp(t, (connection) => {
    server = connection;
  });
  const reset = await capsule.connect(80);
  server?.destroy();
  await assert.rejects(textOf(reset.readable), (error) => hasCode(error, "agent_error"));
  const paused = await capsule.connect(80);
  await assert.rejects(capsule.connect(81), (error) => hasCode(error, "port_closed"));
  await api.become(id, "paused");
  await assert.rejects(textOf(paused.readable), (error) => hasCode(error, "invalid_state"));
  await assert.rejects(paused.writable.getWriter().write(Buffer.from("x")), (error) => hasCode(error, "invalid_state"));
});

test("after a cancelled read the written bytes and their end still arrive", async (t) => {
  let heard = "";
  let isOver = false;
  const { capsule } = await setUp(t, (connection) => {
    connection.on("data", (chunk) => {
      heard += chunk;
    });
    connection.on("end", () => {
      isOver = true;
      connection.end();
    });
  });
  const { readable, writable } = await capsule.connect(80);
  await readable.cancel();
  const writer = writable.getWriter();
  await writer.write(Buffer.from("last words"));
  await writer.close();
  await waitFor("the server has all", () => isOver);
  assert.equal(heard, "last words");
});
