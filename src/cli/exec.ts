/** `capsule exec`: runs a command in a capsule as if it ran here: standard input, live output, exit code, Ctrl-C. */
import { isUtf8 } from "node:buffer";
import { type Capsule, hasCode, isCommandNotFound, type OutputStream } from "../sdk/sdk.ts";
import { after } from "../sdk/timer.ts";
import { type Call, UsageError } from "./command.ts";
import { exitCodes, report } from "./failures.ts";
import { note, print, printJson, printLine } from "./screen.ts";
import { capsuleBy, serviceUrl } from "./service.ts";
import { isPassedOn, passOn } from "./standard-input.ts";
import { relayTerminal, sizeHere } from "./terminal.ts";

const forwarded = ["SIGINT", "SIGTERM", "SIGHUP"] as const;

export async function exec(call: Call): Promise<number> {
  const [id] = call.words as [string];
  const [cmd, ...args] = call.rest;
  if (cmd === undefined) throw new UsageError("CMD is missing");
  checkOptions(call);
  const asked = {
    name: "exec",
    cmd,
    args,
    options: commandOptions(call),
    timeoutSec: call.number("timeout") ?? 0,
  } as const;
  const capsule = await capsuleBy(await call.client({ streams: true }), id);
  if (!call.isSet("background")) return await execIn(call, capsule, asked);
  try {
    return await background(call, capsule, asked);
  } catch (error) {
    return codeOrThrow(call, "exec", error);
  }
}

/** A command, and the longest time that it may run; 0: any. */
export interface AskedCommand {
  /** The command of this program that runs it. */
  name: "exec" | "run";
  cmd: string;
  args: string[];
  options: ReturnType<typeof commandOptions>;
  timeoutSec: number;
  /** Ends it, also while it starts. */
  signal?: AbortSignal;
}

/** Runs a command to its end. */
export async function execIn(call: Call, capsule: Capsule, asked: AskedCommand): Promise<number> {
  const { name, cmd, args, options, timeoutSec, signal } = asked;
  try {
    if (call.isSet("tty")) return await inTerminal(call, capsule, asked);
    if (call.isJson) return await whole(call, capsule, asked);
    const stdin = isPassedOn(call.isSet("interactive"));
    const stream = await capsule.stream(cmd, args, { ...options, stdin, signal });
    if (stdin) passOn(stream);
    return await relay(capsule, stream, { name, timeoutSec });
  } catch (error) {
    return codeOrThrow(call, name, error);
  }
}

function codeOrThrow(call: Call, name: string, error: unknown): number {
  const code = specialCode(error);
  if (code === undefined) throw error;
  report(name, error, { isJson: call.isJson, url: serviceUrl() });
  return code;
}

/** Throws a UsageError. */
export function checkOptions(call: Call): void {
  const forInput = ["interactive", "tty"].find((option) => call.isSet(option));
  if (call.isSet("background") && forInput !== undefined)
    throw new UsageError(`--background and --${forInput} exclude each other`);
  if (call.text("tag") !== undefined && !call.isSet("background"))
    throw new UsageError("--tag names a process that --background leaves running");
  if (call.isSet("tty") && call.isJson) throw new UsageError("--tty and --json exclude each other");
}

/** Exit codes by which scripts tell these cases from a refusal of the service. */
function specialCode(error: unknown): number | undefined {
  if (hasCode(error, "timeout")) return exitCodes.ranOut;
  return isCommandNotFound(error) ? exitCodes.noCommand : undefined;
}

async function background(call: Call, capsule: Capsule, { cmd, args, options }: AskedCommand): Promise<number> {
  const tag = call.text("tag");
  const started = await capsule.spawn(cmd, args, { ...options, ...(tag === undefined ? {} : { tag }) });
  if (call.isJson) await printJson({ pid: started.pid, tag: started.selector });
  else await printLine(started.selector);
  return exitCodes.done;
}

