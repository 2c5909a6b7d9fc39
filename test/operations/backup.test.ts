/** A backup of a running server is a data folder that another server can start on. */
import assert from "node:assert/strict";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { mkdir, mkdtemp, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { Client, type TestCapsule, viewAt } from "../client.ts";
import { askMemoryProcess, startMemoryProcess } from "../conformance/memory-process.ts";
import { Server } from "../server.ts";

const timeout = 600_000;

interface Saved {
  accelerator: string;
  tsc_khz: number;
}

/** Fields of a saved machine, and the reason of the refusal. */
const others: [what: string, change: (machine: Saved) => object, reason: RegExp][] = [
  // With KVM the other accelerator is there too, and refuses the processor.
  [
    "accelerator",
    ({ accelerator }) => ({ accelerator: accelerator === "kvm" ? "tcg" : "kvm" }),
    /saved on another machine: (accelerator kvm there, tcg|cpu \S+ there, \S+) here/,
  ],
  [
    "rate of the time stamp counter",
    ({ tsc_khz }) => ({ tsc_khz: Math.round(tsc_khz / 2) }),
    /saved on another machine: time stamp counter \d+ kHz there/,
  ],
  ["processor", () => ({ cpu: "Opteron_G5" }), /saved on another machine: cpu Opteron_G5 there/],
];

/** MiB of the root file system. */
async function sizeOfRoot(capsule: TestCapsule): Promise<number> {
  return Number(await capsule.sh("df --output=size -m / | tail -n 1"));
}

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

  test("paused and stopped capsules and templates are restored unchanged, others as error with a reason", {
    timeout,
  }, async () => {
    const running = await client.capsule();
    const disk_mb = (await running.view()).disk_mb + 1_024;
    const paused = await client.capsule({ disk_mb });
    const sizeMb = await sizeOfRoot(paused);
    assert.ok(sizeMb > (await sizeOfRoot(running)));
    await startMemoryProcess(paused);
    const memory = await askMemoryProcess(paused, "change");
    await paused.sh("echo on-disk > /root/file");
    const view = await paused.pause();
    const captured = await client.capsule({ disk_mb });
    await captured.sh("echo captured > /root/tool");
    await client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: captured.id, name: "tools" } });
    const stopped = await client.capsule({ disk_mb });
    await stopped.sh("echo kept > /root/file");
    await stopped.stop();

    const copy = join(folder, "copy");
    assert.match(
      await server.operate("admin", "backup", copy),
      /has 2 capsules whole; of 1 running ones only the records/,
    );
    assert.equal((await stat(copy)).mode & 0o777, 0o700);
    assert.equal(await running.sh("echo unharmed"), "unharmed");
    await paused.resume();
    await paused.sh("echo later > /root/file");
    await Promise.all([paused, running, stopped].map((each) => each.destroy()));
    await client.expect(204, "DELETE", "/v1/snapshots/tools");

    await using restored = await Server.start({ from: copy, env: { CAPSULE_POOL: "off" } });
    assert.equal(restored.apiKey, server.apiKey);
    const other = await Client.connect(restored.url, restored.apiKey);
    const again: TestCapsule = other.known(paused.id);
    assert.deepEqual(await again.view(), viewAt(restored.url, view));
    await again.resume();
    assert.equal(await askMemoryProcess(again, "tell"), memory);
    assert.equal(await again.sh("cat /root/file"), "on-disk");
    const fromTemplate = await other.capsule({ template: "tools" });
    assert.equal(await fromTemplate.sh("cat /root/tool"), "captured");
    await other.known(stopped.id).start();
    assert.equal(await other.known(stopped.id).sh("cat /root/file"), "kept");
    for (const each of [again, fromTemplate, other.known(stopped.id)]) {
      assert.deepEqual([(await each.view()).disk_mb, await sizeOfRoot(each)], [disk_mb, sizeMb]);
      await each.sh("dd if=/dev/zero of=/root/more bs=1M count=8 conv=fsync status=none");
    }
    const lost = await other.known(running.id).view();
    assert.equal(lost.status, "error");
    assert.match(lost.error_reason, /not paused when this backup was made/);
    await other.known(running.id).destroy();
    other.close();
  });

  // The same machine with changed records stands for another one: what a resume compares is what they say.
  for (const [what, change, reason] of others) {
    test(`on a machine with another ${what} it is refused and not damaged`, { timeout }, async () => {
      const paused = await client.capsule();
      await startMemoryProcess(paused);
      const memory = await askMemoryProcess(paused, "change");
      await paused.pause();
      const captured = await client.capsule();
      await client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: captured.id, name: "tools" } });
      const copy = join(folder, what);
      await server.operate("admin", "backup", copy);
      await paused.destroy();
      await client.expect(204, "DELETE", "/v1/snapshots/tools");

      const manifests = ["capsules", "templates"].flatMap((room) =>
        readdirSync(join(copy, room)).map((name) =>
          join(room, name, room === "capsules" ? "checkpoint" : "", "manifest.json"),
        ),
      );
      assert.equal(manifests.length, 2);
      const whole = manifests.map((path) => readFileSync(join(copy, path), "utf8"));
      for (const path of manifests) {
        const manifest = JSON.parse(readFileSync(join(copy, path), "utf8"));
        Object.assign(manifest.machine, change(manifest.machine));
        writeFileSync(join(copy, path), JSON.stringify(manifest));
      }
      const errors = [/"message":"the template was saved on another machine: /];
      await using restored = await Server.start({ from: copy, env: { CAPSULE_POOL: "off" }, errors });
      let other = await Client.connect(restored.url, restored.apiKey);
      for (let tries = 0; tries < 2; tries++) {
        const { json } = await other.expect(409, "POST", `${paused.path}/resume`);
        assert.equal(json.error.code, "conflict");
        assert.match(json.error.message, reason);
        assert.equal((await other.known(paused.id).view()).status, "paused");
        const { json: made } = await other.expect(201, "POST", "/v1/capsules", { json: { template: "tools" } });
        const { json: failed } = await other.expect(200, "GET", `/v1/capsules/${made.id}?wait=error`);
        assert.match(failed.error_reason, reason);
        await other.known(made.id).destroy();
      }
      const fresh = await other.capsule();
      assert.equal(await fresh.sh("echo served"), "served");
      await fresh.destroy();
      other.close();

      await restored.kill("SIGTERM");
      for (const [at, path] of manifests.entries()) writeFileSync(join(restored.dataDir, path), whole[at]!);
      await restored.start();
      other = await Client.connect(restored.url, restored.apiKey);
      const again = other.known(paused.id);
      await again.resume();
      assert.equal(await askMemoryProcess(again, "tell"), memory);
      const made = await other.capsule({ template: "tools" });
      assert.equal(await made.sh("echo started"), "started");
      await Promise.all([again.destroy(), made.destroy()]);
      other.close();
    });
  }

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
