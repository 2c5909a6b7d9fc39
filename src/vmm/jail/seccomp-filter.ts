/**
 * The jail's system call filter, as classic BPF. It holds from the program's first instruction; QEMU adds its own
 * filter when it runs. It denies calls that the program does not need here and that escapes have used: new namespaces, mounts,
 * sockets, other processes' memory, keyrings, io_uring, file handles, memory outside the limits. The relay may make sockets that
 * dial, and threads, but neither listen nor make processes. A call of another architecture kills the process, because its number means
 * a different call there.
 *
 * https://www.kernel.org/doc/html/latest/userspace-api/seccomp_filter.html
 */

/** x86-64 system calls that fail with EPERM. */
const denied: Record<string, number> = {
  ptrace: 101,
  process_vm_readv: 310,
  process_vm_writev: 311,
  process_madvise: 440,
  pidfd_getfd: 438,
  kcmp: 312,
  socket: 41,
  connect: 42,
  bind: 49,
  mount: 165,
  umount2: 166,
  pivot_root: 155,
  chroot: 161,
  open_tree: 428,
  move_mount: 429,
  fsopen: 430,
  fsconfig: 431,
  fsmount: 432,
  fspick: 433,
  mount_setattr: 442,
  setns: 308,
  mknod: 133,
  mknodat: 259,
  name_to_handle_at: 303,
  open_by_handle_at: 304,
  fanotify_init: 300,
  userfaultfd: 323,
  io_uring_setup: 425,
  io_uring_enter: 426,
  io_uring_register: 427,
  bpf: 321,
  perf_event_open: 298,
  add_key: 248,
  request_key: 249,
  keyctl: 250,
  init_module: 175,
  finit_module: 313,
  delete_module: 176,
  kexec_load: 246,
  kexec_file_load: 320,
  reboot: 169,
  swapon: 167,
  swapoff: 168,
  acct: 163,
  quotactl: 179,
  quotactl_fd: 443,
  sethostname: 170,
  setdomainname: 171,
  settimeofday: 164,
  clock_settime: 227,
  adjtimex: 159,
  clock_adjtime: 305,
  syslog: 103,
  iopl: 172,
  ioperm: 173,
  vhangup: 153,
  // Memory that neither RLIMIT_DATA nor the resource watchdog counts.
  memfd_create: 319,
  memfd_secret: 447,
  shmget: 29,
  vmsplice: 278,
  execveat: 322,
  pidfd_open: 434,
  pidfd_send_signal: 424,
  personality: 135,
  migrate_pages: 256,
  move_pages: 279,
  open_tree_attr: 467,
};
/** Calls of `denied` that the relay has rules of its own for. */
const ofSockets = ["socket", "connect", "bind"];
/** Calls that fail with EPERM in the relay and not in QEMU, whose sockets are made by the service. */
const deniedToRelay: Record<string, number> = {
  listen: 50,
  accept: 43,
  accept4: 288,
  socketpair: 53,
  fork: 57,
  vfork: 58,
};
const socket = 41;
const bind = 49;
/** Families of sockets that dial and ask names, and the one that lists the machine's addresses. */
const family = { inet: 2, inet6: 10, netlink: 16 };
/** The protocol of routes and addresses; others list sockets or change rules. */
const netlinkRoute = 0;
/** The size of a netlink address: the C library binds that socket. Addresses of the internet's families are longer. */
const netlinkAddressBytes = 12;
const clone = 56;
/** A thread of the process, and no process of its own. */
const cloneThread = 0x0001_0000;
const clone3 = 435;
const unshare = 272;
const prctl = 157;
/** The option of prctl that moves the process's own command line in /proc, to any memory and of any length. */
const setMm = 35;

const archX8664 = 0xc000003e;
/** Numbers from here on belong to the x32 ABI. */
const x32Numbers = 0x4000_0000;
const newUserNamespace = 0x1000_0000;
/** CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. */
const newNamespaces = 0x7e02_0000;

const allow = 0x7fff_0000;
const kill = 0x8000_0000;
const fail = (errno: number) => 0x0005_0000 | errno;
const eperm = 1;
const enosys = 38;

