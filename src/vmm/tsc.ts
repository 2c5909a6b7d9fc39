/**
 * How fast this machine's time stamp counter runs. Under software emulation the guest reads that counter and must be
 * told (see qemu-args.ts); a process of ours cannot read it, but QEMU can: it keeps a pair of counter and clock, and says
 * both when an empty machine's state is saved. Two such pairs, a second apart, give the rate to a few millionths.
 */
import { spawn } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { CapsuleError } from "../wire/errors.ts";
import { Qmp } from "./qmp.ts";

const spanMs = 1_000;
/** Of a process that does next to nothing; only a machine that is swamped needs more than a moment for it. */
const startDeadlineMs = 60_000;
const pollMs = 5;
/** Nothing outside is a processor's rate. */
const plausibleKhz = { least: 100_000, most: 20_000_000 };

export interface TimerReading {
  ticks: bigint;
  clockNs: bigint;
}

/** In kHz. Takes a good second. */
export async function measureTscKhz(program: string): Promise<number> {
  const folder = await mkdtemp(join(tmpdir(), "capsule-tsc-"));
  const args = ["-machine", "none", "-accel", "tcg", "-nodefaults", "-no-user-config", "-display", "none", "-S"];
  const child = spawn(program, [...args, "-qmp", "unix:qmp.sock,server=on,wait=off"], { cwd: folder, stdio: "ignore" });
  const gone = new Promise<void>((resolve) => child.once("exit", () => resolve()).once("error", () => resolve()));
  try {
    const qmp = await reach(join(folder, "qmp.sock"), gone);
    try {
      const state = join(folder, "state");
      const first = await read(qmp, state, pollMs);
      return rate(first, await read(qmp, state, spanMs));
    } finally {
      qmp.close();
    }
  } finally {
    child.kill("SIGKILL");
    await gone;
    await rm(folder, { recursive: true, force: true });
  }
}

export function rate(first: TimerReading, second: TimerReading): number {
  const ticks = Number(second.ticks - first.ticks);
  const khz = Math.round((ticks / Number(second.clockNs - first.clockNs)) * 1e6);
  if (!(khz >= plausibleKhz.least && khz <= plausibleKhz.most)) {
    throw new CapsuleError("internal_error", `The time stamp counter of this machine cannot be measured: ${khz} kHz`);
  }
  return khz;
}

/** Finds the "timer" section in a saved state: name, instance u32, version u32, ticks i64, 8 unused bytes, clock i64. */
export function parseTimer(state: Buffer): TimerReading {
  const name = state.indexOf("\x05timer", 0, "latin1");
  const at = name + 6 + 8;
  if (name === -1 || at + 24 > state.length) {
    throw new CapsuleError("internal_error", "QEMU saved no timer section; the time stamp counter cannot be measured");
  }
  return { ticks: state.readBigInt64BE(at), clockNs: state.readBigInt64BE(at + 16) };
}

/** Lets the counter run for a while and reads where it stands. */
async function read(qmp: Qmp, path: string, runMs: number): Promise<TimerReading> {
  await qmp.command("cont");
  await delay(runMs);
  await qmp.command("stop");
  await qmp.command("xen-save-devices-state", { filename: path, live: false });
  return parseTimer(await readFile(path));
}

async function reach(path: string, gone: Promise<void>): Promise<Qmp> {
  let isGone = false;
  void gone.then(() => {
    isGone = true;
  });
  const deadline = performance.now() + startDeadlineMs;
  for (;;) {
    try {
      return await Qmp.connect(path, () => {}, startDeadlineMs);
    } catch (cause) {
      if (isGone || performance.now() > deadline) {
        throw new CapsuleError("internal_error", "QEMU does not start an empty machine", { cause });
      }
      await delay(pollMs);
    }
  }
}
