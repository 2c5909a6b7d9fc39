/**
 * The jail around every QEMU, and around every other program that opens what a guest has written. What a process may see
 * and use is a Cell; the jail readies the cell's files, gives it a user of its own where root allows, and starts the
 * program in it (jail-args.ts says how, and docs/adr/0008 why).
 *
 *      full      as root: a user of its own for every VM
 *      rootless  everything that does not need root; the process stays the user who runs the service, in a user namespace
 *      off       none: QEMU runs with the rights of whoever runs the service, behind its own system call filter only
 */
import { randomUUID } from "node:crypto";
import { constants } from "node:fs";
import { chmod, chown, open, stat } from "node:fs/promises";
import type { Socket } from "node:net";
import { release } from "node:os";
import { CapsuleError } from "../../wire/errors.ts";
import { endProcess, type Inherited, lowerPriority, type Spawned, spawnDetached, startTicksOf } from "../process.ts";
import type { VmProcess } from "../vmm.ts";
import { Cgroups, remedy as cgroupRemedy } from "./cgroups.ts";
import { closeInheritedFds } from "./inherited-fds.ts";
import { type JailUser, jailArgs, type SandboxProfile, type Tools } from "./jail-args.ts";
import { JailUids, type UidRange } from "./jail-uids.ts";
import { findProgram, programFilesOf } from "./program-files.ts";
import { seccompFilter } from "./seccomp-filter.ts";

const startMs = 20_000;
const runMs = 120_000;
const tellingBytes = 4_096;

export interface JailOptions {
  uids: UidRange;
}

/** What stands around each QEMU, for operators. */
export interface JailReport {
  mode: "full" | "rootless" | "off";
  /** Whether control groups bound its memory, processor and processes; else only the kernel's per-process limits do. */
  cgroup: "v2" | "none";
  /** What there is not, each with a remedy. */
  missing: string[];
}

/** Nothing is not to be mistaken for something. */
export const noJail: JailReport = {
  mode: "off",
  cgroup: "none",
  missing: ["the jail around QEMU (unset CAPSULE_JAIL)"],
};

/** What a start leaves: the process inside, not the one of the jail that waits for it. */
export interface Jailed {
  process: VmProcess;
  stderrTail: Spawned["stderrTail"];
  /** Makes a file the process's own: one that it shall be able to open through its hatch. */
  chownToJail: (path: string) => Promise<void>;
}

export class Jail {
  readonly mode: "full" | "rootless";
  readonly #tools: Tools;
  /** What the way into the jail needs to see. */
  readonly #toolsView: string[];
  readonly #uids: JailUids | null;
  readonly #filter: Buffer | null;
  readonly #cgroups: Cgroups | undefined;

  /** Throws CapsuleError, with a remedy, where no jail can be built. */
  static async open({ uids }: JailOptions): Promise<Jail> {
    closeInheritedFds();
    const isRoot = process.geteuid?.() === 0;
    const tools = findTools();
    const inside = isRoot ? [tools.prlimit, tools.setpriv, tools.unshare] : [tools.prlimit];
    const views = await Promise.all(inside.map(programFilesOf));
    const view = [...new Set(views.flatMap(({ readOnly }) => readOnly))];
    const jail = new Jail(isRoot ? new JailUids(uids) : null, tools, view);
    await jail.#requireWorking();
    return jail;
  }

  private constructor(uids: JailUids | null, tools: Tools, toolsView: string[]) {
    this.mode = uids === null ? "rootless" : "full";
    this.#uids = uids;
    this.#tools = tools;
    this.#toolsView = toolsView;
    this.#filter = seccompFilter({ mayUnshareUser: uids !== null });
    this.#cgroups = Cgroups.open(uids !== null);
  }

