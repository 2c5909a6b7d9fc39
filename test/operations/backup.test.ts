/** A backup of a running server is a data folder that another server can start on. */
import assert from "node:assert/strict";
import { mkdir, mkdtemp, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { Client, type TestCapsule } from "../client.ts";
import { askKeeper, startKeeper } from "../conformance/keeper.ts";
import { Server } from "../server.ts";

const timeout = 600_000;

describe("capsule backup", () => {
  let folder: string;
  let server: Server;
  let client: Client;
  before(async () => {
    folder = await mkdtemp(join(tmpdir(), "capsule-backup-"));
    server = await Server.start({ env: { CAPSULE_POOL: "off" } });
    client = await Client.connect(server.url, server.apiKey);
  });
  after(async () => {
    client.close();
    await server[Symbol.asyncDispose]();
    await rm(folder, { recursive: true });
  });

  test("paused capsules and templates are restored unchanged, others as error with a reason", { timeout }, async () => {
    const paused = await client.capsule();
    await startKeeper(paused);
    const memory = await askKeeper(paused, "change");
    await paused.sh("echo on-disk > /root/file");
    const view = await paused.pause();
    const captured = await client.capsule();
    await captured.sh("echo captured > /root/tool");
    await client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: captured.id, name: "tools" } });
    const running = await client.capsule();

    const copy = join(folder, "copy");
    assert.match(await server.operate("admin", "backup", copy), /1 paused capsules; 1 others only as records/);
    assert.equal((await stat(copy)).mode & 0o777, 0o700);
    assert.equal(await running.sh("echo unharmed"), "unharmed");
    await paused.resume();
    await paused.sh("echo later > /root/file");
    await Promise.all([paused, running].map((each) => each.destroy()));
    await client.expect(204, "DELETE", "/v1/snapshots/tools");
    await server.kill("SIGTERM");

    await using restored = await Server.start({ from: copy, env: { CAPSULE_POOL: "off" } });
    assert.equal(restored.apiKey, server.apiKey);
    const other = await Client.connect(restored.url, restored.apiKey);
    const again: TestCapsule = other.known(paused.id);
    assert.deepEqual(await again.view(), view);
    await again.resume();
    assert.equal(await askKeeper(again, "tell"), memory);
    assert.equal(await again.sh("cat /root/file"), "on-disk");
    const fromTemplate = await other.capsule({ template: "tools" });
    assert.equal(await fromTemplate.sh("cat /root/tool"), "captured");
    const lost = await other.known(running.id).view();
    assert.equal(lost.status, "error");
    assert.match(lost.error_reason, /not paused when this backup was made/);
    await other.known(running.id).destroy();
    other.close();
  });

  test("refuses an existing folder, or one inside the data folder, and does not change it", async () => {
    const taken = join(folder, "taken");
    await mkdir(taken);
    for (const bad of [taken, join(server.dataDir, "inside"), server.dataDir]) {
      await assert.rejects(server.operate("admin", "backup", bad), bad);
    }
    await assert.rejects(stat(join(server.dataDir, "inside")));
    assert.ok((await stat(taken)).isDirectory());
  });
});
