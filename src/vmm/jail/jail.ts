/**
 * The jail around every QEMU, and around every other program that opens files written by a guest. A SandboxProfile
 * lists the files, devices and limits of one process. The jail sets the files' owners, assigns a user where it runs as
 * root, and starts the program (jail-args.ts builds the command line; docs/adr/0008 has the reasons).
 *
 *      full      as root: each VM runs under a user that no other process has
 *      rootless  everything that does not need root; the process keeps the service's user, in a user namespace
 *      off       no jail: QEMU runs with the rights of the service, behind its own system call filter only
 */

import type { ChildProcess } from "node:child_process";
import { randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import type { Socket } from "node:net";
import { CapsuleError, messageOf } from "../../wire/errors.ts";
import { channelEnvironment, endChild, hasEnded, infoFdOfChild, spawnChild, standingFor } from "../child.ts";
import {
  endProcess,
  type Inherited,
  isAlive,
  type Spawned,
  spawnDetached,
  startTicksOf,
  yieldToService,
} from "../process.ts";
import type { VmProcess } from "../vmm.ts";
import { Cgroups, cgroupRemedy } from "./cgroups.ts";
import { closeInheritedFds } from "./inherited-fds.ts";
import { type JailUser, jailArgs, type SandboxProfile, type Tools } from "./jail-args.ts";
import { allowTraversal, chownFile, groupOf, share } from "./jail-files.ts";
import { childrenOf, killJailOf } from "./jail-leftovers.ts";
import { findTools } from "./jail-tools.ts";
import { JailUids, type UidRange } from "./jail-uids.ts";
import { programFilesOf } from "./program-files.ts";
import { seccompFilter } from "./seccomp-filter.ts";

const startMs = 20_000;
/** Far longer than a program of Node, which may start first and yields to the service, takes on a busy machine. */
const childStartMs = 120_000;
const runMs = 120_000;
/** Longest JSON object that bubblewrap writes to its info descriptor. */
const infoBytes = 4_096;

export interface JailOptions {
  uids: UidRange;
}

/** The protection around each QEMU, as reported to operators. */
export interface JailReport {
  mode: "full" | "rootless" | "off";
  /** "v2": control groups limit memory, CPU and processes. "none": only the kernel's per-process limits do. */
  cgroup: "v2" | "none";
  /** Protections that this machine lacks, each with a remedy. */
  missing: string[];
}

export const noJail: JailReport = {
  mode: "off",
  cgroup: "none",
  missing: ["the jail around QEMU (unset CAPSULE_JAIL)"],
};

export interface Jailed {
  /** The program itself, not the bubblewrap process that waits for it. */
  process: VmProcess;
  stderrTail: Spawned["stderrTail"];
  /** Makes the process the owner of a file, so that it can open it through its hand-over folder. */
  chownToJail: (path: string) => Promise<void>;
}

interface Spawning {
  argv: string[];
  profile: SandboxProfile;
  user: JailUser | null;
  inherited?: Inherited[];
  isTold: boolean;
}

export class Jail {
  readonly mode: "full" | "rootless";
  readonly #tools: Tools;
  /** Files of the programs that run inside the jail before the jailed program does. */
  readonly #toolFiles: string[];
  readonly #uids: JailUids | null;
  readonly #filter: Buffer | null;
  readonly #cgroups: Cgroups | undefined;

  /** Throws CapsuleError, with a remedy, where no jail can be built. */
  static async open({ uids }: JailOptions): Promise<Jail> {
    closeInheritedFds();
    const isRoot = process.geteuid?.() === 0;
    const tools = findTools();
    const inside = isRoot ? [tools.prlimit, tools.setpriv, tools.unshare] : [tools.prlimit];
    const filesOfEach = await Promise.all(inside.map(programFilesOf));
    const toolFiles = [...new Set(filesOfEach.flatMap(({ readOnly }) => readOnly))];
    const jail = new Jail(isRoot ? new JailUids(uids) : null, tools, toolFiles);
    await jail.#requireWorking();
    return jail;
  }

  private constructor(uids: JailUids | null, tools: Tools, toolFiles: string[]) {
    this.mode = uids === null ? "rootless" : "full";
    this.#uids = uids;
    this.#tools = tools;
    this.#toolFiles = toolFiles;
    this.#filter = seccompFilter({ mayUnshareUser: uids !== null });
    this.#cgroups = Cgroups.open(uids !== null);
  }

  /** Limits the memory of all jailed processes together, where control groups do. */
  limitMemory(maxBytes: number): void {
    this.#cgroups?.limitMemory(maxBytes);
  }

  /** Bytes that they may take before the kernel slows them down; infinite without control groups. */
  memoryRoom(): number {
    return this.#cgroups?.memoryRoom() ?? Number.POSITIVE_INFINITY;
  }

  /** Programs of the jail that have been removed since it was opened; without one of them no VM starts. */
  missingTools(): string[] {
    return Object.values(this.#tools).filter((path) => path !== null && !existsSync(path));
  }

  report(): JailReport {
    const missing: string[] = [];
    if (this.mode === "rootless") missing.push("a separate user for each VM (run the service as root)");
    if (this.#filter === null) missing.push("the jail's system call filter (written for x86-64 only)");
    if (this.#cgroups === undefined) missing.push(cgroupRemedy);
    return { mode: this.mode, cgroup: this.#cgroups === undefined ? "none" : "v2", missing };
  }

  /**
   * Starts the program at the absolute path `argv[0]`. It inherits the descriptors in `inherited`, from 3 on. It
   * becomes the owner of the profile's writable files. Read-only files become readable to the group of all jails; a
   * process still sees only those of its own profile.
   */
  async start(argv: string[], profile: SandboxProfile, inherited: Inherited[] = []): Promise<Jailed> {
    const user = await this.#assignUser(profile);
    try {
      const { spawned, process } = await this.#spawnTold(argv, profile, user, inherited);
      if (process === null) throw await failure(spawned, "the program ended before it ran");
      if (user !== null) this.#uids?.assign(user.uid, process);
      const chownToJail = async (path: string) => (user === null ? undefined : await chownFile(path, user.uid));
      return { process, stderrTail: spawned.stderrTail, chownToJail };
    } catch (error) {
      if (user !== null) this.#uids?.release(user.uid);
      throw error;
    }
  }

  /**
   * Runs a program to its end. Resolves with the end of its standard error; throws with it when the program fails. When the signal
   * fires the program is killed, and when it has ended the signal's reason is thrown. It needs nothing of the service meanwhile.
   */
  async run(
    argv: string[],
    profile: SandboxProfile,
    { deadlineMs = runMs, signal }: { deadlineMs?: number; signal?: AbortSignal | undefined } = {},
  ): Promise<string> {
    signal?.throwIfAborted();
    const user = await this.#assignUser(profile);
    try {
      const spawned = this.#spawn({ argv, profile, user, isTold: false });
      const { pid } = spawned.process;
      for (const pipe of spawned.pipes) pipe.unref();
      for (const child of childrenOf(pid)) yieldToService(child); // forked before this was done to bubblewrap
      const end = () => isAlive(spawned.process) && killJailOf(pid);
      const timer = setTimeout(end, deadlineMs);
      signal?.addEventListener("abort", end, { once: true });
      if (signal?.aborted) end();
      const exit = await spawned.exited;
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      const stderr = await spawned.stderrTail();
      if (exit.code === 0) return stderr;
      throw signal?.aborted ? signal.reason : new Error(`${argv[0]} ended with ${exit.signal ?? exit.code}: ${stderr}`);
    } finally {
      if (user !== null) this.#uids?.release(user.uid);
    }
  }

  /**
   * Starts a program of Node as a child with a channel of messages. It ends as the program does, has its pid, and killing it kills the
   * program. `through`: a program that starts the jail and stands between, by the number of descriptors that the jail inherits.
   */
  async startChild(
    argv: string[],
    profile: SandboxProfile,
    through: (descriptors: number) => string[] = () => [],
  ): Promise<ChildProcess> {
    const user = await this.#assignUser(profile);
    const release = () => user === null || this.#uids?.release(user.uid);
    const known = Promise.withResolvers<VmProcess | undefined>();
    let child: ChildProcess | undefined;
    try {
      const filter = seccompFilter({ mayUnshareUser: user !== null, program: "relay" });
      const join = this.#cgroups?.make(randomUUID(), profile.limits) ?? [];
      const withTools: SandboxProfile = {
        ...profile,
        readOnly: [...this.#toolFiles, ...profile.readOnly],
        environment: channelEnvironment,
      };
      const started = { profile: withTools, user, tools: this.#tools, join, argv };
      const filterFd = filter === null ? null : infoFdOfChild + 1;
      const command = jailArgs({ ...started, infoFd: infoFdOfChild, filterFd });
      const count = filter === null ? 1 : 2;
      const spawned = spawnChild([...through(count), ...command], count);
      child = spawned.child;
      child.once("exit", () => void known.promise.then(endJailed).then(release));
      if (filter !== null) spawned.pipes[1]?.end(filter);
      const pid = await readChildPid(spawned.pipes[0]!, childStartMs);
      for (const pipe of spawned.pipes) pipe.unref();
      const startTicks = pid === null ? null : startTicksOf(pid);
      known.resolve(pid === null || startTicks === null ? undefined : { pid, startTicks });
      const why = hasEnded(child) ? "the program that starts it has ended" : "bubblewrap does not answer";
      if (pid === null || hasEnded(child))
        throw new CapsuleError("internal_error", `a jail could not be built: ${why}`);
      return standingFor(child, pid);
    } catch (error) {
      known.resolve(undefined);
      if (child?.pid === undefined) release();
      else endChild(child);
      throw error;
    }
  }

  /** True for a process whose user is reserved for jails. Its name and command line do not matter. */
  holds(process: VmProcess): boolean {
    return this.#uids?.holds(process) ?? false;
  }

  /** Keeps the user of a VM that an earlier daemon started from being assigned again. */
  adopt(process: VmProcess): void {
    this.#uids?.adopt(process);
  }

  /** The process is null when it has ended already. */
  async #spawnTold(argv: string[], profile: SandboxProfile, user: JailUser | null, inherited: Inherited[]) {
    const spawned = this.#spawn({ argv, profile, user, inherited, isTold: true });
    try {
      const pid = await readChildPid(spawned.pipes.at(-1)!, startMs);
      if (pid === null) throw await failure(spawned, "bubblewrap does not answer");
      yieldToService(pid); // bubblewrap may have forked it before this was done to itself
      const startTicks = startTicksOf(pid);
      return { spawned, process: startTicks === null ? null : { pid, startTicks } };
    } finally {
      for (const pipe of spawned.pipes) pipe.unref();
    }
  }

  /** Starts bubblewrap. Its last pipe tells the program's pid where that `isTold`. */
  #spawn({ argv, profile, user, inherited = [], isTold }: Spawning): Spawned {
    const filterFd = this.#filter === null ? null : 3 + inherited.length;
    const infoFd = isTold ? 3 + inherited.length + (filterFd === null ? 0 : 1) : null;
    const withTools: SandboxProfile = { ...profile, readOnly: [...this.#toolFiles, ...profile.readOnly] };
    const join = this.#cgroups?.make(randomUUID(), profile.limits) ?? [];
    const command = jailArgs({ profile: withTools, user, tools: this.#tools, join, infoFd, filterFd, argv });
    const pipes = [filterFd, infoFd].flatMap((fd): Inherited[] => (fd === null ? [] : ["pipe"]));
    const spawned = spawnDetached(command, "/", [...inherited, ...pipes]);
    if (this.#filter !== null) spawned.pipes[0]?.end(this.#filter);
    return spawned;
  }

  async #assignUser(profile: SandboxProfile): Promise<JailUser | null> {
    if (this.#uids === null) {
      if (profile.handoverDir !== undefined) throw new Error("a hand-over folder needs a jail with separate users");
      return null;
    }
    const uid = this.#uids.reserve();
    try {
      const { readers } = this.#uids;
      await Promise.all([
        ...profile.writable.map((path) => chownFile(path, uid)),
        ...profile.readOnly.map((path) => share(path, readers)),
        profile.handoverDir === undefined ? undefined : allowTraversal(profile.handoverDir, uid),
      ]);
      const groups = await Promise.all(profile.deviceNodes.map(groupOf));
      return { uid, gid: uid, groups: [...new Set([readers, ...groups])] };
    } catch (error) {
      this.#uids.release(uid);
      throw error;
    }
  }

  /** Runs a trivial program once, so that a jail that cannot be built fails at start and not with every capsule. */
  async #requireWorking(): Promise<void> {
    const limits = { fileBytes: 0, dataBytes: 1 << 30, processes: 64, openFiles: 64, cpus: 1 };
    const profile: SandboxProfile = { readOnly: [], writable: [], deviceNodes: [], folder: "/", limits };
    try {
      await this.run([this.#tools.prlimit, "--version"], profile, { deadlineMs: startMs });
    } catch (cause) {
      const why = messageOf(cause);
      const remedy = "allow namespaces to this service, or set CAPSULE_JAIL=off to run hostile code without a jail";
      throw new CapsuleError("internal_error", `no jail can be built on this machine (${why}); ${remedy}`, { cause });
    }
  }
}

async function endJailed(process: VmProcess | undefined): Promise<void> {
  if (process !== undefined) await endProcess(process).catch(() => {});
}

/** Kills bubblewrap, and the program with it; the error quotes its standard error, or else `why`. */
async function failure(spawned: Spawned, why: string): Promise<CapsuleError> {
  if (isAlive(spawned.process)) killJailOf(spawned.process.pid);
  await endProcess(spawned.process);
  const stderr = await spawned.stderrTail();
  return new CapsuleError("agent_error", `A jail could not be built: ${stderr === "" ? why : stderr}`);
}

/** Reads the pid of bubblewrap's child from the JSON object on its info descriptor; null when none comes. */
async function readChildPid(info: Socket, deadlineMs: number): Promise<number | null> {
  const timer = setTimeout(() => info.destroy(), deadlineMs);
  const json = await new Promise<string>((resolve) => {
    let text = "";
    info.on("data", (chunk: Buffer) => {
      text += chunk.toString("latin1");
      if (text.includes("}") || text.length > infoBytes) resolve(text);
    });
    info.once("close", () => resolve(text));
  });
  clearTimeout(timer);
  const pid = /"child-pid": (\d+)/.exec(json)?.[1];
  return pid === undefined ? null : Number(pid);
}
