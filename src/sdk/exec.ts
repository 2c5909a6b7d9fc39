/**
 * One command and its whole output. Short ones are one HTTP request. HTTP clients give up on answers that are silent for
 * minutes, so those that may take long go over a stream, which does not.
 */
import type { ForegroundResult } from "../wire/exec.ts";
import { type Bytes, concatenated, fromBase64, toBase64, utf8 } from "./bytes.ts";
import { ServiceError } from "./errors.ts";
import { collect, OutputStream } from "./output-stream.ts";
import { after } from "./timer.ts";
import type { CallOptions, Transport } from "./transport.ts";

export interface CommandOptions {
  /** Environment variables, on top of the capsule's. */
  envs?: Record<string, string>;
  /** Working directory. Default: the home directory. */
  cwd?: string;
}

export interface ExecOptions extends CommandOptions {
  /** Seconds until the command is killed and `exec` throws `timeout`; 0: never. Default: the service's, 30. */
  timeoutSec?: number;
  /** Ends the wait, and the command with it. */
  signal?: AbortSignal | undefined;
}

export interface ExecResult {
  /** As text. Bytes that are no UTF-8 are U+FFFD; `stdoutBytes` has them as they were. */
  stdout: string;
  stderr: string;
  stdoutBytes: Bytes;
  stderrBytes: Bytes;
  /** 128 + n: killed by signal n; 127: no such command. */
  exitCode: number;
  durationMs: number;
  /** Output beyond the service's limit was cut off. */
  isTruncated: boolean;
}

/** The longest that is left to a single request, well below the five minutes after which some clients give up. */
const requestMaxSec = 240;
const answerGraceMs = 30_000;
const keptMaxBytes = 16 * 1024 * 1024;

export async function execute(
  transport: Transport,
  path: string,
  command: { cmd: string; args: string[] },
  options: ExecOptions,
): Promise<ExecResult> {
  const { timeoutSec } = options;
  const isLong = timeoutSec === 0 || (timeoutSec ?? 0) > requestMaxSec;
  return isLong ? long(transport, path, command, options) : short(transport, path, command, options);
}

async function short(
  transport: Transport,
  path: string,
  command: { cmd: string; args: string[] },
  { envs, cwd, timeoutSec, signal }: ExecOptions,
): Promise<ExecResult> {
  const result = await transport.json<ForegroundResult>({
    method: "POST",
    path: `${path}/exec`,
    json: { ...command, envs, cwd, timeout: timeoutSec },
    timeoutMs: (timeoutSec ?? requestMaxSec) * 1_000 + answerGraceMs,
    signal,
  });
  const decode = result.encoding === "base64" ? fromBase64 : utf8;
  return resultOf({
    stdoutBytes: decode(result.stdout),
    stderrBytes: decode(result.stderr),
    exitCode: result.exit_code,
    durationMs: result.duration_ms,
    isTruncated: result.truncated === true,
  });
}

async function long(
  transport: Transport,
  path: string,
  command: { cmd: string; args: string[] },
  { envs, cwd, timeoutSec = 0, signal }: ExecOptions,
): Promise<ExecResult> {
  const began = performance.now();
  const opened = await startStream(transport, path, command, { envs, cwd }, { signal }).catch((error) => error);
  if (opened instanceof NotStarted) return notStarted(opened.message);
  if (!(opened instanceof OutputStream)) throw opened;
  const stream = opened;
  let isLate = false;
  const callOff = after(timeoutSec * 1_000, () => {
    isLate = true;
    stream.stop();
  });
  try {
    const { stdout, stderr, exitCode, isTruncated } = await collect(stream, keptMaxBytes);
    const [stdoutBytes, stderrBytes] = [concatenated(stdout), concatenated(stderr)];
    if (isLate) {
      const details = { stdout: toBase64(stdoutBytes), stderr: toBase64(stderrBytes), encoding: "base64" };
      throw new ServiceError("timeout", `the command did not end within ${timeoutSec} s`, { details });
    }
    return resultOf({
      stdoutBytes,
      stderrBytes,
      exitCode,
      isTruncated,
      durationMs: Math.round(performance.now() - began),
    });
  } finally {
    callOff();
  }
}

/** There is no such command, or it cannot be run. */
class NotStarted extends ServiceError {}

/** What the single request says of a command that is not there. */
function notStarted(said: string): ExecResult {
  const rest = { exitCode: 127, durationMs: 0, isTruncated: false };
  return resultOf({ stdoutBytes: utf8(""), stderrBytes: utf8(`${said}\n`), ...rest });
}

export function startStream(
  transport: Transport,
  path: string,
  command: { cmd: string; args: string[] },
  { envs, cwd }: { envs?: Record<string, string> | undefined; cwd?: string | undefined },
  options: CallOptions,
): Promise<OutputStream> {
  const refusal = (said: string) => new NotStarted("invalid_request", said);
  const start = {
    type: "start" as const,
    ...command,
    ...(envs === undefined ? {} : { envs }),
    ...(cwd === undefined ? {} : { cwd }),
  };
  return OutputStream.open(transport, `${path}/exec/stream`, start, refusal, options);
}

function resultOf(known: Omit<ExecResult, "stdout" | "stderr">): ExecResult {
  const text = (bytes: Uint8Array) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
  return { stdout: text(known.stdoutBytes), stderr: text(known.stderrBytes), ...known };
}
