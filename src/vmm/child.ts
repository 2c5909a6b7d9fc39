/** Children of the daemon that end with it: programs of Node with a channel of messages, by themselves or in a jail. */
import { type ChildProcess, spawn } from "node:child_process";
import type { Socket } from "node:net";
import { killFirst } from "./oom-score.ts";

/** The end of a child's standard error that is passed on when it fails. */
const stderrTailBytes = 8_192;

/** Time for a child to end after its channel has closed; the relay's broker takes 2 s. */
const childEndMs = 5_000;

const channelFd = 3;
/** The first descriptor behind the channel. */
export const infoFdOfChild = channelFd + 1;
/** Names the channel to a program whose environment was cleared. */
export const channelEnvironment = {
  NODE_CHANNEL_FD: String(channelFd),
  NODE_CHANNEL_SERIALIZATION_MODE: "json",
};

/** With a channel as descriptor 3, and `pipeCount` pipes from 4 on. */
export function spawnChild(argv: readonly string[], pipeCount = 0): { child: ChildProcess; pipes: Socket[] } {
  const [program = "", ...args] = argv;
  const pipes = Array<"pipe">(pipeCount).fill("pipe");
  const child = spawn(program, args, {
    cwd: "/",
    stdio: ["ignore", "ignore", "pipe", "ipc", ...pipes],
    env: { PATH: process.env.PATH ?? "/usr/bin:/bin", LANG: "C.UTF-8" },
  });
  child.on("error", () => {}); // a program that is missing; the child has no pid then
  killFirst(child.pid);
  tellFailure(child);
  const ends = pipes.map((_, index) => child.stdio[infoFdOfChild + index] as Socket);
  for (const end of ends) end?.on("error", () => {}); // the child has ended
  return { child, pipes: ends };
}

/** Lets a child that waits for another process stand for that one: its pid, and both are killed. */
export function standingFor(child: ChildProcess, pid: number): ChildProcess {
  const kill = child.kill.bind(child);
  Object.defineProperty(child, "pid", { value: pid });
  child.kill = (signal = "SIGTERM") => {
    if (child.exitCode !== null || child.signalCode !== null) return false;
    try {
      process.kill(pid, signal);
    } catch {
      // It has ended, and the child is about to.
    }
    return kill(signal);
  };
  return child;
}

export function hasEnded({ exitCode, signalCode }: ChildProcess): boolean {
  return exitCode !== null || signalCode !== null;
}

/** Ends a child without a known program: one that stands between by its channel, so that it ends what it has started. */
export function endChild(child: ChildProcess): void {
  if (child.connected) child.disconnect();
  const timer = setTimeout(() => child.kill("SIGKILL"), childEndMs);
  child.once("exit", () => clearTimeout(timer));
}

/** Passes on the end of what a child wrote when it ended by an error. */
function tellFailure(child: ChildProcess): void {
  let tail = Buffer.alloc(0);
  child.stderr?.on("data", (chunk: Buffer) => {
    tail = Buffer.concat([tail, chunk]).subarray(-stderrTailBytes);
  });
  child.stderr?.on("error", () => {});
  child.once("close", (code: number | null) => {
    if (code !== null && code !== 0 && tail.length > 0) process.stderr.write(tail);
  });
}
