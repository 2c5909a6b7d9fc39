/**
 * Capsules of a host whose QEMU is another build than the next one's: real daemons with VMs, PostgreSQL and Ceph. Each host has a build and
 * a base of its own, and none of the other's.
 */
import assert from "node:assert/strict";
import {
  appendFileSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  symlinkSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { after, before, describe, test } from "node:test";
import type { TestCapsule } from "../client.ts";
import { buildsIn, copyQemu, qemuOf } from "../qemu-builds.ts";
import { ownImages } from "../server.ts";
import { CephServer, lacksCeph } from "./ceph-server.ts";
import { bare, type Daemon, Daemons, untilConnected, untilRunningAt } from "./daemons.ts";
import { lacksPostgres } from "./postgres-server.ts";

/** Requests for a capsule that is on its way. */
const errors = [/"code":"unavailable"/];
const deadline = { timeout: 600_000 };

/** The same images, beside which a base of the other build is kept. */
function imagesBeside(folder: string): string {
  mkdirSync(folder);
  symlinkSync(resolve(ownImages), join(folder, "images"));
  const accelerator = resolve(ownImages, "../accelerator.json");
  if (existsSync(accelerator)) copyFileSync(accelerator, join(folder, "accelerator.json"));
  return join(folder, "images");
}

describe("two hosts with different builds of QEMU", { skip: lacksPostgres || lacksCeph }, () => {
  const folder = mkdtempSync(join(tmpdir(), "capsule-other-build-"));
  let ceph: CephServer | undefined;
  let daemons: Daemons | undefined;
  before(async () => {
    ceph = await CephServer.startIn(join(folder, "ceph"));
    const program = await copyQemu(join(folder, "qemu"));
    appendFileSync(program, "\0"); // behind all that ELF's headers name
    const images = imagesBeside(join(folder, "store"));
    daemons = await Daemons.start({
      ...{ names: ["one", "two"], bucket: await ceph.newBucket(), errors },
      envOf: (name) => ({ ...bare, ...(name === "two" ? { CAPSULE_QEMU: program } : {}) }),
      filesOf: (name) => ({ keepsQemu: true, ...(name === "two" ? { images } : {}) }),
    });
  });
  after(async () => {
    try {
      await daemons?.[Symbol.asyncDispose]();
    } finally {
      await ceph?.remove();
      rmSync(folder, { recursive: true });
    }
  });

  const buildOf = async ({ server }: Daemon, { id }: TestCapsule) => (await qemuOf(server.dataDir, id)).build;
  const basesOf = ({ server }: Daemon) => readdirSync(join(server.dataDir, "bases"));
  const drain = ({ name }: Daemon) =>
    daemons!.host("one").server.operateWithin(deadline.timeout, "admin", "hosts", "drain", name, "--wait");

  /** It runs, on that host, with a mark in its memory and a process. */
  async function marked({ client, name }: Daemon, body: object = {}) {
    const capsule = await client.capsule({ timeout_sec: 0, ...body });
    assert.equal((await capsule.view()).host, name);
    return { capsule, pid: await capsule.sh("echo memory > /run/mark; sleep 10000 > /dev/null 2>&1 & echo $!") };
  }

  async function assertGoesOn(host: Daemon, { capsule, pid }: Awaited<ReturnType<typeof marked>>) {
    await untilRunningAt(host, capsule.id);
    const script = `cat /run/mark; kill -0 ${pid} && echo alive`;
    assert.equal(await host.client.known(capsule.id).sh(script), "memory\nalive");
  }

  test("a capsule, and a template, run from the build that has saved them, in both directions", deadline, async () => {
    const [one, two] = daemons!.hosts as [Daemon, Daemon];
    const builds = async ({ server }: Daemon) => (await buildsIn(server.dataDir)).sort();
    const [[first], [second]] = [await builds(one), await builds(two)] as [[string], [string]];
    assert.notEqual(first, second);
    assert.deepEqual([await builds(one), await builds(two)], [[first], [second]]);
    const [base] = basesOf(one) as [string];
    assert.ok(!basesOf(two).includes(base));

    const moved = await marked(one);
    assert.equal(await buildOf(one, moved.capsule), first);
    const captured = await marked(one);
    await one.client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: captured.capsule.id, name: "tools" } });
    await drain(one);
    await assertGoesOn(two, moved);
    assert.equal(await buildOf(two, moved.capsule), first);
    assert.deepEqual(await builds(two), [first, second].sort());
    assert.ok(basesOf(two).includes(base), "the base that the capsule stands on");
    const own = await marked(two);
    assert.equal(await buildOf(two, own.capsule), second, "a new capsule");
    const made = await two.client.capsule({ template: "tools" });
    assert.deepEqual([await made.sh("cat /run/mark"), await buildOf(two, made)], ["memory", first]);
    await made.destroy();

    await two.server.kill("SIGTERM");
    await two.server.start();
    await two.server.adopted();
    await untilConnected(two);
    const paused = two.client.known(moved.capsule.id);
    await paused.pause();
    await paused.resume();
    await assertGoesOn(two, moved);
    assert.equal(await buildOf(two, moved.capsule), first, "paused by a server that was started anew");

    await one.server.operate("admin", "hosts", "resume", one.name);
    await daemons!.known();
    await drain(two);
    for (const [each, build] of [
      [moved, first],
      [own, second],
    ] as const) {
      await assertGoesOn(one, each);
      assert.equal(await buildOf(one, each.capsule), build);
    }
    assert.deepEqual(await builds(one), [first, second].sort());
  });
});
