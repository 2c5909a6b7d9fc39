/** Starts the relay's program as a child of this process, in a jail where there is one. */
import type { ChildProcess } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { spawnChild, standingFor } from "../vmm/child.ts";
import type { Jail } from "../vmm/jail/jail.ts";
import type { SandboxProfile } from "../vmm/jail/jail-args.ts";
import { programFilesOf } from "../vmm/jail/program-files.ts";
import { endProcess, startTicksOf } from "../vmm/process.ts";
import { socketsMax } from "./dialler.ts";

const mib = 1 << 20;
/** Objects of JavaScript; bytes of connections are outside of them. */
const heapMaxMb = 512;
const dataMaxBytes = 3_072 * mib;
/** Threads of Node. */
const threadsMax = 64;
const cpusMax = 2;
/** Descriptors beside those of connections. */
const otherFiles = 1_000;

const source = resolve(import.meta.dirname, "..");
/** The rooms that the program is made of. */
const rooms = ["relay", "network", "agent", "wire"].map((room) => join(source, room));

/** Heap of the broker, which holds messages on their way. */
const brokerHeapMaxMb = 64;
const brokerProgram = join(source, "relay/broker.ts");

export interface RelayStart {
  /** Undefined: without a jail. */
  jail?: Jail | undefined;
  /** The program, by its absolute path; another one in tests. */
  program?: string;
  /** False: its channel is the child's own, which ends this process where the program is hostile. */
  isBrokered?: boolean;
}

/** The child has a channel for the messages of messages.ts, and ends when that closes. */
export async function startRelay({
  jail,
  program = join(source, "relay/program.ts"),
  isBrokered = true,
}: RelayStart = {}): Promise<ChildProcess> {
  const argv = [process.execPath, `--max-old-space-size=${heapMaxMb}`, program];
  const through = isBrokered ? brokered : () => [];
  if (jail !== undefined) return await jail.startChild([...argv, randomUUID()], await relayProfile(program), through);
  return isBrokered ? await startBrokered(argv) : spawnChild(argv).child;
}

/** The command line in front of the program's, which ends in a mark that no other one has. */
function brokered(descriptors: number): string[] {
  return [process.execPath, `--max-old-space-size=${brokerHeapMaxMb}`, brokerProgram, String(descriptors)];
}

/** The same for any program, without a jail. */
export async function startBrokered(argv: readonly string[]): Promise<ChildProcess> {
  const { child } = spawnChild([...brokered(0), ...argv, randomUUID()]);
  const told = once(child, "message");
  const ended = once(child, "exit");
  const [message] = await Promise.race([told, ended.then(() => [undefined])]);
  const { pid } = Object(message) as { pid?: number };
  if (pid === undefined) throw new Error("the relay could not be started");
  const startTicks = startTicksOf(pid);
  if (startTicks !== null) child.once("exit", () => void endProcess({ pid, startTicks }).catch(() => {}));
  return standingFor(child, pid);
}

async function relayProfile(program: string): Promise<SandboxProfile> {
  const node = await programFilesOf(process.execPath);
  return {
    // package.json says that the sources are modules.
    readOnly: [...new Set([...node.readOnly, ...rooms, dirname(program), join(source, "../package.json")])],
    writable: [],
    deviceNodes: [],
    folder: "/",
    hasNetwork: true,
    limits: {
      fileBytes: 0,
      dataBytes: dataMaxBytes,
      processes: threadsMax,
      cpus: cpusMax,
      openFiles: Math.min(socketsMax + otherFiles, openFilesMax()),
    },
  };
}

/** The hard limit of this process, which its children cannot exceed. */
function openFilesMax(): number {
  const limit = /^Max open files +\S+ +(\d+)/m.exec(readFileSync("/proc/self/limits", "latin1"))?.[1];
  return limit === undefined ? Number.POSITIVE_INFINITY : Number(limit);
}
