/** The forms of these tests: which clients and proxies, how large, how often, and beside what load. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { availableParallelism } from "node:os";

/** The longer forms: larger files, more tries, longer silences, a busy machine. */
export const isLong = process.env.CAPSULE_CLIENTS === "long";
export const isAll = isLong || process.env.CAPSULE_CLIENTS === "all";

/** How many times in a row each client runs its scenario on the same server. */
export const rounds = roundsOf(process.env.CAPSULE_CLIENTS_ROUNDS);

export const isBusy = isLong || rounds > 1;

export function roundsOf(text = "1"): number {
  if (!/^[1-9]\d?$/.test(text)) throw new Error(`CAPSULE_CLIENTS_ROUNDS is a number from 1 to 99, not ${text}`);
  return Number(text);
}

/** A process per core that does nothing but compute. It ends when it is disposed of, or its parent is gone. */
export class BusyCores implements AsyncDisposable {
  readonly #processes: ChildProcess[];

  constructor() {
    const spin = "while kill -0 $PPID 2>/dev/null; do :; done";
    this.#processes = Array.from({ length: availableParallelism() }, () =>
      spawn("sh", ["-c", spin], { stdio: "ignore" }),
    );
  }

  get pids(): number[] {
    return this.#processes.map(({ pid }) => pid as number);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(
      this.#processes.map(async (child) => {
        if (child.exitCode !== null || child.signalCode !== null) return;
        const gone = once(child, "exit");
        child.kill("SIGKILL");
        await gone;
      }),
    );
  }
}