/** Offsets in struct seccomp_data; of the first argument, its low half. */
const field = { number: 0, arch: 4, firstArgument: 16, thirdArgument: 32 };

export interface FilterOptions {
  /** Whose rules hold, by default QEMU's. */
  program?: "qemu" | "relay";
  /** Lets unshare(1), which runs before the program, make a user namespace. */
  mayUnshareUser: boolean;
}

/** The BPF program, 8 bytes per instruction, as `bwrap --seccomp` reads it. Null on other architectures than x86-64. */
export function seccompFilter(options: FilterOptions, architecture: string = process.arch): Buffer | null {
  if (architecture !== "x64") return null;
  const program = [
    load(field.arch),
    jumpIf(equal, archX8664, 1, 0),
    answer(kill),
    load(field.number),
    jumpIf(atLeast, x32Numbers, 0, 1),
    answer(kill),
    ...deniedIn(options).flatMap((number) => [jumpIf(equal, number, 0, 1), answer(fail(eperm))]),
    ...(options.program === "relay" ? relayRules() : []),
    // A filter cannot read clone3's flags, which are in memory. ENOSYS makes libc fall back to clone.
    jumpIf(equal, clone3, 0, 1),
    answer(fail(enosys)),
    jumpIf(equal, clone, 0, 4),
    load(field.firstArgument),
    jumpIf(anyBit, newNamespaces, 0, 1),
    answer(fail(eperm)),
    answer(allow),
    jumpIf(equal, prctl, 0, 4),
    load(field.firstArgument),
    jumpIf(equal, setMm, 0, 1),
    answer(fail(eperm)),
    answer(allow),
    jumpIf(equal, unshare, 0, 4),
    load(field.firstArgument),
    jumpIf(equal, newUserNamespace, 0, 1),
    answer(options.mayUnshareUser ? allow : fail(eperm)),
    answer(fail(eperm)),
    answer(allow),
  ];
  return Buffer.concat(program);
}

function deniedIn({ program }: FilterOptions): number[] {
  if (program !== "relay") return Object.values(denied);
  const others = Object.entries(denied).filter(([name]) => !ofSockets.includes(name));
  return [...others.map(([, number]) => number), ...Object.values(deniedToRelay)];
}

/** Each begins with the number in the accumulator, and where it does not match leaves it there. */
function relayRules(): Buffer[] {
  return [
    jumpIf(equal, socket, 0, 9),
    load(field.firstArgument),
    jumpIf(equal, family.inet, 5, 0),
    jumpIf(equal, family.inet6, 4, 0),
    jumpIf(equal, family.netlink, 0, 2),
    load(field.thirdArgument),
    jumpIf(equal, netlinkRoute, 1, 0),
    answer(fail(eperm)),
    answer(allow),
    answer(allow),
    jumpIf(equal, bind, 0, 4),
    load(field.thirdArgument),
    jumpIf(equal, netlinkAddressBytes, 1, 0),
    answer(fail(eperm)),
    answer(allow),
    // Other flags of clone are looked at below, with the number loaded again.
    jumpIf(equal, clone, 0, 4),
    load(field.firstArgument),
    jumpIf(anyBit, cloneThread, 1, 0),
    answer(fail(eperm)),
    load(field.number),
  ];
}

const equal = 0x15;
const atLeast = 0x35;
const anyBit = 0x45;

/** Loads a field of seccomp_data into the accumulator. */
function load(offset: number): Buffer {
  return instruction(0x20, 0, 0, offset);
}

/** Compares the accumulator and skips the given number of instructions. */
function jumpIf(test: number, value: number, skipIfTrue: number, skipIfFalse: number): Buffer {
  return instruction(test, skipIfTrue, skipIfFalse, value);
}

function answer(value: number): Buffer {
  return instruction(0x06, 0, 0, value);
}

function instruction(code: number, skipIfTrue: number, skipIfFalse: number, value: number): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeUInt16LE(code, 0);
  bytes.writeUInt8(skipIfTrue, 2);
  bytes.writeUInt8(skipIfFalse, 3);
  bytes.writeUInt32LE(value >>> 0, 4);
  return bytes;
}
