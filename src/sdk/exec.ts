/**
 * One command with its complete output. A command with a limit of up to 240 s is one HTTP request. Longer ones use a
 * WebSocket stream, because HTTP clients abort a request whose answer takes minutes.
 */
import type { ForegroundResult } from "../wire/exec.ts";
import { type Bytes, concatenated, fromBase64, toBase64, utf8, utf8Text } from "./bytes.ts";
import { isCommandNotFound, refusalWith, ServiceError } from "./errors.ts";
import { checkArgs, refuseUnknown } from "./options.ts";
import { collect, OutputStream } from "./output-stream.ts";
import { after } from "./timer.ts";
import type { CallOptions, Transport } from "./transport.ts";

export interface CommandOptions {
  /** Environment variables, on top of the capsule's. */
  envs?: Record<string, string>;
  /** Working directory. Default: the user's home directory. */
  cwd?: string;
  /** Name of a user of the capsule, or a decimal uid. Default: root. */
  user?: string;
}

export interface StreamOptions extends CommandOptions {
  /** Names the process while it runs. */
  tag?: string;
  /** Keeps standard input open. */
  stdin?: boolean;
  /** The command lives on as a background process when the stream is closed, or its connection is lost. */
  survive?: boolean;
}

export interface ExecOptions extends CommandOptions {
  /**
   * Standard input, then its end; an iterable is read as fast as the command reads. Default: none. With more than 512 KiB or an
   * iterable, `exec` uses a stream.
   */
  stdin?: string | Uint8Array | AsyncIterable<string | Uint8Array> | undefined;
  /**
   * Seconds after which the command is killed and `exec` throws `timeout`; 0: never. Default: 30, set by the service.
   */
  timeoutSec?: number;
  /**
   * Called with output as it comes; the next is read when its promise, if any, has resolved. An error that it throws kills the command,
   * and `exec` throws it. With either, `exec` uses a stream.
   */
  onStdout?: ((text: string) => unknown) | undefined;
  onStderr?: ((text: string) => unknown) | undefined;
  /** Aborts the call and kills the command. */
  signal?: AbortSignal | undefined;
}

export interface ExecResult {
  /** As text; invalid UTF-8 becomes U+FFFD. `stdoutBytes` has the original bytes. */
  stdout: string;
  stderr: string;
  stdoutBytes: Bytes;
  stderrBytes: Bytes;
  /** 128 + n: killed by signal n; 127: the command does not exist or cannot be executed, and `stderr` says why. */
  exitCode: number;
  durationMs: number;
  /** Output beyond the service's limit was cut off. */
  isTruncated: boolean;
}

/** Longest limit of a single request, below the 300 s after which some HTTP clients abort. */
const requestMaxSec = 240;
const answerGraceMs = 30_000;
/** Longest standard input of a single request, whose body holds it as base64. */
const requestInputMaxBytes = 512 * 1024;
const defaultTimeoutSec = 30;
const keptMaxBytes = 16 * 1024 * 1024;
const notFoundExitCode = 127;

interface Command {
  cmd: string;
  args: string[];
}

export async function execute(
  transport: Transport,
  path: string,
  command: Command,
  options: ExecOptions,
): Promise<ExecResult> {
  const { envs, cwd, user, stdin: _, onStdout, onStderr, timeoutSec: __, signal, ...unknown } = options;
  refuseUnknown("exec", unknown);
  checkArgs("exec", command.args);
  const isLive = onStdout !== undefined || onStderr !== undefined;
  const stdin = typeof options.stdin === "string" ? utf8(options.stdin) : options.stdin;
  const { timeoutSec } = options;
  if (timeoutSec === 0 || (timeoutSec ?? 0) > requestMaxSec) return long(transport, path, command, options, stdin);
  if (!isLive && (stdin === undefined || (stdin instanceof Uint8Array && stdin.length <= requestInputMaxBytes)))
    return short(transport, path, command, options, stdin);
  return long(transport, path, command, { ...options, timeoutSec: timeoutSec ?? defaultTimeoutSec }, stdin);
}

