/**
 * Guests whose root has done odd and legal things to what a start or a resume touches: they start and resume, and what is the
 * user's stays.
 */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import type { TestCapsule } from "../client.ts";
import { waitFor } from "../wait-for.ts";
import { World } from "./world.ts";

let world: World;
before(async () => {
  world = await World.start();
});
after(() => world[Symbol.asyncDispose]());

const timeout = 900_000;

async function capture(capsule: TestCapsule, name: string): Promise<void> {
  await world.client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: capsule.id, name } });
}

/** /etc/hostname, the lines of /etc/hosts with `names`, /etc/machine-id, the kernel's host name. */
async function names(
  capsule: TestCapsule,
): Promise<{ hostname: string; hosts: string; machineId: string; kernel: string }> {
  const script = "cat /etc/hostname; paste -sd, /etc/hosts; cat /etc/machine-id; uname -n";
  const [hostname, hosts, machineId, kernel] = (await capsule.sh(script)).split("\n");
  return { hostname: hostname!, hosts: hosts!, machineId: machineId!, kernel: kernel! };
}

/** Seconds between the time of the clock chip and that of the system. */
async function chipOffset(capsule: TestCapsule): Promise<number> {
  return Number(await capsule.sh("echo $(($(cat /sys/class/rtc/rtc0/since_epoch) - $(date +%s)))"));
}

/** A guest that does not run between its two looks shows that much. */
const nearlySec = 60;

/** Sets the clock chip to 2001. */
const setChipBack = `python3 -c '
import fcntl, struct
with open("/dev/rtc0") as chip: fcntl.ioctl(chip, 0x4024700a, struct.pack("9i", 0, 0, 0, 1, 0, 101, 0, 0, 0))'`;

const hasImmutableFiles = "for file in hostname hosts machine-id; do chattr +i /etc/$file; done";
const hasOddFiles = `cd /etc; rm hostname hosts machine-id
  mkfifo hostname; mkdir hosts; ln -s /nowhere/at/all machine-id`;
const hasReadOnlyRoot = "sync; mount -o remount,ro /";
const hasNoDevices = "rm -f /dev/random /dev/urandom /dev/rtc0 /dev/rtc /dev/vda /dev/vport*";
const hasHiddenFolders = "mount -t tmpfs none /dev; umount -l /sys; umount -l /proc";

describe("a guest resumes, and capsules start from it", { concurrency: 2, timeout }, () => {
  const states = { hasImmutableFiles, hasOddFiles, hasReadOnlyRoot, hasNoDevices, hasHiddenFolders };
  for (const [state, script] of Object.entries(states)) {
    test(state, async () => {
      const first = await world.client.capsule({ memory_mb: 128 });
      const { machineId } = await names(first);
      await first.sh(script);
      await first.pause();
      await first.resume();
      assert.equal(await first.sh("uname -n"), first.id);
      const template = `odd-${state}`;
      await capture(first, template);
      const [one, two] = await Promise.all([1, 2].map(() => world.client.capsule({ template })));
      const whoAmI = "import os; print(os.uname().nodename, os.urandom(8).hex())";
      const printed = await Promise.all([one!, two!].map((made) => made.run("python3", ["-c", whoAmI])));
      const [[name, random], [otherName, otherRandom]] = printed.map(({ stdout }) => stdout.trim().split(" ")) as [
        string[],
        string[],
      ];
      assert.deepEqual([name, otherName], [one!.id, two!.id]);
      assert.notEqual(random, otherRandom);
      if (state === "hasNoDevices") assert.notEqual((await names(one!)).machineId, machineId);
      if (state !== "hasHiddenFolders") {
        // A guest that does not run between its two looks shows more.
        await waitFor("a right clock chip", async () => Math.abs(await chipOffset(one!)) <= 2);
      }
      await Promise.all([one!.destroy(), two!.destroy()]);
    });
  }

  test("whose file system hangs: its files are written when it continues", async () => {
    const first = await world.client.capsule({ memory_mb: 128 });
    await first.sh("fsfreeze -f /");
    await capture(first, "hanging");
    const made = await world.client.capsule({ template: "hanging" });
    assert.deepEqual(await names(made), { ...(await names(made)), hostname: first.id, kernel: made.id });
    await made.sh("fsfreeze -u /");
    await waitFor("the files have the new names", async () => (await names(made)).hostname === made.id);
    await made.destroy();
  });
});

