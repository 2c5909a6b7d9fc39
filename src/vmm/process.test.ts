import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { getPriority, tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { runHelper } from "./oom-score.ts";
import {
  endBwrap,
  endProcess,
  findBelow,
  findByNonce,
  isAlive,
  isGoneWithin,
  isVm,
  parseStat,
  spawnDetached,
  startTicksOf,
} from "./process.ts";

const folder = mkdtempSync(join(tmpdir(), "process-"));
after(() => rmSync(folder, { recursive: true }));

/** A process whose command line looks like a VM's: a shell that ignores its arguments. */
function spawnNamed(nonce: string, script = "read line < /dev/zero; :") {
  return spawnDetached(["/bin/sh", "-c", script, "-name", `guest=cl-test nonce=${nonce} dir=/nowhere`], "/");
}

function randomNonce(): string {
  return crypto.randomUUID().replaceAll("-", "");
}

test("a process is found by its nonce, identified by pid, start time and nonce, and killed", async () => {
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
    assert.ok(isAlive(process), "a process with another start time is not killed");
  } finally {
    await endProcess(process);
  }
  assert.ok(!isAlive(process));
  await endProcess(process);
  assert.deepEqual(await findByNonce(nonce), []);
});

test("a started process has a lower priority than the daemon, and is killed first when memory runs out", async () => {
  using _low = serviceScore();
  const { process } = spawnNamed(randomNonce());
  try {
    assert.equal(getPriority(process.pid), Math.min(getPriority() + 5, 19), "niceness");
    assert.equal(scoreOf(process.pid), 500);
  } finally {
    await endProcess(process);
  }
  const waits = `until read score < /proc/self/oom_score_adj && [ $score = 500 ]; do :; done`;
  await runHelper("sh", ["-c", waits], { timeout: 60_000 });
});

function scoreOf(pid: number | "self"): number {
  return Number(readFileSync(`/proc/${pid}/oom_score_adj`, "utf8"));
}

/** Gives this process the score of the service, as far as its rights allow. */
function serviceScore(): Disposable {
  const before = scoreOf("self");
  const set = (score: number) => writeFileSync("/proc/self/oom_score_adj", String(score));
  try {
    set(-900);
  } catch {} // not root
  return { [Symbol.dispose]: () => set(before) };
}

test("the last 8,192 bytes of standard error are kept", async () => {
  const script =
    'i=0; while [ $i -lt 400 ]; do echo "complaint number $i of very many, to fill it up" >&2; i=$((i+1)); done';
  const spawned = spawnNamed(randomNonce(), script);
  assert.ok(await isGoneWithin(spawned.process, 60_000));
  const tail = await spawned.stderrTail();
  assert.match(tail, /complaint number 399 of very many, to fill it up$/);
  assert.ok(tail.length <= 8_192);
});

test("a missing program is an error that names it", () => {
  assert.throws(() => spawnDetached(["/no/such/qemu"], "/"), /\/no\/such\/qemu did not run/);
});

test("the state is parsed correctly whatever name the process gives itself", () => {
  const stat = (name: string, state: string, threads: number) =>
    `7 (${name}) ${state} 1 7 7 0 -1 4194304 93 0 0 0 0 0 0 0 20 0 ${threads} 0 294273 2703360 123`;
  assert.deepEqual(parseStat(stat("qemu", "S", 3)), { parent: 1, startTicks: 294_273, spentTicks: 0 });
  assert.equal(parseStat(stat("a) Z 1 (b", "R", 1))?.startTicks, 294_273);
  assert.equal(parseStat(stat("qemu", "Z", 1)), null, "a zombie is gone");
  assert.equal(parseStat(stat("qemu", "Z", 2))?.startTicks, 294_273, "a zombie with living threads holds its files");
  assert.equal(parseStat(stat("qemu", "X", 2)), null);
  assert.equal(parseStat("nonsense"), null);
});

test("of a command line that its process has made huge, only the beginning is read", async (t) => {
  const program = join(folder, "huge-command-line");
  execFileSync("cc", ["-O1", "-o", program, join(import.meta.dirname, "../../test/huge-command-line.c")]);
  // From 128 MiB on, splitting it would end this process and those of other tests.
  const hugeBytes = 16 << 20;
  const huge = spawn(program, [String(hugeBytes)], { stdio: ["ignore", "pipe", "inherit"] });
  try {
    const [answer] = await once(huge.stdout, "data");
    if (String(answer) !== "ready\n") return t.skip(`this kernel refuses PR_SET_MM_MAP: ${answer}`);
    const readings = {
      findBelow: () => findBelow("/nowhere"),
      findByNonce: () => findByNonce(randomNonce()),
      isVm: () => isVm({ pid: huge.pid!, startTicks: startTicksOf(huge.pid!)! }, randomNonce()),
    };
    for (const [name, read] of Object.entries(readings)) {
      const before = bytesRead();
      await read();
      assert.ok(bytesRead() - before < hugeBytes / 2, `${name} has read ${bytesRead() - before} bytes`);
    }
  } finally {
    huge.kill("SIGKILL");
    await once(huge, "close");
  }
});

/** By this process, from files of any kind. */
function bytesRead(): number {
  return Number(/^rchar: (\d+)$/m.exec(readFileSync("/proc/self/io", "latin1"))![1]);
}

test("the bubblewrap process around a VM is ended; one above the service is not", async () => {
  const bwrap = join(folder, "bwrap");
  symlinkSync("/bin/sh", bwrap);
  const around = spawn(bwrap, ["-c", "sleep 600 >/dev/null & echo $!; wait; :"], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const pid = Number((await once(around.stdout, "data"))[0]);
  await endBwrap({ pid, startTicks: startTicksOf(pid)! });
  await once(around, "exit", { signal: AbortSignal.timeout(60_000) }).finally(() => process.kill(pid));
  assert.equal(around.signalCode, "SIGKILL");

  const service = `
    import { endBwrap, startTicksOf } from ${JSON.stringify(join(import.meta.dirname, "process.ts"))};
    const pid = Number(process.argv[1]);
    await endBwrap({ pid, startTicks: startTicksOf(pid) });
  `;
  const script = 'sleep 600 >/dev/null & "$0" --input-type=module -e "$1" $! && echo ended; kill $!';
  const above = execFileSync(bwrap, ["-c", script, process.execPath, service], { encoding: "utf8" });
  assert.equal(above, "ended\n");
});
