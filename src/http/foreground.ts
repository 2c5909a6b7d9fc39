/**
 * A foreground command from start to result.
 *
 *   run ──► exited ─────────────► result
 *    │ ├──► refused: no such command ► result with exit code 127
 *    │ └──► failed ───────────────► error; never an invented exit code
 *    ├─ timeout ─► stop ─► exited ──► result, marked as timed out
 *    ├─ too much output ─► cancel ──► no_capacity
 *    └─ client gone ─► cancel (the guest kills the tree)
 */
import type { Command, CommandStream, Exit } from "../agent/agent.ts";
import { AgentFailure } from "../agent/failure.ts";
import type { AgentParts } from "../capsules/agent-parts.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Output } from "./output.ts";

const commandNotFoundExitCode = 127;
/** Time for the guest to confirm that a killed process tree is gone. */
const stopDeadlineMs = 15_000;

export interface ForegroundOptions {
  /** 0: no limit. */
  timeoutSec: number;
  /** All that a command with `stdin` reads. */
  input: Uint8Array | undefined;
  /** The caller releases it. */
  output: Output;
  /** Registers the function to call when the client disconnects. */
  onAbandoned(cancel: () => void): void;
}

export interface ForegroundOutcome {
  exitCode: number;
  durationMs: number;
  /** The command was killed because its time was over. */
  hasTimedOut: boolean;
}

export function runForeground(
  agent: AgentParts["exec"],
  command: Command,
  options: ForegroundOptions,
): Promise<ForegroundOutcome> {
  return new Promise((resolve, reject) => {
    const began = performance.now();
    const { output } = options;
    let timer: NodeJS.Timeout | undefined;
    let hasTimedOut = false;

    const result = (exitCode: number): ForegroundOutcome => ({
      exitCode,
      durationMs: Math.round(performance.now() - began),
      hasTimedOut,
    });
    const exited = ({ exitCode }: Exit) => {
      clearTimeout(timer);
      resolve(result(exitCode));
    };
    const failed = (error: Error) => {
      clearTimeout(timer);
      if (!(error instanceof AgentFailure && error.failure === "command_not_found")) {
        reject(error);
        return;
      }
      keep("stderr", Buffer.from(`${error.message}\n`));
      resolve(result(commandNotFoundExitCode));
    };

    const stream: CommandStream = agent.run(command, {
      output(channel, chunk) {
        if (channel !== "pty") keep(channel, chunk);
        stream.consumed(chunk.length);
      },
      exited,
      failed,
    });
    const keep = (channel: "stdout" | "stderr", chunk: Uint8Array) => {
      try {
        output.add(channel, chunk);
      } catch (error) {
        drop(outputError(error));
      }
    };
    const drop = (error: Error) => {
      clearTimeout(timer);
      stream.cancel();
      reject(error);
    };
    const stop = () => {
      hasTimedOut = true;
      timer = setTimeout(() => drop(stopError()), stopDeadlineMs);
      stream.stop();
    };
    if (options.input !== undefined) {
      stream.write(options.input);
      stream.endInput();
    }
    if (options.timeoutSec > 0) timer = setTimeout(stop, options.timeoutSec * 1_000);
    options.onAbandoned(() => drop(new Error("the client hung up")));
  });
}

/** Without Retry-After: the command has run in part, so a client must not repeat it by itself. */
export function outputError(cause: unknown): Error {
  if (!(cause instanceof CapsuleError)) return cause as Error;
  const message = "the command was killed: its output has no room, because large answers wait for clients to read them";
  return new CapsuleError(cause.code, message, { cause, retryAfterSec: null });
}

function stopError(): CapsuleError {
  return new CapsuleError("agent_error", "the command's time was over, but the guest did not confirm that it is gone");
}