test("names of the user stay over a resume and in a template", { timeout }, async () => {
  const first = await world.client.capsule({ memory_mb: 128 });
  const { machineId } = await names(first);
  const own = { hostname: "db1", hosts: "127.0.0.1 localhost,10.0.0.1 db1", machineId: "5".repeat(32), kernel: "db1" };
  await first.sh(`hostname() { echo "$1" > /proc/sys/kernel/hostname; }
    echo db1 > /etc/hostname; hostname db1; printf '127.0.0.1 localhost\\n10.0.0.1 db1\\n' > /etc/hosts`);
  await first.pause();
  await first.resume();
  assert.deepEqual(await names(first), { ...own, machineId });
  await first.sh(`echo ${own.machineId} > /etc/machine-id`);
  await first.pause();
  await first.resume();
  assert.deepEqual(await names(first), own);
  await first.sh(`echo ${machineId} > /etc/machine-id`);
  await capture(first, "own-names");
  const made = await world.client.capsule({ template: "own-names" });
  const { machineId: other, ...kept } = await names(made);
  assert.deepEqual({ ...kept, machineId: own.machineId }, own);
  assert.ok(/^[0-9a-f]{32}$/.test(other) && other !== machineId, other);
  await made.destroy();
});

test("the clock chip has the time after a create and after a resume", { timeout }, async () => {
  const capsule = await world.client.capsule({ memory_mb: 128 });
  const created = await chipOffset(capsule);
  await capsule.sh(setChipBack);
  assert.ok((await chipOffset(capsule)) < -1_000_000);
  await capsule.pause();
  await capsule.resume();
  const resumed = await chipOffset(capsule);
  assert.ok(Math.max(Math.abs(created), Math.abs(resumed)) <= nearlySec, `${created} s, ${resumed} s`);
  await capsule.destroy();
});

/** Leaves processes in every place that is not the command's control group or session, and then waits. Its words: their mark. */
const scattering = `
import os, sys, time
mark = sys.argv[1]
def stay(group, session):
    if os.fork(): return
    if session: os.setsid()
    if group:
        os.makedirs(group, exist_ok=True)
        open(group + "/cgroup.procs", "w").write("0")
    open(f"/run/{mark}-{os.getpid()}", "w").close()
    while True: time.sleep(1)
for group in (None, "/sys/fs/cgroup", "/sys/fs/cgroup/own/below"):
    for session in (False, True):
        stay(group, session)
        if os.fork() == 0:
            os.setsid()
            stay(group, session)
            time.sleep(1000)
time.sleep(1000)
`;
const scattered = 12;

describe("a command's whole tree ends, wherever it went", { timeout }, () => {
  let capsule: TestCapsule;
  before(async () => {
    capsule = await world.client.capsule();
    await capsule.sh(
      "sleep 1000 & echo $! > /run/other; mkdir /sys/fs/cgroup/kept; echo $! > /sys/fs/cgroup/kept/cgroup.procs",
    );
  });
  after(() => capsule.destroy());

  const arrived = (mark: string) =>
    waitFor(
      "the processes are in their places",
      async () => Number(await capsule.sh(`ls /run | grep -c ^${mark}- || true`)) === scattered,
    );

  /** The processes that are left. */
  const left = (mark: string) =>
    capsule.sh(`for f in /run/${mark}-*; do kill -0 "\${f##*-}" 2>/dev/null && echo "$f"; done; true`);

  test("when its client leaves", async () => {
    const client = new AbortController();
    const body = { cmd: "python3", args: ["-c", scattering, "leave"], timeout: 0 };
    const exec = capsule.exec(body, { signal: client.signal });
    await Promise.all([assert.rejects(exec), arrived("leave").finally(() => client.abort())]);
    await waitFor("none is left", async () => (await left("leave")) === "");
    await capsule.sh("kill -0 $(cat /run/other)");
  });

  test("at SIGKILL", async () => {
    const { json } = await capsule.exec({ cmd: "python3", args: ["-c", scattering, "kill"], background: true });
    await arrived("kill");
    await world.client.expect(204, "DELETE", `${capsule.path}/processes/${json.tag}`);
    assert.equal(await left("kill"), "");
    await capsule.sh("kill -0 $(cat /run/other)");
  });
});

test("in the end rows, VMs and folders are consistent, and nothing is left", async () => {
  await world.assertConsistent();
  await world.assertNoResidue();
});