/** The exit code stands in the JSON, and is also this program's own. */
async function whole(
  call: Call,
  capsule: Capsule,
  { cmd, args, options, timeoutSec, signal }: AskedCommand,
): Promise<number> {
  const { stdoutBytes, stderrBytes, exitCode, durationMs, isTruncated } = await capsule.exec(cmd, args, {
    ...options,
    ...{ timeoutSec, signal },
    stdin: isPassedOn(call.isSet("interactive")) ? process.stdin : undefined,
  });
  const encoding = isUtf8(stdoutBytes) && isUtf8(stderrBytes) ? "utf-8" : "base64";
  const [stdout, stderr] = [stdoutBytes, stderrBytes].map((bytes) => Buffer.from(bytes).toString(encoding));
  await printJson({ stdout, stderr, exitCode, durationMs, encoding, ...(isTruncated ? { truncated: true } : {}) });
  return exitCode;
}

/** Without a window of its own the terminal has 80 columns and 24 rows. The loss of this terminal kills the command. */
async function inTerminal(
  call: Call,
  capsule: Capsule,
  { name, cmd, args, options, timeoutSec, signal }: AskedCommand,
): Promise<number> {
  const pty = await capsule.pty({ cmd, args, ...options, ...sizeHere(), signal });
  const kill = () => pty.kill();
  let isLate = false;
  const callOff = after(timeoutSec * 1_000, () => {
    isLate = true;
    kill();
  });
  for (const signal of forwarded) process.on(signal, kill);
  try {
    await relayTerminal(pty, isPassedOn(call.isSet("interactive")) ? { typed: (bytes) => bytes } : undefined);
  } finally {
    callOff();
    for (const signal of forwarded) process.off(signal, kill);
  }
  return codeOf(pty.exitCode, isLate, { name, timeoutSec });
}

type Limit = Pick<AskedCommand, "name" | "timeoutSec">;

function codeOf(exitCode: number | undefined, isLate: boolean, { name, timeoutSec }: Limit): number {
  if (isLate) note(`capsule ${name}: the command did not end within ${timeoutSec} s, and was killed`);
  return isLate ? exitCodes.ranOut : (exitCode ?? exitCodes.notRun);
}

/** Relays output and signals. `timeoutSec` 0: no limit. */
async function relay(capsule: Capsule, stream: OutputStream, limit: Limit): Promise<number> {
  let isLate = false;
  const forward = forwarding(capsule, stream);
  for (const signal of forwarded) process.on(signal, forward);
  const callOff = after(limit.timeoutSec * 1_000, () => {
    isLate = true;
    stream.stop();
  });
  try {
    for await (const { channel, bytes } of stream) await print(bytes, process[channel]);
  } finally {
    callOff();
    for (const signal of forwarded) process.off(signal, forward);
  }
  return codeOf(stream.exitCode, isLate, limit);
}

/**
 * The first signal is passed on as SIGTERM, the second one kills the command, and so does the loss of the terminal
 * (SIGHUP).
 */
function forwarding(capsule: Capsule, stream: OutputStream): (signal: NodeJS.Signals) => void {
  let isAsked = false;
  return (signal) => {
    if (isAsked || signal === "SIGHUP") stream.stop();
    else
      capsule
        .process(stream.pid)
        .kill("SIGTERM")
        .catch(() => stream.stop());
    isAsked = true;
  };
}

/** The options that every command and terminal takes. */
export function commandOptions(call: Call): { envs: Record<string, string>; cwd?: string; user?: string } {
  const [cwd, user] = [call.text("cwd"), call.text("user")];
  return {
    envs: environment(call.list("env")),
    ...(cwd === undefined ? {} : { cwd }),
    ...(user === undefined ? {} : { user }),
  };
}

export function environment(pairs: string[]): Record<string, string> {
  return Object.fromEntries(
    pairs.map((pair) => {
      const [, name, value] = /^([^=]+)=(.*)$/s.exec(pair) ?? [];
      if (name === undefined) throw new UsageError(`--env takes NAME=VALUE, not ${JSON.stringify(pair)}`);
      return [name, value!];
    }),
  );
}
