/** A full disk of the host, before a change and during it, and a full disk of the guest. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, readdirSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { after, afterEach, before, describe, test } from "node:test";
import type { StepName } from "../../src/host/steps.ts";
import type { Reply, TestCapsule } from "../client.ts";
import { SmallDisk } from "../small-disk.ts";
import { waitFor } from "../wait-for.ts";
import { assertMarked, mark } from "./marks.ts";
import { World } from "./world.ts";

const mib = 1 << 20;

const disk = new SmallDisk();
const skip = disk.mount() ?? false;

function assertNoSpace({ status, json, text }: Reply): void {
  assert.equal(status, 507, text);
  assert.equal(json.error.code, "no_space");
}

describe("a full disk", { skip }, () => {
  let world: World;
  let usedBytes: number;
  before(async () => {
    const errors = [/needs \d+ MiB of disk and only \d+ MiB are free/, /failed: the disk is full: ENOSPC/];
    world = await World.start({ parent: disk.path, errors });
    process.once("exit", () => disk.unmount("--lazy"));
    usedBytes = disk.freeBytes;
  });
  afterEach(() => disk.free());
  after(async () => {
    try {
      await world?.[Symbol.asyncDispose]();
    } finally {
      disk.unmount();
    }
  });

  const pause = (capsule: TestCapsule) => world.client.call("POST", `${capsule.path}/pause`);
  const capture = (capsule: TestCapsule) =>
    world.client.call("POST", "/v1/snapshots", { json: { sandbox_id: capsule.id, name: "made" } });

  /** The capsule is intact, and the same pause works now. */
  async function assertUnharmed(capsule: TestCapsule): Promise<void> {
    await world.assertConsistent();
    disk.free();
    await assertMarked(capsule);
    await capsule.pause();
    await capsule.resume();
    await assertMarked(capsule);
  }

  test("pause, capture and create are refused; the capsule keeps running, and with free space they work", async () => {
    await using capsule = await world.client.capsule();
    await mark(capsule);
    disk.fill(40 * mib);
    assertNoSpace(await pause(capsule));
    assertNoSpace(await capture(capsule));
    const refused = await world.client.call("POST", "/v1/capsules");
    assert.deepEqual([refused.status, refused.json.error.code], [503, "no_capacity"], refused.text);
    const health = await waitFor("/healthz is 503", async () => {
      const reply = await world.client.call("GET", "/healthz");
      return reply.status === 503 && reply;
    });
    assert.match(health.json.reasons.join(), /^the host's disk is full: /);
    assert.equal((await world.views()).length, 1);
    assert.deepEqual(await world.snapshots(), []);
    await assertMarked(capsule);
    await assertUnharmed(capsule);
  });

  test("lost folders go before a create is refused", async () => {
    const lost = join(world.server.dataDir, "lost+found", "capsules");
    mkdirSync(join(lost, "cl-lost"), { recursive: true });
    execFileSync("fallocate", ["-l", String(100 * mib), join(lost, "cl-lost", "disk.qcow2")]);
    disk.fill(50 * mib);
    await using capsule = await world.client.capsule();
    await mark(capsule);
    assert.deepEqual(readdirSync(lost), []);
  });

  const changes: { what: string; change: typeof pause; fails: StepName[]; either: StepName[] }[] = [
    { what: "pause", change: pause, fails: ["save.frozen"], either: ["save.stopped", "save.written"] },
    { what: "capture", change: capture, fails: ["save.frozen", "save.published"], either: ["capture.written"] },
  ];
  for (const { what, change, fails, either } of changes) {
    for (const step of [...fails, ...either]) {
      test(`it fills up at ${step} of a ${what}, which succeeds or leaves no trace`, async (t) => {
        const { id } = await world.client.capsule();
        await mark(world.capsule(id));
        await world.capsule(id).sh("head -c 30000000 /dev/urandom > /dev/shm/ballast");
        await world.restart("SIGTERM", `${step}/stop`);
        await using capsule = world.capsule(id);
        const reply = await world.atStep(
          () => change(capsule),
          async () => disk.fill(0),
        );
        t.diagnostic(`${what}: ${reply.status}`);
        if (either.includes(step) && reply.status === 200) {
          disk.free();
          await capsule.resume();
          await assertMarked(capsule);
        } else if (either.includes(step) && reply.status === 201) {
          disk.free();
          await using made = await world.client.capsule({ template: "made" });
          await assertMarked(made);
        } else {
          assertNoSpace(reply);
          assert.deepEqual(await world.snapshots(), []);
          await assertUnharmed(capsule);
        }
        await world.client.call("DELETE", "/v1/snapshots/made");
      });
    }
  }

  test("no byte free: a writing guest waits for space and loses nothing, and DELETE frees some", async () => {
    // With a reserve the guest's writes are slowed down within a second, and it may never meet the full disk.
    await world.restart("SIGTERM", undefined, { CAPSULE_DISK_RESERVE_MB: "0" });
    await using writer = await world.client.capsule();
    await mark(writer);
    const other = await world.client.capsule();
    disk.fill(0);
    const script = "head -c 30000000 /dev/zero | tr '\\0' x > /root/big && sync && echo whole";
    const writing = writer.sh(script, { timeout: 0 });
    await waitFor("the guest is blocked", async () => disk.freeBytes === 0 && (await isSilent(writer)));
    assertNoSpace(await pause(writer));
    assert.equal((await writer.view()).status, "running");
    await other.destroy();
    disk.free();
    assert.equal(await writing, "whole");
    assert.equal(await writer.sh("tr -d x < /root/big | wc -c; stat -c %s /root/big"), "0\n30000000");
    await assertUnharmed(writer);
  });

  async function isSilent(capsule: TestCapsule): Promise<boolean> {
    const ping = await capsule.exec({ cmd: "true" }, { signal: AbortSignal.timeout(1_000) }).catch(() => undefined);
    return ping === undefined;
  }

  test("a start that has no room for the template's base answers, and creates capsules when there is room", async () => {
    const capsule = await world.client.capsule();
    await mark(capsule);
    await capsule.pause();
    await world.server.kill("SIGTERM");
    const bases = join(world.server.dataDir, "bases");
    const aside = join(disk.path, "aside");
    renameSync(bases, aside);
    mkdirSync(bases);
    disk.fill(30 * mib);
    await world.restart("SIGTERM");
    assert.equal((await world.capsule(capsule.id).view()).status, "paused");
    const { status, json } = await world.client.call("GET", "/healthz");
    assert.deepEqual([status, json.creates], [503, false]);
    disk.free();
    for (const name of readdirSync(aside)) renameSync(join(aside, name), join(bases, name));
    rmSync(aside, { recursive: true });
    await using made = await world.client.capsule();
    await mark(made);
    await world.capsule(capsule.id).resume();
    await assertMarked(world.capsule(capsule.id));
    await world.capsule(capsule.id).destroy();
  });

  test("in the end the disk is as empty as at the start", async () => {
    await world.assertConsistent();
    await world.assertNoResidue();
    assert.ok(usedBytes - disk.freeBytes < 4 * mib, `${usedBytes - disk.freeBytes} bytes more are used`);
  });
});

describe("a full disk inside", () => {
  let world: World;
  before(async () => {
    world = await World.start({ errors: [/"message":"\/root\/file does not fit: no space left"/] });
  });
  after(() => world[Symbol.asyncDispose]());

  test("a write is refused with 507 and leaves the old file; the capsule can be paused, resumed and cleaned up", async () => {
    await using capsule = await world.client.capsule();
    await mark(capsule);
    const filling = "for size in 2G 1G 500M 200M 100M 50M 20M 10M 5M 1M 100K 4K; do ";
    await capsule.sh(
      `mkdir /fill; ${filling} while fallocate -l $size /fill/$size.$RANDOM; do :; done; done 2>/dev/null; true`,
    );
    const form: [string, string | Uint8Array][] = [
      ["path", "/root/file"],
      ["file", Buffer.alloc(3 * mib, 1)],
    ];
    const { status, json } = await world.client.call("POST", `${capsule.path}/files/write`, { form });
    assert.deepEqual([status, json?.error.code], [507, "no_space"]);
    await capsule.pause();
    await capsule.resume();
    await assertMarked(capsule);
    await capsule.sh("rm -r /fill");
    await world.client.expect(204, "POST", `${capsule.path}/files/write`, { form });
  });
});
