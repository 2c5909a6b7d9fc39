/**
 * Which process the kernel kills first when the machine runs out of memory: VMs and helpers before the daemon, whose score
 * (-900 as a service, see deploy/capsule.service) every process started by it would inherit.
 *
 * https://man7.org/linux/man-pages/man5/proc_pid_oom_score_adj.5.html
 */
import { type ExecFileOptions, execFile } from "node:child_process";
import { writeFileSync } from "node:fs";
import { promisify } from "node:util";

/** As if the process used half of the machine's memory on top. The largest VM is still the first among VMs. */
const killFirstScore = 500;

/** Processes that it starts from now on inherit the score. Raising it needs no privilege. */
export function killFirst(pid: number | undefined): void {
  try {
    if (pid !== undefined) writeFileSync(`/proc/${pid}/oom_score_adj`, String(killFirstScore));
  } catch {} // the process has ended already
}

const execute = promisify(execFile);

/**
 * Runs a program to its end, as execFile of node:child_process does. Its messages are English, since callers look for words in them.
 * When the signal fires the program is killed, and when it has ended the signal's reason is thrown.
 */
export async function runHelper(
  program: string,
  args: string[],
  { signal, ...options }: ExecFileOptions = {},
): Promise<{ stdout: string; stderr: string }> {
  signal?.throwIfAborted();
  const running = execute(program, args, { env: { ...process.env, LC_ALL: "C" }, ...options, encoding: "utf8" });
  killFirst(running.child.pid);
  const kill = () => void running.child.kill("SIGKILL");
  signal?.addEventListener("abort", kill, { once: true });
  try {
    return await running;
  } catch (error) {
    throw signal?.aborted ? signal.reason : error;
  } finally {
    signal?.removeEventListener("abort", kill);
  }
}
