import assert from "node:assert/strict";
import { EventEmitter, once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { FakeDisk } from "../../../test/fakes/fake-disk.ts";
import { DiskSpace } from "../disk/disk-space.ts";
import type { Admitted } from "../host.ts";
import { Admission, createNeed, resumeNeed } from "./admission.ts";

const folder = mkdtempSync(join(tmpdir(), "admission-"));
after(() => rmSync(folder, { recursive: true }));
const mib = 1 << 20;
/** Owners. */
const [a, b, c] = ["a", "b", "c"];
const space = new DiskSpace({ folder, reserveBytes: 0 });
const roomy = { spareBytes: () => 2 ** 40 };
const missing = async () => [];

function admission(availableMb: number, reserveMb = 512): Admission {
  return new Admission({ space, missing, memory: { spareBytes: () => (availableMb - reserveMb) * mib } });
}

const pagesOf = (memoryMb: number) => (memoryMb * mib) / 4_096;

test("a new capsule depends on available memory, not on the memory promised to capsules", async () => {
  await admission(600).admit(a, createNeed(4_096));
  await assert.rejects(admission(570).admit(a, createNeed(4_096)), { code: "no_capacity", message: /memory/ });
  await assert.rejects(admission(0).admit(a, createNeed(128)), { code: "no_capacity" });
});

test("a paused capsule is admitted by what its checkpoint has, with page tables and QEMU", async () => {
  const need = resumeNeed(4_096, pagesOf(3_072));
  await assert.rejects(admission(512 + 600).admit(a, need), { code: "no_capacity", message: /memory/ });
  await assert.rejects(admission(512 + 3_072 + 51).admit(a, need), { code: "no_capacity" }, "12 MiB are page tables");
  await admission(512 + 3_072 + 52).admit(a, need);
  assert.equal(resumeNeed(4_096, 0), createNeed(4_096), "not less than a new one");
});

test("ten paused capsules at once are not admitted against the same memory", async () => {
  const host = admission(512 + 4_000);
  const need = resumeNeed(4_096, pagesOf(1_800));
  const results = await Promise.allSettled(Array.from({ length: 10 }, () => host.admit(a, need)));
  assert.equal(results.filter(({ status }) => status === "fulfilled").length, 2);
});

test("capsules that are being started count until they have started, or failed to", async () => {
  const host = admission(512 + 2 * 64);
  const first = await host.admit(a, createNeed(512));
  const second = await host.admit(a, createNeed(512));
  await assert.rejects(host.admit(a, createNeed(512)), { code: "no_capacity" });
  for (const each of [first, first, second]) each[Symbol.dispose]();
  await assert.rejects(host.admit(a, createNeed(512), 2), { code: "no_capacity" }, "two more are promised");
  await host.admit(a, createNeed(512));
  await host.admit(a, createNeed(512));
  await assert.rejects(host.admit(a, createNeed(512)), { code: "no_capacity" }, "the first was given back once");
});

test("what one owner has in line holds up no other's start, beyond an equal share; whose turn comes too late is refused", async () => {
  const host = admission(512 + 10 * 64);
  const need = createNeed(512);
  const line: Admitted[] = [];
  for (let each = 0; each < 10; each++) line.push(await host.admit(a, need));
  await assert.rejects(host.admit(a, need), { code: "no_capacity" });
  assert.deepEqual(await host.shortages(), [], "ready for others");
  const five: Admitted[] = [];
  for (let each = 0; each < 5; each++) five.push(await host.admit(b, need));
  await assert.rejects(host.admit(b, need), { code: "no_capacity" }, "half of it is its share");
  await host.admit(c, need);

  for (const each of [...line.slice(0, 5), ...five]) each.begin();
  assert.throws(() => line[5]!.begin(), { code: "no_capacity" });
  assert.notDeepEqual(await host.shortages(), []);
  await assert.rejects(host.admit(c, need), { code: "no_capacity" }, "what is under way is missing for everybody");
  five[0]![Symbol.dispose]();
  five[0]![Symbol.dispose]();
  line[5]!.begin();
  assert.throws(() => line[6]!.begin(), { code: "no_capacity" }, "it was given back once");
});

test("without room, admission waits for VMs that are being ended, and measures again after each", async () => {
  let spareMb = 0;
  const looked = new EventEmitter();
  const spareBytes = () => {
    looked.emit("look");
    return spareMb * mib;
  };
  const host = new Admission({ space, missing, memory: { spareBytes } });
  const [first, second] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const going = [first, second].map(({ promise }) => host.trackRelease(promise));
  let look = once(looked, "look");
  const required = host.admit(a, createNeed(512));
  await look;
  look = once(looked, "look");
  first.reject(new Error("it hangs"));
  await assert.rejects(going[0]!, /it hangs/);
  await look;
  look = once(looked, "look");
  spareMb += 64;
  second.resolve();
  await going[1];
  await look;
  await required;
  spareMb -= 64;
  await assert.rejects(host.admit(a, createNeed(512)), { code: "no_capacity" }, "without waiting");
});

test("a missing folder is not reported as a full disk", async () => {
  const nowhere = new DiskSpace({ folder: join(folder, "no", "such"), reserveBytes: 0 });
  const lost = new Admission({ space: nowhere, missing, memory: roomy });
  await assert.rejects(lost.admit(a, createNeed(128)), { code: "ENOENT" });
});

test("a disk with the reserve of pauses and no more has no room for a capsule", async () => {
  const full = new DiskSpace({ folder, reserveBytes: 2 ** 60 });
  const reserved = new Admission({ space: full, missing, memory: roomy });
  const message = /^the host's disk is full: another capsule needs 16 MiB .* MiB of them for pauses$/;
  await assert.rejects(reserved.admit(a, createNeed(128)), { code: "no_capacity", message });
  assert.match((await reserved.shortages()).join(), message);
});

test("the disk of starts is reserved when their turn comes, and free again when they have ended", async () => {
  const disk = new FakeDisk((64 + 20) * mib, 0); // 64 are kept free by every change
  const host = new Admission({ space: disk.space, missing, memory: roomy });
  const [first, second] = [await host.admit(a, createNeed(128)), await host.admit(a, createNeed(128))];
  first.begin();
  const full = { code: "no_capacity", message: /^the host's disk is full: another capsule needs 16 MiB/ };
  assert.throws(() => second.begin(), full, "4 MiB are left");
  await assert.rejects(host.admit(b, createNeed(128)), full);
  first[Symbol.dispose]();
  second.begin();
});

test("the disk of a start is reserved until its VM is loaded", async () => {
  const disk = new FakeDisk((64 + 20) * mib, 0);
  const host = new Admission({ space: disk.space, missing, memory: roomy });
  const [first, second] = [await host.admit(a, createNeed(128)), await host.admitSaved(b, resumeNeed(128, 0))];
  for (const each of [first, second]) {
    each.begin();
    each.loaded();
  }
  await host.admit(c, createNeed(128));
});

test("a loaded resume counts once, by the memory that it has taken; a new capsule until it runs", async () => {
  let spareMb = 1_000;
  const host = new Admission({ space, missing, memory: { spareBytes: () => spareMb * mib } });
  const resumed = await host.admitSaved(a, 400 * mib);
  resumed.begin();
  spareMb -= 400; // its pages
  await assert.rejects(
    host.admit(b, 201 * mib),
    { code: "no_capacity" },
    "while it is loaded, part of it counts twice",
  );
  resumed.loaded();
  {
    using _whole = await host.admit(b, 600 * mib);
  }
  resumed[Symbol.dispose]();
  await assert.rejects(host.admit(b, 601 * mib), { code: "no_capacity" }, "given back once");

  const created = await host.admit(a, createNeed(512));
  created.begin();
  created.loaded();
  await assert.rejects(host.admit(b, 537 * mib), { code: "no_capacity" });
  created[Symbol.dispose]();
  await host.admit(b, 600 * mib);
});

test("a new capsule is refused where a file that VMs start from is missing, a saved one is left to its restore", async () => {
  const lacking = new Admission({
    space,
    memory: roomy,
    missing: async () => ["/qemu is missing", "/jail is missing"],
  });
  const refused = lacking.admitNew(a, 512);
  await assert.rejects(refused, { code: "agent_error", message: /^the host cannot start a VM now: / });
  const { cause } = (await refused.catch((error: Error) => error)) as Error;
  assert.equal((cause as Error).message, "/qemu is missing; /jail is missing", "for the log");
  assert.deepEqual(await lacking.shortages(), ["/qemu is missing", "/jail is missing"]);
  using _restored = await lacking.admit(a, resumeNeed(512, 0));
});

test("a new capsule is admitted by its memory", async () => {
  await admission(600).admitNew(a, 4_096);
  await assert.rejects(admission(600).admitNew(a, 4_096, 1), { code: "no_capacity" });
});
