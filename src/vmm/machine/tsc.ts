/**
 * The rate of this machine's time stamp counter. Under software emulation the guest reads that counter and needs its rate on
 * the kernel command line (see qemu-args.ts). JavaScript cannot read the counter. QEMU can: the saved state of an empty
 * machine holds the counter and a clock. Two such pairs, 1 s apart, give the rate to a few millionths.
 */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { CapsuleError } from "../../wire/errors.ts";
import type { Qmp } from "../qmp.ts";
import { withEmptyMachine } from "./empty-machine.ts";
import type { QemuProgram } from "./qemu-program.ts";

const spanMs = 1_000;
/** Before the first pair. */
const settleMs = 5;
const plausibleKhz = { min: 100_000, max: 20_000_000 };

export interface TimerReading {
  ticks: bigint;
  clockNs: bigint;
}

/** In kHz. Takes a little over 1 s. */
export async function measureTscKhz(command: QemuProgram["command"]): Promise<number> {
  return withEmptyMachine(command, "tcg", async (qmp, folder) => {
    const state = join(folder, "state");
    const first = await readTimer(qmp, state, settleMs);
    return rateKhz(first, await readTimer(qmp, state, spanMs));
  });
}

export function rateKhz(first: TimerReading, second: TimerReading): number {
  const ticks = Number(second.ticks - first.ticks);
  const khz = Math.round((ticks / Number(second.clockNs - first.clockNs)) * 1e6);
  if (!(khz >= plausibleKhz.min && khz <= plausibleKhz.max)) {
    throw new CapsuleError("internal_error", `The time stamp counter of this machine cannot be measured: ${khz} kHz`);
  }
  return khz;
}

/**
 * Finds the "timer" section in a saved state: name, instance u32, version u32, ticks i64, 8 unused bytes, clock i64.
 */
export function parseTimer(state: Buffer): TimerReading {
  const name = state.indexOf("\x05timer", 0, "latin1");
  const at = name + 6 + 8;
  if (name === -1 || at + 24 > state.length) {
    throw new CapsuleError("internal_error", "QEMU saved no timer section; the time stamp counter cannot be measured");
  }
  return { ticks: state.readBigInt64BE(at), clockNs: state.readBigInt64BE(at + 16) };
}

/** Lets the counter run for `runMs` and reads it. */
async function readTimer(qmp: Qmp, path: string, runMs: number): Promise<TimerReading> {
  await qmp.command("cont");
  await delay(runMs);
  await qmp.command("stop");
  await qmp.command("xen-save-devices-state", { filename: path, live: false });
  return parseTimer(await readFile(path));
}