  report(): JailReport {
    const missing: string[] = [];
    if (this.mode === "rootless") missing.push("users of their own for VMs (run the service as root)");
    if (this.#filter === null) missing.push("our own system call filter (written for x86-64 only)");
    if (this.#cgroups === undefined) missing.push(cgroupRemedy);
    return { mode: this.mode, cgroup: this.#cgroups === undefined ? "none" : "v2", missing };
  }

  /**
   * Starts a program, given by its absolute path, in a cell. It inherits the descriptors in `inherited`, from 3 on.
   * Writable files become its own; read-only ones are made readable to all jails, whose only way to them is the cell.
   */
  async start(argv: string[], cell: SandboxProfile, inherited: Inherited[] = []): Promise<Jailed> {
    const identity = await this.#enroll(cell);
    try {
      const { spawned, process } = await this.#spawn(argv, cell, identity, inherited);
      if (process === null) throw await failure(spawned, "it ended before it ran");
      if (identity !== null) this.#uids?.assign(identity.uid, process);
      const handIn = async (path: string) => (identity === null ? undefined : await give(path, identity.uid));
      return { process, stderrTail: spawned.stderrTail, chownToJail: handIn };
    } catch (error) {
      if (identity !== null) this.#uids?.giveBack(identity.uid);
      throw error;
    }
  }

  /** Runs a program to its end in a cell; resolves with its last words, and throws with them when it fails. */
  async run(argv: string[], cell: SandboxProfile, deadlineMs = runMs): Promise<string> {
    const identity = await this.#enroll(cell);
    try {
      const { spawned, process } = await this.#spawn(argv, cell, identity, []);
      const end = () => process === null || void endProcess(process).catch(() => {});
      const timer = setTimeout(end, deadlineMs);
      const { code, signal } = await spawned.exited;
      clearTimeout(timer);
      const said = await spawned.stderrTail();
      if (code !== 0) throw new Error(`${argv[0]} ended with ${signal ?? code}: ${said}`);
      return said;
    } finally {
      if (identity !== null) this.#uids?.giveBack(identity.uid);
    }
  }

  /** True for a process that can only be in a jail, whatever it calls itself. */
  holds(process: VmProcess): boolean {
    return this.#uids?.holds(process) ?? false;
  }

  /** Of an earlier daemon: nobody else gets its user. */
  adopt(process: VmProcess): void {
    this.#uids?.adopt(process);
  }

  /** The process is null when it has ended already. */
  async #spawn(argv: string[], cell: SandboxProfile, identity: JailUser | null, inherited: Inherited[]) {
    const infoFd = 3 + inherited.length;
    const filterFd = this.#filter === null ? null : infoFd + 1;
    const whole: SandboxProfile = { ...cell, readOnly: [...this.#toolsView, ...cell.readOnly] };
    const join = this.#cgroups?.make(randomUUID(), cell.limits) ?? [];
    const command = jailArgs({ profile: whole, user: identity, tools: this.#tools, join, infoFd, filterFd, argv });
    const pipes: Inherited[] = filterFd === null ? ["pipe"] : ["pipe", "pipe"];
    const spawned = spawnDetached(command, "/", [...inherited, ...pipes]);
    const [info, filter] = spawned.pipes;
    try {
      if (this.#filter !== null) filter?.end(this.#filter);
      const pid = await insideOf(info!);
      if (pid === null) throw await failure(spawned, "bubblewrap does not answer");
      lowerPriority(pid); // bubblewrap may have made it before it was told to give way itself
      const startTicks = startTicksOf(pid);
      return { spawned, process: startTicks === null ? null : { pid, startTicks } };
    } finally {
      for (const pipe of spawned.pipes) pipe.unref();
    }
  }

  async #enroll(cell: SandboxProfile): Promise<JailUser | null> {
    if (this.#uids === null) {
      if (cell.handoverDir !== undefined) throw new Error("a hatch is closed only to a user of its own");
      return null;
    }
    const uid = this.#uids.take();
    try {
      const { readers } = this.#uids;
      await Promise.all([
        ...cell.writable.map((path) => give(path, uid)),
        ...cell.readOnly.map((path) => share(path, readers)),
        cell.handoverDir === undefined ? undefined : showHatch(cell.handoverDir, uid),
      ]);
      const groups = await Promise.all(cell.devices.map(groupOf));
      return { uid, gid: uid, groups: [...new Set([readers, ...groups])] };
    } catch (error) {
      this.#uids.giveBack(uid);
      throw error;
    }
  }

  /** A jail that cannot be built is better found out now than by every capsule. */
  async #requireWorking(): Promise<void> {
    const limits = { fileBytes: 0, dataBytes: 1 << 30, processes: 64, openFiles: 64, cpus: 1 };
    const cell: SandboxProfile = { readOnly: [], writable: [], devices: [], folder: "/", limits };
    try {
      await this.run([this.#tools.prlimit, "--version"], cell, startMs);
    } catch (cause) {
      const why = cause instanceof Error ? cause.message : String(cause);
      const remedy = "allow namespaces to this service, or set CAPSULE_JAIL=off to run hostile code without a jail";
      throw new CapsuleError("internal_error", `no jail can be built here (${why}); ${remedy}`, { cause });
    }
  }
}

function findTools(): Tools {
  const find = (name: string, debianPackage: string) => {
    const path = findProgram(name);
    if (path !== undefined) return path;
    const remedy = `run apt-get install ${debianPackage}, or set CAPSULE_JAIL=off to run hostile code without a jail`;
    throw new CapsuleError("internal_error", `no jail can be built here: ${name} is missing; ${remedy}`);
  };
  return {
    bwrap: find("bwrap", "bubblewrap"),
    chrt: isSchedulerRecent(release()) ? find("chrt", "util-linux") : null,
    prlimit: find("prlimit", "util-linux"),
    setpriv: find("setpriv", "util-linux"),
    unshare: find("unshare", "util-linux"),
  };
}

/**
 * Linux 6.12 and later, whose scheduler gives whoever wakes up its turn soon in any case. Before, a batch that is waited for
 * waits until the slice of whoever runs is over.
 */
export function isSchedulerRecent(kernel: string): boolean {
  const [major = 0, minor = 0] = kernel.split(/[.-]/).map(Number);
  return major > 6 || (major === 6 && minor >= 12);
}

/** Ends what there is of a jail. */
async function failure(spawned: Spawned, why: string): Promise<CapsuleError> {
  await endProcess(spawned.process);
  const said = await spawned.stderrTail();
  return new CapsuleError("agent_error", `A jail could not be built: ${said === "" ? why : said}`);
}

/** The pid that bubblewrap tells, in a JSON object, of the process it has made; null when it does not. */
async function insideOf(info: Socket): Promise<number | null> {
  const timer = setTimeout(() => info.destroy(), startMs);
  const said = await new Promise<string>((resolve) => {
    let text = "";
    info.on("data", (chunk: Buffer) => {
      text += chunk.toString("latin1");
      if (text.includes("}") || text.length > tellingBytes) resolve(text);
    });
    info.once("close", () => resolve(text));
  });
  clearTimeout(timer);
  const pid = /"child-pid": (\d+)/.exec(said)?.[1];
  return pid === undefined ? null : Number(pid);
}

/** Makes a file of ours the jail's own. It cannot have become anything else: no jail sees the folder it lies in. */
async function give(path: string, uid: number): Promise<void> {
  await using file = await open(path, constants.O_RDWR | constants.O_NOFOLLOW);
  await file.chown(uid, uid);
  await file.chmod(0o600);
}

/** Lets a jail's user, through its group, open what lies in a folder of root's and is known to it by name. */
async function showHatch(path: string, gid: number): Promise<void> {
  await chown(path, 0, gid);
  await chmod(path, 0o710);
}

/** Lets the jails' group read a file that not everybody may read; whoever it was a VM's before, it is root's now. */
async function share(path: string, readers: number): Promise<void> {
  const { mode, uid, gid } = await stat(path);
  const isReadable = (mode & 0o004) !== 0 || (uid === 0 && gid === readers && (mode & 0o040) !== 0);
  if (isReadable || (mode & constants.S_IFMT) !== constants.S_IFREG) return;
  await chown(path, 0, readers);
  await chmod(path, (mode & 0o700) | ((mode & 0o500) >> 3));
}

/** The group that may use a device. Throws CapsuleError, with a remedy, when only root may. */
async function groupOf(device: string): Promise<number> {
  const { mode, gid } = await stat(device);
  if ((mode & 0o060) === 0o060) return gid;
  throw new CapsuleError("internal_error", `${device} is closed to VMs in a jail (run chmod 660 ${device})`);
}
