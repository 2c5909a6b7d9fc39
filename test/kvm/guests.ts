/** Differences of KVM from emulation inside and around a guest: CPUs, memory, clocks, saved machines. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import type { TestCapsule } from "../client.ts";
import { assertClockSet } from "../conformance/guest-clock.ts";
import { waitFor } from "../wait-for.ts";
import { isLong, onlyLong } from "./kvm-form.ts";
import { dataPath, type KvmWorld } from "./kvm-world.ts";

const waitMs = 300_000;
const cycles = isLong ? 5 : 1;

/** For commands that take seconds in here, and minutes where the machine is busy. */
const slow = { timeout: 300 };

/** Files and memory of a guest, as sums that must be the same after a resume. */
async function fill(capsule: TestCapsule): Promise<string> {
  await capsule.sh(
    "mkdir -p /dev/shm/t && head -c 24M /dev/urandom > /dev/shm/t/a && head -c 8M /dev/zero > /dev/shm/t/b",
    slow,
  );
  return sums(capsule);
}

const sums = (capsule: TestCapsule) => capsule.sh("cat /dev/shm/t/* | sha256sum", slow);

export function guests(world: () => KvmWorld): void {
  for (const vcpus of [2, 4]) {
    const skip = vcpus > 2 && onlyLong;
    test(`all of ${vcpus} CPUs work, before and after being stopped, saved and resumed`, { skip }, async () => {
      await using capsule = await world().client.capsule({ vcpus, memory_mb: 256 });
      const spin =
        "for c in $(seq 0 $(($(nproc) - 1))); do taskset -c $c sh -c 'i=0; while :; do i=$((i+1)); done' & done";
      await capsule.exec({ cmd: "bash", args: ["-c", `${spin}; wait`], background: true });
      const times = async () =>
        (await capsule.sh("sed -n 's/^cpu[0-9]* //p' /proc/stat | awk '{print $1}'", slow))
          .split("\n")
          .map(Number)
          .slice(-vcpus);
      const assertAllWork = async () => {
        assert.equal(await capsule.sh("nproc", slow), String(vcpus));
        const before = await times();
        assert.equal(before.length, vcpus);
        await capsule.sh("sleep 3", slow);
        const after = await times();
        for (const [cpu, spent] of after.entries()) assert.ok(spent > before[cpu]!, `CPU ${cpu} stands still`);
      };
      await assertAllWork();
      for (let cycle = 0; cycle < cycles; cycle++) {
        await capsule.pause();
        await capsule.resume();
        await assertAllWork();
      }
    });
  }

  test("memory is whole over pauses with huge pages always and never, and a machine that merges pages leaves it alone", async () => {
    await using capsule = await world().client.capsule();
    const flags = await world().sh(
      `sed -n '/bases.*memory$/,/^VmFlags/s/^VmFlags: //p' /proc/${await world().vmOf(capsule)}/smaps`,
    );
    assert.match(flags, /^rd wr /);
    assert.doesNotMatch(flags, /\bmg\b/, "guests could tell which pages others have");
    try {
      await world().sh("echo 1 > /sys/kernel/mm/ksm/run; echo 20000 > /sys/kernel/mm/ksm/pages_to_scan");
      for (const huge of isLong ? ["always", "never", "always"] : ["always"]) {
        await world().sh(`echo ${huge} > /sys/kernel/mm/transparent_hugepage/enabled`);
        const before = await fill(capsule);
        for (let cycle = 0; cycle < cycles; cycle++) {
          await capsule.pause();
          await capsule.resume();
          assert.equal(await sums(capsule), before, huge);
          await capsule.sh(`echo ${cycle} > /dev/shm/t/c-${cycle}; rm /dev/shm/t/c-*`);
        }
      }
    } finally {
      await world().sh("echo 2 > /sys/kernel/mm/ksm/run; echo always > /sys/kernel/mm/transparent_hugepage/enabled");
    }
  });

  test("after a pause the guest's clocks are right: the time of day, and the time since boot, which never goes back", async () => {
    await using capsule = await world().client.capsule();
    const uptime = async () => Number((await capsule.sh("cat /proc/uptime")).split(" ")[0]);
    const before = await uptime();
    await capsule.pause();
    await delay(isLong ? 90_000 : 5_000); // the point is that time passes
    await capsule.resume();
    assert.ok((await uptime()) >= before, "the time since boot went back");
    await assertClockSet({
      host: async () => Number(await world().sh("date +%s%N")) / 1e6,
      guest: async () => Number(await capsule.sh("date +%s%N")) / 1e6,
      again: async () => {
        await capsule.pause();
        await delay(5_000);
        await capsule.resume();
      },
    });
    const slept = await capsule.sh("a=$(date +%s%N); sleep 2; echo $(($(date +%s%N) - a))");
    assert.ok(Number(slept) > 1.99e9 && Number(slept) < 30e9, `2 s took ${slept} ns`);
  });

  test("a template captured under KVM starts with its processes, also where they were restored ahead of time", async () => {
    const capsule = await world().client.capsule();
    await capsule.exec({ cmd: "sleep", args: ["8102"], background: true });
    await capsule.sh("echo made > /root/made");
    await world().client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: capsule.id, name: "kvm-made" } });
    // Where the pool is full, all capsules of the template but ours are in it.
    const warm = async () => {
      const { pool } = (await world().health()) ?? assert.fail("the service does not answer");
      const found = `grep -l '"origin": *"templates/' ${dataPath}/capsules/*/capsule.json | cut -d/ -f6; true`;
      const ids = (await world().sh(found)).split("\n").filter(Boolean);
      return pool.ready >= pool.target && ids.length > 0 && ids;
    };
    const tries = isLong ? 5 : 3;
    const ids = new Set<string>();
    for (let each = 0; each < tries; each++) {
      // Two uses make the pool keep one.
      const waiting = each < 2 ? undefined : await waitFor("one was made ahead of time", warm, { deadlineMs: waitMs });
      await using made = await world().client.capsule({ template: "kvm-made" });
      assert.ok(waiting?.includes(made.id) ?? true, `${made.id} was not made ahead of time`);
      assert.equal(await made.sh("cat /root/made; pgrep -cxf 'sleep 8102'"), "made\n1");
      ids.add(await made.sh("cat /proc/sys/kernel/random/uuid"));
    }
    assert.equal(ids.size, tries);
    await world().client.expect(204, "DELETE", "/v1/snapshots/kvm-made");
  });
}
