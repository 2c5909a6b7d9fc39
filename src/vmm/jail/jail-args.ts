/**
 * From what a process may see and use to the command line that starts it in a jail. Pure.
 *
 *      sh         joins its control group, where there are any
 *      chrt       where that helps: is scheduled as a batch, which does not interrupt others when it wakes up
 *      bwrap      its own mount, process, network, IPC, host name and cgroup namespaces; a root that holds what is listed
 *                 and nothing else, at the paths it has outside but for a hatch; a filter of system calls; no new privileges, ever
 *      prlimit    bounds that the kernel keeps whether there are cgroups or not
 *      setpriv    as root: a user and group of its own, no capability
 *      unshare    as root: a user namespace in which only that user exists. (Without root, bwrap makes it at once.)
 *      the program
 *
 * All of them replace each other: the program has the pid that bubblewrap told of.
 */
import { dirname, join as joinPath } from "node:path";

/** What one process may see and use. */
export interface SandboxProfile {
  /** Files and folders, at the same paths inside. */
  readOnly: string[];
  writable: string[];
  /**
   * A folder of ours through which files are handed in when the program runs already: it sees it as `hatchPath` from its working
   * directory, and opens them by name. Only where the program has a user of its own, to whom the folder is closed.
   */
  handoverDir?: string | undefined;
  /** Device files; /dev/null and /dev/urandom are always there. */
  devices: string[];
  /** Its working directory; in it nothing is to be seen but what is listed. */
  folder: string;
  limits: ProfileLimits;
}

export interface ProfileLimits {
  /** Largest file it can write. */
  fileBytes: number;
  /** Memory of its own: heap, private mappings, the guest's memory. */
  dataBytes: number;
  /** Processes and threads. */
  processes: number;
  /** Of the processor; kept by a control group where there is one. */
  cpus: number;
  openFiles: number;
}

/** Who it is on this machine. */
export interface JailUser {
  uid: number;
  gid: number;
  /** Groups that let it read files which all jails share, and devices. */
  groups: number[];
}

/** Absolute paths. */
export interface Tools {
  bwrap: string;
  /** Null on a host whose scheduler makes batches wait too long. */
  chrt: string | null;
  prlimit: string;
  setpriv: string;
  unshare: string;
}

export interface JailedStart {
  profile: SandboxProfile;
  /** Null: without root; the process stays who started it, in a user namespace. */
  user: JailUser | null;
  tools: Tools;
  /** What makes it join its control group, if it has one. */
  join: string[];
  /** Descriptor on which bubblewrap tells the program's pid. */
  infoFd: number;
  /** Descriptor of the system call filter; null where there is none. */
  filterFd: number | null;
  /** The program, by its absolute path, and its arguments. */
  argv: string[];
}

/** Beside the folder, so that what a file's own content says of others, relative to it, is true in both. */
export const handoverPath = "../handover";

const always = ["/dev/null", "/dev/urandom"];

export function jailArgs({
  profile: cell,
  user: identity,
  tools,
  join,
  infoFd,
  filterFd,
  argv,
}: JailedStart): string[] {
  const chain = identity === null ? [tools.prlimit] : [tools.prlimit, tools.setpriv, tools.unshare];
  const readOnly = [...new Set([...chain, ...cell.readOnly])];
  const devices = [...always, ...cell.devices];
  const folders = ancestors([...readOnly, ...cell.writable, ...devices, `${cell.folder}/.`]);
  return [
    join,
    tools.chrt === null ? [] : [tools.chrt, "--batch", "0"],
    [tools.bwrap, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"],
    identity === null ? ["--unshare-user"] : [],
    ["--new-session", "--as-pid-1", "--clearenv"],
    ["--cap-drop", "ALL"],
    // Spent by setpriv on becoming somebody without any.
    identity === null ? [] : ["SETUID", "SETGID", "SETPCAP"].flatMap((name) => ["--cap-add", `CAP_${name}`]),
    ["--info-fd", String(infoFd)],
    filterFd === null ? [] : ["--seccomp", String(filterFd)],
    // Folders that bubblewrap makes unasked are closed to everybody but root.
    folders.flatMap((folder) => ["--dir", folder]),
    readOnly.flatMap((path) => ["--ro-bind", path, path]),
    ["--proc", "/proc"],
    devices.flatMap((path) => ["--dev-bind", path, path]),
    cell.writable.flatMap((path) => ["--bind", path, path]),
    cell.handoverDir === undefined ? [] : ["--bind", cell.handoverDir, joinPath(cell.folder, handoverPath)],
    ["--remount-ro", "/", "--chdir", cell.folder, "--"],
    limitArgs(tools, cell.limits),
    identity === null ? [] : identityArgs(tools, identity),
    argv,
  ].flat();
}

function limitArgs({ prlimit }: Tools, { fileBytes, dataBytes, processes, openFiles }: ProfileLimits): string[] {
  const bounds = {
    core: 0,
    fsize: fileBytes,
    data: dataBytes,
    nproc: processes,
    nofile: openFiles,
    memlock: 0,
    msgqueue: 0,
  };
  return [prlimit, ...Object.entries(bounds).map(([name, most]) => `--${name}=${most}`), "--"];
}

function identityArgs({ setpriv, unshare }: Tools, { uid, gid, groups }: JailUser): string[] {
  return [
    [setpriv, "--reuid", String(uid), "--regid", String(gid)],
    groups.length === 0 ? ["--clear-groups"] : ["--groups", groups.join(",")],
    ["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"],
    [unshare, "--user", "--map-current-user", "--"],
  ].flat();
}

/** Every folder on the way to these paths, outer ones first. */
function ancestors(paths: string[]): string[] {
  const found = new Set<string>();
  for (const path of paths) {
    for (let folder = dirname(path); folder !== "/" && folder !== "."; folder = dirname(folder)) found.add(folder);
  }
  return [...found].sort();
}