async function short(
  transport: Transport,
  path: string,
  command: Command,
  { envs, cwd, user, timeoutSec, signal }: ExecOptions,
  stdin: Uint8Array | undefined,
): Promise<ExecResult> {
  const result = await transport.json<ForegroundResult>({
    method: "POST",
    path: `${path}/exec`,
    json: { ...command, envs, cwd, user, timeout: timeoutSec, ...(stdin && { stdin_base64: toBase64(stdin) }) },
    timeoutMs: (timeoutSec ?? requestMaxSec) * 1_000 + answerGraceMs,
    signal,
  });
  const decode = result.encoding === "base64" ? fromBase64 : utf8;
  return resultOf(command, {
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
  command: Command,
  { envs, cwd, user, timeoutSec = 0, signal, onStdout, onStderr }: ExecOptions,
  stdin: Input | undefined,
): Promise<ExecResult> {
  const began = performance.now();
  const start = { ...command, envs, cwd, user, stdin: stdin !== undefined };
  const opened = await startStream(transport, path, start, { signal }).catch((error) => error);
  if (isCommandNotFound(opened)) return commandNotFound(command, opened.message);
  if (!(opened instanceof OutputStream)) throw opened;
  const stream = opened;
  let isLate = false;
  let failure: { error: unknown } | undefined;
  const fail = (error: unknown) => {
    failure = { error };
    stream.stop();
  };
  const callOff = after(timeoutSec * 1_000, () => {
    isLate = true;
    stream.stop();
  });
  try {
    if (stdin !== undefined) feed(stream, stdin).catch(fail);
    const { stdout, stderr, exitCode, isTruncated } = await collect(stream, keptMaxBytes, undefined, {
      stdout: onStdout,
      stderr: onStderr,
    });
    if (failure !== undefined) throw failure.error;
    const [stdoutBytes, stderrBytes] = [concatenated(stdout), concatenated(stderr)];
    if (isLate) {
      const details = { stdout: toBase64(stdoutBytes), stderr: toBase64(stderrBytes), encoding: "base64" };
      throw new ServiceError("timeout", `the command did not end within ${timeoutSec} s`, { details });
    }
    return resultOf(command, {
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

/** The result that the single request gives for such a command. */
function commandNotFound(command: Command, said: string): ExecResult {
  const rest = { exitCode: notFoundExitCode, durationMs: 0, isTruncated: false };
  return resultOf(command, { stdoutBytes: utf8(""), stderrBytes: utf8(`${said}\n`), ...rest });
}

type Input = Uint8Array | AsyncIterable<string | Uint8Array>;

/** Writes all of it, and the end; no more once the process has ended. */
async function feed(stream: OutputStream, stdin: Input): Promise<void> {
  for await (const part of stdin instanceof Uint8Array ? [stdin] : stdin) {
    if (stream.hasEnded) return;
    await stream.write(part);
  }
  stream.endStdin();
}

export interface StreamStart {
  cmd: string;
  args: string[];
  envs?: Record<string, string> | undefined;
  cwd?: string | undefined;
  user?: string | undefined;
  tag?: string | undefined;
  stdin?: boolean | undefined;
  survive?: boolean | undefined;
}

export function startStream(
  transport: Transport,
  path: string,
  { envs, cwd, user, tag, stdin, survive, ...command }: StreamStart,
  options: CallOptions,
): Promise<OutputStream> {
  const refusal = (said: string, code: string | undefined) => refusalWith(code, said);
  const start = {
    type: "start" as const,
    ...command,
    ...(envs === undefined ? {} : { envs }),
    ...(cwd === undefined ? {} : { cwd }),
    ...(user === undefined ? {} : { user }),
    ...(tag === undefined ? {} : { tag }),
    ...(stdin === true ? { stdin } : {}),
    ...(survive === true ? { survive } : {}),
  };
  const kill = (pid: number) =>
    transport.done({ method: "DELETE", path: `${path}/processes/${pid}`, query: { signal: "SIGKILL" } });
  return OutputStream.open(
    transport,
    `${path}/exec/stream`,
    { begin: start, refusal, kill, survive: survive === true },
    options,
  );
}

function resultOf({ cmd, args }: Command, known: Omit<ExecResult, "stdout" | "stderr">): ExecResult {
  const stderr = utf8Text(known.stderrBytes);
  const isLine = args.length === 0 && cmd.includes(" ") && stderr === `${cmd}: command not found\n`;
  if (isLine && known.exitCode === notFoundExitCode) {
    const told = `${stderr}exec runs one program, without a shell: use sh(${JSON.stringify(cmd)})\n`;
    return resultOf({ cmd, args }, { ...known, stderrBytes: utf8(told) });
  }
  return { stdout: utf8Text(known.stdoutBytes), stderr, ...known };
}
