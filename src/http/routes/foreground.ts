/**
 * A foreground command from start to result.
 *
 *   run ──► exited ─────────────► result
 *    │ ├──► refused: no such command ► result with exit code 127
 *    │ └──► failed ───────────────► error; never an invented exit code
 *    ├─ timeout ─► stop ─► exited ──► timeout, with the output so far
 *    └─ client gone ─► cancel (the guest kills the tree)
 */
import type { Agent, Command, Exit, RunningStream } from "../../agent/agent.ts";
import { AgentFailure } from "../../agent/failure.ts";
import { CapsuleError } from "../../wire/errors.ts";
import type { ForegroundResult } from "../../wire/exec.ts";
import type { Output } from "../output.ts";

const commandNotFoundExitCode = 127;
/** Time for the guest to confirm that a killed process tree is gone. */
const stopDeadlineMs = 15_000;

export interface ForegroundOptions {
  /** 0: no limit. */
  timeoutSec: number;
  /** The caller releases it. */
  output: Output;
  /** Registers the function to call when the client disconnects. */
  onAbandoned(cancel: () => void): void;
}

export function runForeground(agent: Agent, command: Command, options: ForegroundOptions): Promise<ForegroundResult> {
  return new Promise((resolve, reject) => {
    const began = performance.now();
    const { output } = options;
    let timer: NodeJS.Timeout | undefined;
    let timedOut = false;

    const result = (exitCode: number): ForegroundResult => ({
      ...output.encode(),
      exit_code: exitCode,
      duration_ms: Math.round(performance.now() - began),
    });
    const exited = ({ exitCode }: Exit) => {
      clearTimeout(timer);
      if (timedOut) reject(timeoutError(options.timeoutSec, result(exitCode)));
      else resolve(result(exitCode));
    };
    const failed = (error: Error) => {
      clearTimeout(timer);
      if (!(error instanceof AgentFailure && error.failure === "command_not_found")) {
        reject(error);
        return;
      }
      output.add("stderr", Buffer.from(`${error.message}\n`));
      resolve(result(commandNotFoundExitCode));
    };

    const stream: RunningStream = agent.run(command, {
      output(channel, chunk) {
        if (channel !== "pty") output.add(channel, chunk);
        stream.consumed(chunk.length);
      },
      exited,
      failed,
    });
    const drop = (error: Error) => {
      clearTimeout(timer);
      stream.cancel();
      reject(error);
    };
    const stop = () => {
      timedOut = true;
      timer = setTimeout(() => drop(stopError()), stopDeadlineMs);
      stream.stop();
    };
    if (options.timeoutSec > 0) timer = setTimeout(stop, options.timeoutSec * 1_000);
    options.onAbandoned(() => drop(new Error("the client hung up")));
  });
}

function timeoutError(timeoutSec: number, { exit_code: _, ...partial }: ForegroundResult): CapsuleError {
  return new CapsuleError("timeout", `the command did not end within ${timeoutSec} s and was killed`, {
    details: partial,
  });
}

function stopError(): CapsuleError {
  return new CapsuleError("agent_error", "the command's time was over, but the guest did not confirm that it is gone");
}
