/** Streams of a service whose agent is a fake. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Api, keys } from "../../test/api.ts";
import { Client } from "./client.ts";

test("the text of output that ends within a character has U+FFFD for it, and the bytes are as they were", async (t) => {
  const api = new Api();
  const url = await api.app.listen({ host: "127.0.0.1", port: 0 });
  t.after(() => api.app.close());
  const id = await api.capsule("running");
  api.agent(id).onRun = (run) => {
    run.print("stdout", Buffer.from("ok é").subarray(0, -1));
    run.print("stderr", "é");
    run.exit(3);
  };
  const stream = await new Client({ url, apiKey: keys.red }).capsule(id).stream("hang");
  const texts = { stdout: "", stderr: "" };
  const bytes: Uint8Array[] = [];
  for await (const chunk of stream) {
    texts[chunk.channel] += chunk.text;
    if (chunk.channel === "stdout") bytes.push(chunk.bytes);
  }
  assert.deepEqual(texts, { stdout: "ok \ufffd", stderr: "é" });
  assert.deepEqual(Buffer.concat(bytes), Buffer.from("ok é").subarray(0, -1));
  assert.equal(stream.exitCode, 3);
});
