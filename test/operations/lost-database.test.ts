/** A start, or an operator's command, beside a lost or exchanged database loses nothing. */
import assert from "node:assert/strict";
import { cpSync, existsSync, mkdirSync, readdirSync, renameSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { Client, TestCapsule } from "../client.ts";
import { Server } from "../server.ts";

const timeout = 300_000;
const env = { CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0" };

function moveDatabase(from: string, to: string): void {
  mkdirSync(to, { recursive: true });
  for (const name of readdirSync(from).filter((each) => each.startsWith("capsule.db"))) {
    renameSync(join(from, name), join(to, name));
  }
}

interface Made {
  paused: string;
  stopped: string;
}

/** Makes a paused and a stopped capsule and the template `tools`, each with a file, and ends the server. */
async function fill(server: Server): Promise<Made> {
  const client = await Client.connect(server.url, server.apiKey);
  const captured = await client.capsule();
  await captured.sh("echo kept > /root/file");
  await client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: captured.id, name: "tools" } });
  const capsule = await client.capsule();
  await capsule.sh("echo kept > /root/file");
  await capsule.pause();
  const stopped = await client.capsule();
  await stopped.sh("echo kept > /root/file");
  await stopped.stop();
  client.close();
  await server.kill("SIGTERM");
  return { paused: capsule.id, stopped: stopped.id };
}

/** The capsules are resumed and started, and another one made from the template. */
async function assertWhole(server: Server, { paused: id, stopped }: Made): Promise<void> {
  const client = await Client.connect(server.url, server.apiKey);
  const { json } = await client.expect(200, "POST", `/v1/capsules/${id}/resume`);
  assert.equal(json.status, "running");
  await new TestCapsule(client, stopped).start();
  for (const capsule of [
    new TestCapsule(client, id),
    new TestCapsule(client, stopped),
    await client.capsule({ template: "tools" }),
  ]) {
    assert.equal(await capsule.sh("cat /root/file"), "kept");
  }
  client.close();
}

test("capsules and templates outlive the loss of their database, and an empty one in its place", {
  timeout,
}, async () => {
  await using server = await Server.start({ env });
  const made = await fill(server);

  const folders = () => ["capsules", "templates"].map((name) => readdirSync(join(server.dataDir, name)));
  const before = folders();
  const database = join(server.dataDir, "capsule.db");
  const aside = join(server.dataDir, "..", "aside");
  moveDatabase(server.dataDir, aside);
  await assert.rejects(server.start(), /has 2 capsules and 1 templates, but \S+capsule\.db is missing: put back/);
  await assert.rejects(server.operate("admin", "keys", "list"), /capsule\.db is missing: put back/);
  assert.ok(!existsSync(database), "none is made in its place");

  // A database of another data folder.
  await using other = await Server.start({ env });
  await other.kill("SIGTERM");
  moveDatabase(other.dataDir, server.dataDir);
  await assert.rejects(server.start(), /has 2 capsules and 1 templates, but \S+capsule\.db has no record of any/);
  moveDatabase(server.dataDir, other.dataDir);
  assert.deepEqual(folders(), before);

  moveDatabase(aside, server.dataDir);
  await server.start();
  await assertWhole(server, made);
});

test("beside the database of another data folder they go to lost+found, and moving them back puts them back", {
  timeout,
}, async () => {
  await using server = await Server.start({ env });
  const made = await fill(server);
  const at = (...names: string[]) => join(server.dataDir, ...names);
  const folders = () => ["capsules", "templates"].map((name) => readdirSync(at(name)));
  const before = folders();
  const aside = at("..", "aside");
  moveDatabase(server.dataDir, aside);

  await using other = await Server.start({ env });
  const client = await Client.connect(other.url, other.apiKey);
  const destroyed = await client.capsule();
  await destroyed.destroy();
  const paused = await client.capsule();
  await paused.pause();
  client.close();
  await other.kill("SIGTERM");
  moveDatabase(other.dataDir, server.dataDir);
  cpSync(at("capsules", made.paused), at("capsules", destroyed.id), { recursive: true });
  await server.start();
  assert.deepEqual(folders(), [[], []]);
  assert.deepEqual(
    ["capsules", "templates"].map((name) => readdirSync(at("lost+found", name))),
    before,
    "a destroyed capsule is removed",
  );
  const metrics = await (await fetch(new URL("/metrics", server.url))).text();
  assert.match(metrics, /^capsule_lost_folders 3$/m);
  await server.kill("SIGTERM");
  await server.start(); // what they need stays
  await server.kill("SIGTERM");

  moveDatabase(server.dataDir, other.dataDir);
  moveDatabase(aside, server.dataDir);
  for (const kind of ["capsules", "templates"]) {
    for (const name of readdirSync(at("lost+found", kind))) renameSync(at("lost+found", kind, name), at(kind, name));
  }
  await server.start();
  assert.deepEqual(folders(), before);
  await assertWhole(server, made);
});
