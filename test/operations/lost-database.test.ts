/** A start, or an operator's command, beside a lost or exchanged database loses nothing: it is refused, and says what to do. */
import assert from "node:assert/strict";
import { existsSync, mkdirSync, readdirSync, renameSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { Client, TestCapsule } from "../client.ts";
import { Server } from "../server.ts";

const timeout = 300_000;

test("capsules and templates outlive the loss of their database, and an empty one in its place", {
  timeout,
}, async () => {
  await using server = await Server.start({ env: { CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0" } });
  let client = await Client.connect(server.url, server.apiKey);
  const captured = await client.capsule();
  await client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: captured.id, name: "tools" } });
  const capsule = await client.capsule();
  await capsule.sh("echo kept > /root/file");
  await capsule.pause();
  client.close();
  await server.kill("SIGTERM");

  const folders = () => ["capsules", "templates"].map((name) => readdirSync(join(server.dataDir, name)));
  const before = folders();
  const database = join(server.dataDir, "capsule.db");
  const aside = join(server.dataDir, "..", "aside");
  const move = (from: string, to: string) => {
    for (const name of readdirSync(from).filter((each) => each.startsWith("capsule.db"))) {
      renameSync(join(from, name), join(to, name));
    }
  };
  mkdirSync(aside);
  move(server.dataDir, aside);
  await assert.rejects(server.start(), /has 1 capsules and 1 templates, but \S+capsule\.db is missing: put back/);
  await assert.rejects(server.operate("admin", "keys", "list"), /capsule\.db is missing: put back/);
  assert.ok(!existsSync(database), "none is made in its place");

  // A database of another data folder.
  await using other = await Server.start({ env: { CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0" } });
  await other.kill("SIGTERM");
  move(other.dataDir, server.dataDir);
  await assert.rejects(server.start(), /has 1 capsules and 1 templates, but \S+capsule\.db has no record of any/);
  move(server.dataDir, other.dataDir);
  assert.deepEqual(folders(), before);

  move(aside, server.dataDir);
  await server.start();
  client = await Client.connect(server.url, server.apiKey);
  const { json } = await client.expect(200, "POST", `/v1/capsules/${capsule.id}/resume`);
  assert.equal(json.status, "running");
  assert.equal(await new TestCapsule(client, capsule.id).sh("cat /root/file"), "kept");
  client.close();
});
