/** files/archive and files/extract: what the host adds to the guest's work, which is gzip, limits and errors. */
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { request as httpRequest, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { type TestContext, test } from "node:test";
import { gunzipSync, gzipSync } from "node:zlib";
import { Api, keys } from "../../../test/api.ts";
import { waitFor } from "../../../test/wait-for.ts";
import { CapsuleError } from "../../wire/errors.ts";

async function setUp() {
  const api = new Api();
  const id = await api.capsule();
  const agent = api.agent(id);
  const at = `/v1/capsules/${id}/files`;
  const archive = (json: unknown) => api.call("POST", `${at}/archive`, { json });
  const extract = (body: Buffer, path = "/dir") => api.call("POST", `${at}/extract?path=${path}`, { body });
  return { api, id, agent, at, archive, extract };
}

/** Requests over a socket, where an answer can be cut. */
async function listening(t: TestContext, api: Api) {
  await api.app.listen({ port: 0, host: "127.0.0.1" });
  t.after(() => api.app.close());
  const { port } = api.app.server.address() as AddressInfo;
  return (path: string, headers: Record<string, string> = {}) =>
    httpRequest({ port, path, method: "POST", headers: { "x-api-key": keys.red, ...headers } });
}

test("an archive is the guest's bytes, and compressed on request", async () => {
  const { agent, archive } = await setUp();
  const content = Buffer.alloc(300_000, "content");
  agent.files.set("/a", content);
  agent.files.set("/b", Buffer.from("b"));
  const whole = Buffer.concat([content, Buffer.from("b")]);
  for (const format of [undefined, "tar"]) {
    const { status, headers, bytes } = await archive({ paths: ["/a", "/b"], format, base: "/" });
    assert.deepEqual([status, headers["content-type"]], [200, "application/x-tar"]);
    assert.ok(bytes.equals(whole));
  }
  const { headers, bytes } = await archive({ paths: ["/a", "/b"], format: "tar.gz" });
  assert.equal(headers["content-type"], "application/gzip");
  assert.ok(gunzipSync(bytes).equals(whole) && bytes.length < 10_000);
});

test("bad requests of an archive are 400, a missing path 404", async () => {
  const { archive } = await setUp();
  for (const json of [
    {},
    { paths: [] },
    { paths: "/a" },
    { paths: ["a"] },
    { paths: ["/a\0"] },
    { paths: ["/a"], format: "zip" },
    { paths: ["/a"], base: "b" },
    { paths: Array.from({ length: 1_001 }, () => "/a") },
    { paths: [`/${"a".repeat(5_000)}`] },
  ])
    assert.equal((await archive(json)).status, 400, JSON.stringify(json).slice(0, 100));
  assert.equal((await archive({ paths: ["/nope"] })).status, 404);
});

for (const format of ["tar", "tar.gz"]) {
  test(`a failure half-way cuts the connection of a ${format}`, async (t) => {
    const { agent, api, at } = await setUp();
    agent.files.set("/a", randomBytes(3_000_000));
    agent.archiveFailure = new CapsuleError("agent_error", "the guest was lost");
    const post = await listening(t, api);
    const asked = post(`${at}/archive`, { "content-type": "application/json" });
    asked.end(JSON.stringify({ paths: ["/a"], format }));
    const outcome = await Promise.race([
      once(asked, "response").then(async ([response]: IncomingMessage[]) => {
        response!.resume();
        return await Promise.race([
          // Compressed bytes may come so late that the failure is still an answer.
          once(response!, "end").then(() => (response!.statusCode === 502 ? "refused" : "whole")),
          once(response!, "error").then(() => "cut"),
          once(response!, "aborted").then(() => "cut"),
        ]).catch(() => "cut");
      }),
      once(asked, "error").then(() => "cut"),
    ]).catch(() => "cut");
    assert.ok(outcome === "cut" || (format === "tar.gz" && outcome === "refused"), outcome);
  });
}

test("a body is extracted as it is, or decompressed", async () => {
  const { agent, extract } = await setUp();
  const content = Buffer.alloc(500_000, "tar ");
  const two = Buffer.concat([gzipSync(content.subarray(0, 1_000)), gzipSync(content.subarray(1_000))]);
  for (const body of [content, gzipSync(content), two, Buffer.from([0x1f]), Buffer.from([0x1f, 0x8c])]) {
    assert.equal((await extract(body)).status, 204);
    const got = Buffer.concat(agent.extractions.at(-1)!.chunks);
    assert.ok(got.equals(body.length < 10 ? body : content));
    assert.equal(agent.extractions.at(-1)!.path, "/dir");
  }
});

test("a body that is damaged or refused is 400 or 507", async () => {
  const { agent, extract } = await setUp();
  const packed = gzipSync(Buffer.alloc(100_000, "tar "));
  for (const body of [packed.subarray(0, -9), Buffer.from([0x1f, 0x8b, 9, 9, 9]), Buffer.from([0x1f, 0x8b])]) {
    const { status, json } = await extract(body);
    assert.deepEqual([status, json.error.code], [400, "invalid_request"]);
    assert.match(json.error.message, /gzip/);
    assert.ok(agent.extractions.at(-1)!.cancelled);
  }
  assert.equal((await extract(packed, "/full/x")).status, 507);
  assert.equal((await extract(packed, "relative")).status, 400);
  assert.equal((await extract(packed, "")).status, 400);
});

test("an agent without the verbs is 409", async (t) => {
  const { agent, archive, extract } = await setUp();
  const lacks = () => {
    throw new CapsuleError("conflict", "the capsule's agent has no such verb");
  };
  t.mock.method(agent, "archive", lacks);
  t.mock.method(agent, "extract", lacks);
  assert.deepEqual([(await archive({ paths: ["/a"] })).status, (await extract(Buffer.alloc(9))).status], [409, 409]);
});

test("a third archive of a team waits with its compression", async () => {
  const { agent, extract } = await setUp();
  const gate = Promise.withResolvers<void>();
  agent.onExtraction = (upload) => {
    upload.gate = gate.promise;
  };
  const answers = Array.from({ length: 3 }, () => extract(gzipSync(Buffer.alloc(1_000))));
  const begun = () => agent.extractions.filter(({ chunks }) => chunks.length > 0).length;
  await waitFor("two have begun", () => agent.extractions.length === 3 && begun() >= 2);
  const plain = extract(Buffer.alloc(1_000));
  await waitFor("one that is not compressed goes on", () => (agent.extractions[3]?.chunks.length ?? 0) > 0);
  assert.equal(begun(), 3, "two compressed ones, and that one");
  gate.resolve();
  const statuses = (await Promise.all([...answers, plain])).map(({ status }) => status);
  assert.deepEqual(statuses, [204, 204, 204, 204]);
});
