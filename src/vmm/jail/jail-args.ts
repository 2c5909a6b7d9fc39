/**
 * Builds the command line that starts a process under a sandbox profile. Pure. Each program executes the next one:
 *
 *      sh         joins the control group, where control groups are available
 *      chrt       sets SCHED_BATCH, so that a waking guest does not preempt the service (recent kernels only)
 *      bwrap      makes mount, pid, network, IPC, UTS and cgroup namespaces (the relay keeps the machine's network); a root
 *                 with the listed files only, at their outside paths except for the hand-over folder; a system call
 *                 filter; no_new_privs
 *      prlimit    sets limits that the kernel enforces without control groups
 *      setpriv    as root: switches to the jail's user and groups, drops all capabilities
 *      unshare    as root: makes a user namespace that maps only that user (without root, bwrap makes it)
 *      the program
 *
 * From bubblewrap's child on they share one pid: the one that bubblewrap reports, which is the program's.
 */
import { dirname, join as joinPath } from "node:path";

/** The files, devices and limits of one process. */
export interface SandboxProfile {
  /** Files and folders, at the same paths inside. */
  readOnly: string[];
  writable: string[];
  /**
   * A folder through which files are handed to a program that already runs. The program sees it at `handoverPath`,
   * relative to its working directory, and opens files in it by name. Only with a separate user, who may neither list
   * nor write the folder.
   */
  handoverDir?: string | undefined;
  /** Device files; /dev/null and /dev/urandom are always there. */
  deviceNodes: string[];
  /** The working directory. Only listed files are visible in it. */
  folder: string;
  /** The machine's network, which the filter must bound then; none by default. */
  hasNetwork?: boolean | undefined;
  /** Variables of its environment, which is empty else. */
  environment?: Record<string, string> | undefined;
  limits: ProfileLimits;
}

export interface ProfileLimits {
  /** Largest file that the process can write. */
  fileBytes: number;
  /** Heap and private mappings; the guest's memory is one of them. */
  dataBytes: number;
  /** Processes and threads. */
  processes: number;
  /** Enforced by the control group, or else by the resource watchdog. */
  cpus: number;
  openFiles: number;
}

/** The user that a jailed process runs under. */
export interface JailUser {
  uid: number;
  gid: number;
  /** Supplementary groups: read access to the files shared by all jails, and to devices. */
  groups: number[];
}

/** Absolute paths. */
export interface Tools {
  bwrap: string;
  /** Null on a kernel that delays SCHED_BATCH tasks too long (see isSchedulerRecent). */
  chrt: string | null;
  prlimit: string;
  setpriv: string;
  unshare: string;
}

export interface JailedStart {
  profile: SandboxProfile;
  /** Null without root: the process keeps the service's user, in a user namespace. */
  user: JailUser | null;
  tools: Tools;
  /** Command prefix that joins the control group; empty without control groups. */
  join: string[];
  /** Descriptor to which bubblewrap writes the program's pid, and dies where nobody reads it; null: it writes none. */
  infoFd: number | null;
  /** Descriptor that bubblewrap reads the system call filter from; null without a filter. */
  filterFd: number | null;
  /** The program, by its absolute path, and its arguments. */
  argv: string[];
}

/** A sibling of the working directory, so that relative backing file names inside an image resolve the same in both. */
export const handoverPath = "../handover";

const commonNodes = ["/dev/null", "/dev/urandom"];

export function jailArgs({ profile, user, tools, join, infoFd, filterFd, argv }: JailedStart): string[] {
  const chain = user === null ? [tools.prlimit] : [tools.prlimit, tools.setpriv, tools.unshare];
  const readOnly = [...new Set([...chain, ...profile.readOnly])];
  const deviceNodes = [...commonNodes, ...profile.deviceNodes];
  const folders = ancestors([...readOnly, ...profile.writable, ...deviceNodes, `${profile.folder}/.`]);
  return [
    join,
    tools.chrt === null ? [] : [tools.chrt, "--batch", "0"],
    [tools.bwrap, "--unshare-ipc", "--unshare-pid"],
    profile.hasNetwork === true ? [] : ["--unshare-net"],
    ["--unshare-uts", "--unshare-cgroup-try"],
    user === null ? ["--unshare-user"] : [],
    ["--new-session", "--as-pid-1", "--clearenv"],
    Object.entries(profile.environment ?? {}).flatMap(([name, value]) => ["--setenv", name, value]),
    ["--cap-drop", "ALL"],
    // setpriv needs them to switch users, and drops them then.
    user === null ? [] : ["SETUID", "SETGID", "SETPCAP"].flatMap((name) => ["--cap-add", `CAP_${name}`]),
    infoFd === null ? [] : ["--info-fd", String(infoFd)],
    filterFd === null ? [] : ["--seccomp", String(filterFd)],
    // Parent folders that bubblewrap creates implicitly would have mode 0700.
    folders.flatMap((folder) => ["--dir", folder]),
    readOnly.flatMap((path) => ["--ro-bind", path, path]),
    ["--proc", "/proc"],
    deviceNodes.flatMap((path) => ["--dev-bind", path, path]),
    profile.writable.flatMap((path) => ["--bind", path, path]),
    profile.handoverDir === undefined ? [] : ["--bind", profile.handoverDir, joinPath(profile.folder, handoverPath)],
    ["--remount-ro", "/", "--chdir", profile.folder, "--"],
    limitArgs(tools, profile.limits),
    user === null ? [] : userArgs(tools, user),
    argv,
  ].flat();
}

function limitArgs({ prlimit }: Tools, { fileBytes, dataBytes, processes, openFiles }: ProfileLimits): string[] {
  const limits = {
    core: 0,
    fsize: fileBytes,
    data: dataBytes,
    nproc: processes,
    nofile: openFiles,
    memlock: 0,
    msgqueue: 0,
  };
  return [prlimit, ...Object.entries(limits).map(([name, value]) => `--${name}=${value}`), "--"];
}

function userArgs({ setpriv, unshare }: Tools, { uid, gid, groups }: JailUser): string[] {
  return [
    [setpriv, "--reuid", String(uid), "--regid", String(gid)],
    groups.length === 0 ? ["--clear-groups"] : ["--groups", groups.join(",")],
    ["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"],
    [unshare, "--user", "--map-current-user", "--"],
  ].flat();
}

/** All parent folders of these paths, outer ones first. */
function ancestors(paths: string[]): string[] {
  const found = new Set<string>();
  for (const path of paths) {
    for (let folder = dirname(path); folder !== "/" && folder !== "."; folder = dirname(folder)) found.add(folder);
  }
  return [...found].sort();
}
