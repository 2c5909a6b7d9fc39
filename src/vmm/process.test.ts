import assert from "node:assert/strict";
import { getPriority } from "node:os";
import { test } from "node:test";
import { endProcess, findByNonce, isAlive, isGoneWithin, isVm, parseStat, spawnDetached } from "./process.ts";

/** A process with a VM's name in its command line: a shell that ignores its arguments. */
function spawnNamed(nonce: string, script = "read line < /dev/zero; :") {
  return spawnDetached(["/bin/sh", "-c", script, "-name", `guest=cl-test nonce=${nonce} dir=/nowhere`], "/");
}

function randomNonce(): string {
  return crypto.randomUUID().replaceAll("-", "");
}

test("a process is found by its nonce, recognized by all three marks, and ended for good", async () => {
  const nonce = randomNonce();
  const { process } = spawnNamed(nonce);
  try {
    assert.ok(isAlive(process));
    assert.deepEqual(await findByNonce(nonce), [process]);
    assert.ok(await isVm(process, nonce));
    assert.ok(!(await isVm(process, randomNonce())), "another nonce");
    const earlier = { ...process, startTicks: process.startTicks - 1 };
    assert.ok(!(await isVm(earlier, nonce)), "another process with this pid");
    await endProcess(earlier);
    assert.ok(isAlive(process), "a stranger's pid is not killed");
  } finally {
    await endProcess(process);
  }
  assert.ok(!isAlive(process));
  await endProcess(process);
  assert.deepEqual(await findByNonce(nonce), []);
});

test("what is started gives way to us", async () => {
  const { process } = spawnNamed(randomNonce());
  try {
    assert.ok(getPriority(process.pid) > getPriority(), "niceness");
  } finally {
    await endProcess(process);
  }
});

test("what a process complains of is kept, to a limit", async () => {
  const script =
    'i=0; while [ $i -lt 400 ]; do echo "complaint number $i of very many, to fill it up" >&2; i=$((i+1)); done';
  const spawned = spawnNamed(randomNonce(), script);
  assert.ok(await isGoneWithin(spawned.process, 10_000));
  const said = await spawned.stderrTail();
  assert.match(said, /complaint number 399 of very many, to fill it up$/);
  assert.ok(said.length <= 8_192);
});

test("a program that is not there is an error that names it", () => {
  assert.throws(() => spawnDetached(["/no/such/qemu"], "/"), /\/no\/such\/qemu does not run here/);
});

test("a process's state is read past any name it gives itself", () => {
  const stat = (name: string, state: string, threads: number) =>
    `7 (${name}) ${state} 1 7 7 0 -1 4194304 93 0 0 0 0 0 0 0 20 0 ${threads} 0 294273 2703360 123`;
  assert.deepEqual(parseStat(stat("qemu", "S", 3)), { parent: 1, startTicks: 294_273, spentTicks: 0 });
  assert.equal(parseStat(stat("a) Z 1 (b", "R", 1))?.startTicks, 294_273);
  assert.equal(parseStat(stat("qemu", "Z", 1)), null, "a zombie is gone");
  assert.equal(parseStat(stat("qemu", "Z", 2))?.startTicks, 294_273, "a zombie with living threads holds its files");
  assert.equal(parseStat(stat("qemu", "X", 2)), null);
  assert.equal(parseStat("nonsense"), null);
});
