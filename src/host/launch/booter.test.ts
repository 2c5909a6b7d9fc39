/** Boots from a disk layer, with a launcher that does what a test tells it to. */
import assert from "node:assert/strict";
import { existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { pausedFolder } from "../../../test/fakes/paused-folder.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { type CapsuleFile, markStopped, readCapsule, writeVm } from "../disk/capsule-folder.ts";
import type { LiveGuest } from "../guest.ts";
import { Booter } from "./booter.ts";
import { Halted } from "./halted.ts";
import type { Launcher } from "./launcher.ts";

const id = "cl-booted";
const guest = { id } as LiveGuest;

/** The disk of a paused capsule, with the checkpoint that it had before it ran on. */
async function disk(t: TestContext, boot: Launcher["boot"] = async () => guest) {
  const { paths, folder, checkpoint, layer } = await pausedFolder(t, { id, content: "not a file system", revision: 1 });
  const reaped: string[] = [];
  const vmm = { find: async () => [], reap: async (nonce: string) => void reaped.push(nonce) };
  const templates = {
    renewed: async (capsule: CapsuleFile) => capsule,
    requireParent: async () => {},
    image: () => ({}) as never,
  };
  const verifier = { requireSound: () => {}, verifyOnce: () => {} };
  const booter = new Booter({ paths, vmm, templates, verifier, launcher: { boot }, bootMs: 120_000 });
  return { booter, templates, paths, folder, checkpoint, layer, reaped };
}

test("a disk that nobody could read is booted, and is what it was to the host", async (t) => {
  const { booter, layer } = await disk(t);
  assert.equal(await booter.boot(id, { owner: "a team" }), guest);
  assert.equal(readFileSync(layer, "utf8"), "not a file system");
});

test("a capsule without a layer, or without a folder, has nothing to start from", async (t) => {
  const { booter, layer, folder } = await disk(t);
  rmSync(layer);
  const refusal = { code: "invalid_state", message: `cannot start capsule ${id}: it has no disk` };
  await assert.rejects(booter.requireDisk(id), refusal);
  rmSync(folder, { recursive: true });
  await assert.rejects(booter.requireDisk(id), refusal);
  await assert.rejects(booter.boot(id, { owner: "a team" }), refusal);
});

test("a capsule whose parent is gone is refused before anything is started", async (t) => {
  const { booter, templates } = await disk(t, () => assert.fail("it was started"));
  templates.requireParent = async () => {
    throw new CapsuleError("conflict", "gone");
  };
  await assert.rejects(booter.requireDisk(id), { code: "conflict" });
  await assert.rejects(booter.boot(id, { owner: "a team" }), { code: "conflict" });
});

test("a capsule of an older machine boots on the newest, which its file names before QEMU is started", async (t) => {
  const started: (CapsuleFile | undefined)[] = [];
  const { booter, templates, folder } = await disk(t, async (_id, capsule) => {
    started.push(capsule, await readCapsule(folder));
    return guest;
  });
  const before = await readCapsule(folder);
  assert.ok(before !== undefined);
  const machine = { ...before.machine, devices: ["ports:1", "net:1"] };
  templates.renewed = async (capsule) => ({ ...capsule, machine, hasOwnMachine: true });
  await booter.boot(id, { owner: "a team" });
  const renewed = { ...before, machine, hasOwnMachine: true };
  assert.deepEqual(started, [renewed, renewed]);
});

test("a boot ends the VM of an earlier one, and takes the newest layer, also after a resume on a copy", async (t) => {
  const { booter, folder, checkpoint, layer, reaped } = await disk(t);
  await writeVm(folder, { nonce: "n", process: { pid: 2 ** 22 + 1, startTicks: 1 } });
  writeFileSync(join(checkpoint, "disk.qcow2"), "older");
  await booter.boot(id, { owner: "a team" });
  assert.deepEqual(reaped, ["n"]);
  assert.deepEqual(
    [existsSync(join(checkpoint, "disk.qcow2")), readFileSync(layer, "utf8")],
    [false, "not a file system"],
  );
});

test("a failed boot leaves the disk, and no journal of a VM; a stopped capsule is still one", async (t) => {
  const { booter, folder, layer } = await disk(t, async () => {
    assert.equal(existsSync(join(folder, "stopped")), false, "it runs now");
    await writeVm(folder, { nonce: "n", process: null });
    throw new CapsuleError("agent_error", "no answer");
  });
  for (const isStopped of [false, true]) {
    if (isStopped) await markStopped(folder);
    await assert.rejects(booter.boot(id, { owner: "a team" }), { code: "agent_error" });
    const left = ["vm.json", "stopped"].map((name) => existsSync(join(folder, name)));
    assert.deepEqual([left, existsSync(layer)], [[false, isStopped], true]);
  }
});

test("a guest that says nothing is booted a second time, with all the time of a boot; one that has halted is not", async (t) => {
  const deadlines: (number | undefined)[] = [];
  const silent = new CapsuleError("agent_error", "the guest agent did not answer");
  const { booter, folder, reaped } = await disk(t, async (_id, _capsule, { deadlineMs }) => {
    deadlines.push(deadlineMs);
    if (deadlines.length === 2) return guest;
    await writeVm(folder, { nonce: "first", process: { pid: 2 ** 22 + 1, startTicks: 1 } });
    throw silent;
  });
  assert.equal(await booter.boot(id, { owner: "a team" }), guest);
  assert.deepEqual([deadlines, reaped], [[30_000, undefined], ["first"]]);

  let boots = 0;
  const halting = await disk(t, async () => {
    boots++;
    throw new Halted("powered_off");
  });
  await assert.rejects(halting.booter.boot(id, { owner: "a team" }), { code: "agent_error" });
  assert.equal(boots, 1);
});

test("boots of one team are one after the other, and another team's is not behind all of them", async (t) => {
  const owners = ["red", "red", "red", "red", "blue"];
  const begun: string[] = [];
  const busy = new Set<string>();
  const arrived = Promise.withResolvers<void>();
  let arrivals = 0;
  const { booter } = await disk(t, (_id, _capsule, { line, owner }) => {
    if (++arrivals === owners.length) arrived.resolve();
    return line.run(owner, async () => {
      assert.equal(busy.has(owner), false, "one of a team at a time");
      busy.add(owner);
      begun.push(owner);
      await arrived.promise;
      busy.delete(owner);
      return guest;
    });
  });
  await Promise.all(owners.map((owner) => booter.boot(id, { owner })));
  assert.equal(begun.length, 5);
  assert.ok(begun.indexOf("blue") <= 2, String(begun));
});
