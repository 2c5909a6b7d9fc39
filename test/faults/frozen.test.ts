/** Nothing of a guest but its agent runs between FREEZE and THAW, wherever root has put it. */
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
const root = "/sys/fs/cgroup";
const places = { commands: "", root, own: `${root}/own`, below: `${root}/own-too/below` };

/** Goes to a group, and writes the time and random bytes to a log again and again. */
const reader = `
import os, sys, time
name, group = sys.argv[1:]
if group:
    os.makedirs(group, exist_ok=True)
    open(group + "/cgroup.procs", "w").write("0")
with open(f"/run/{name}.log", "w") as log:
    while True:
        print(time.time_ns(), os.urandom(8).hex(), file=log, flush=True)
        time.sleep(0.001)
`;

async function startReaders(capsule: TestCapsule): Promise<void> {
  for (const [name, group] of Object.entries(places)) {
    await capsule.exec({ cmd: "python3", args: ["-c", reader, name, group], tag: name, background: true });
  }
  const script = "for log in /run/*.log; do wc -l < $log || true; done 2>/dev/null";
  await waitFor("every reader has written lines", async () => {
    const counts = (await capsule.sh(script)).split("\n");
    return counts.length === Object.keys(places).length && counts.every((count) => Number(count) > 2);
  });
}

/** The whole lines of a reader's log. */
async function linesOf(capsule: TestCapsule, name: string): Promise<string[]> {
  return (await capsule.sh(`cat /run/${name}.log`)).split("\n").slice(0, -1);
}

describe("no process runs before its capsule's clock and randomness are new", { timeout }, () => {
  for (const vcpus of [1, 2]) {
    test(`with ${vcpus} vCPUs`, async () => {
      const template = `readers-${vcpus}`;
      const captured = await world.client.capsule({ vcpus, memory_mb: 128 });
      await startReaders(captured);
      await world.client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: captured.id, name: template } });
      const beganNs = (Date.now() - 50) * 1e6;
      const made = await Promise.all([1, 2].map(() => world.client.capsule({ template })));
      for (const name of Object.keys(places)) {
        const isLonger = async (capsule: TestCapsule, length: number) => (await linesOf(capsule, name)).length > length;
        const lengths = await Promise.all(made.map(async (capsule) => (await linesOf(capsule, name)).length));
        await waitFor(`${name} runs on in both`, async () =>
          (await Promise.all(made.map((capsule, at) => isLonger(capsule, lengths[at]!)))).every(Boolean),
        );
        const [one, two] = await Promise.all(made.map((capsule) => linesOf(capsule, name)));
        const differsAt = one!.findIndex((line, at) => line !== two![at]);
        const [own, other] = [one!, two!].map((lines) => lines.slice(differsAt).map((line) => line.split(" ")));
        const early = [...own!, ...other!].filter(([time]) => Number(time) < beganNs);
        assert.deepEqual(early, [], `${name}: lines with the time of the capture`);
        const bytes = new Set(own!.map(([, random]) => random));
        const shared = other!.filter(([, random]) => bytes.has(random));
        assert.deepEqual(shared, [], `${name}: lines with the same random bytes`);
      }
      await Promise.all(made.map((capsule) => capsule.destroy()));
    });
  }
});

test("after a resume every process is in its group, and a group frozen by the user still is", { timeout }, async () => {
  const capsule = await world.client.capsule({ memory_mb: 128 });
  await startReaders(capsule);
  const groups = 'for tag in root own below; do cat /proc/$(pgrep -f " $tag /sys")/cgroup; done';
  const frozen = `cat ${root}/own/cgroup.freeze ${root}/own-too/cgroup.freeze; ls ${root} | grep held || true`;
  assert.equal(await capsule.sh(groups), "0::/\n0::/own\n0::/own-too/below");
  await capsule.sh(`echo 1 > ${root}/own/cgroup.freeze`);
  for (let round = 0; round < 2; round++) {
    await capsule.pause();
    await capsule.resume();
    assert.equal(await capsule.sh(groups), "0::/\n0::/own\n0::/own-too/below");
    assert.equal(await capsule.sh(frozen), "1\n0");
  }
  const before = await linesOf(capsule, "root");
  await waitFor(
    "the reader in the root group runs on",
    async () => (await linesOf(capsule, "root")).length > before.length,
  );
  await capsule.destroy();
});

test("an agent that root has moved to a group is not frozen with it", { timeout }, async () => {
  const capsule = await world.client.capsule({ memory_mb: 128 });
  for (const group of [`${root}/own`, `${root}/capsule/own`]) {
    await capsule.sh(`mkdir ${group}; echo 1 > ${group}/cgroup.procs`);
    await capsule.pause();
    await capsule.resume();
    assert.equal(await capsule.sh("cat /proc/1/cgroup"), "0::/");
  }
  await capsule.destroy();
});

/** Traces process 1: lets it run from one system call to the next. */
const tracer = `
import ctypes, os
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long] * 4
assert ptrace(0x4206, 1, 0, 1) == 0, ctypes.get_errno()  # PTRACE_SEIZE with PTRACE_O_TRACESYSGOOD
ptrace(0x4207, 1, 0, 0)  # PTRACE_INTERRUPT
open("/run/traces", "w").close()
while True:
    _, status = os.waitpid(1, 0x40000000)
    signal = status >> 8 & 0xff
    ptrace(24, 1, 0, 0 if signal in (5, 0x85) else signal)  # PTRACE_SYSCALL
`;

test("a guest whose root traces the agent is paused and resumed, and not captured", { timeout }, async () => {
  const capsule = await world.client.capsule({ memory_mb: 128 });
  await capsule.exec({ cmd: "python3", args: ["-c", tracer], background: true });
  await waitFor("it traces", async () => (await capsule.sh("ls /run/traces || true")) !== "");
  await capsule.pause();
  await capsule.resume();
  assert.equal(await capsule.sh("echo alive"), "alive");
  world.server.log.expect(/could not be frozen/);
  const { status } = await world.client.call("POST", "/v1/snapshots", { json: { sandbox_id: capsule.id } });
  assert.equal(status, 502);
  assert.equal(await capsule.sh("echo alive"), "alive");
  await capsule.destroy();
});

test("in the end rows, VMs and folders are consistent, and nothing is left", async () => {
  await world.assertConsistent();
  await world.assertNoResidue();
});
