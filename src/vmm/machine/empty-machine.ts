/** A QEMU without a machine, for questions about this host that only QEMU can answer. It never runs a guest. */
import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { CapsuleError } from "../../wire/errors.ts";
import { killFirst } from "../oom-score.ts";
import { Qmp } from "../qmp.ts";
import type { QemuProgram } from "./qemu-program.ts";

/** It starts in some 100 ms; only an overloaded machine needs much longer. */
const startDeadlineMs = 60_000;
const pollMs = 5;

/** Starts one, stopped, and settles as `ask` does. The process and its folder are gone by then. */
export async function withEmptyMachine<T>(
  [program, ...before]: QemuProgram["command"],
  accelerator: "kvm" | "tcg",
  ask: (qmp: Qmp, folder: string) => Promise<T>,
): Promise<T> {
  const folder = await mkdtemp(join(tmpdir(), "capsule-machine-"));
  const args = [
    ...before,
    "-machine",
    "none",
    "-accel",
    accelerator,
    "-nodefaults",
    "-no-user-config",
    "-display",
    "none",
    "-S",
  ];
  const child = spawn(program, [...args, "-qmp", "unix:qmp.sock,server=on,wait=off"], { cwd: folder, stdio: "ignore" });
  killFirst(child.pid);
  const exited = new Promise<void>((resolve) => child.once("exit", () => resolve()).once("error", () => resolve()));
  try {
    const qmp = await connectWhenReady(join(folder, "qmp.sock"), exited);
    try {
      return await ask(qmp, folder);
    } finally {
      qmp.close();
    }
  } finally {
    child.kill("SIGKILL");
    await exited;
    await rm(folder, { recursive: true, force: true });
  }
}

async function connectWhenReady(path: string, exited: Promise<void>): Promise<Qmp> {
  let hasExited = false;
  void exited.then(() => {
    hasExited = true;
  });
  const deadline = performance.now() + startDeadlineMs;
  for (;;) {
    try {
      return await Qmp.connect(path, () => {}, startDeadlineMs);
    } catch (cause) {
      if (hasExited || performance.now() > deadline) {
        throw new CapsuleError("internal_error", "QEMU did not start an empty machine", { cause });
      }
      await delay(pollMs);
    }
  }
}
