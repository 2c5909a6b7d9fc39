/** Deadlines of capsules, and requests that resume them, over a kill of the server. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, TestCapsule, viewAt } from "../client.ts";
import { Server } from "../server.ts";

test("lifetimes, retentions and auto_resume hold over a kill -9 of the server", async () => {
  await using server = await Server.start();
  let client = await Client.connect(server.url, server.apiKey);
  const made = await Promise.all([client.capsule(), client.capsule(), client.capsule(), client.capsule()]);
  const [ending, pausing, kept, resumed] = made;
  await kept!.pause();
  const long = { lifetime_sec: 3_600, on_expiry: "pause", retention_sec: 3_600, auto_resume: true };
  const { json: before } = await client.expect(200, "PATCH", resumed!.path, { json: long });
  await client.expect(200, "PATCH", ending!.path, { json: { lifetime_sec: 1 } });
  await client.expect(200, "PATCH", pausing!.path, { json: { lifetime_sec: 1, on_expiry: "pause" } });
  await client.expect(200, "PATCH", kept!.path, { json: { retention_sec: 1 } });
  await server.kill("SIGKILL");
  await server.start();
  await server.adopted();
  client = await Client.connect(server.url, server.apiKey);
  const after = made.map(({ id }) => new TestCapsule(client, id));
  await Promise.all([
    gone(after[0]!), // whether its deadline has passed before or after the start
    after[1]!.until("paused"),
    gone(after[2]!),
  ]);
  assert.deepEqual(await after[3]!.view(), viewAt(server.url, before));
  await after[3]!.pause();
  await server.kill("SIGKILL");
  await server.start();
  await server.adopted();
  client = await Client.connect(server.url, server.apiKey);
  assert.equal(await new TestCapsule(client, resumed!.id).sh("echo resumed"), "resumed");
});

async function gone({ client, path }: TestCapsule): Promise<void> {
  const { status } = await client.call("GET", `${path}?wait=stopped&timeout=120`);
  assert.equal(status, 404);
}
