/**
 * One virtual machine: started, frozen, thawed, watched. The vmm room knows no capsule, no team and no database;
 * a VM is a machine shape, a few files and two sockets.
 *
 *      boot ──► running ──save──► (stopped, files durable) ──kill──► gone
 *      restore ─► running            └─ resume ─► running
 */

/** What must be the same for a saved VM to be restored; recorded in every checkpoint's manifest. */
export interface Machine {
  /** QEMU's version, e.g. "10.0.2". */
  qemu: string;
  accelerator: "kvm" | "tcg";
  /** The -cpu argument. */
  cpu: string;
  /** Version of our own device line-up; bump when qemu-args changes the machine. */
  layout: number;
  vcpus: number;
  memoryMb: number;
}

export interface Accelerator {
  kind: "kvm" | "tcg";
  /** The -cpu argument. */
  cpu: string;
  /** Rate of the time stamp counter, on the kernel command line under emulation; null: the guest measures it. */
  tscKhz: number | null;
  /** The reason for the choice, a sentence for operators. */
  why: string;
}

export interface VmFiles {
  /** The VM's own folder: its sockets are in it. QEMU sees no more of it than its disk layer and its device state. */
  dir: string;
  /** Guest memory, mapped privately (never written). Size = memoryMb MiB. */
  memory: string;
  /** The VM's own writable disk layer (qcow2, its backing chain recorded in it). */
  disk: string;
  /** Backing chain of `disk`, nearest first, the root disk last; read-only. Shown to the jail. */
  backing: string[];
  kernel: string;
  initrd: string;
}

export interface VmSpec {
  /** Stands in the command line for an operator's `ps`. */
  name: string;
  /** Random, in the command line; with pid and start time it identifies the process beyond doubt. */
  nonce: string;
  machine: Machine;
  files: VmFiles;
}

/** A process that cannot be mistaken for another one. */
export interface VmProcess {
  pid: number;
  /** Field 22 of /proc/<pid>/stat, clock ticks since the host booted. */
  startTicks: number;
}

/** A frozen VM's memory and devices: `state` (devices, CPUs), `memory` (pages that differ from the base file). */
export interface SavedVm {
  /** Device state file. */
  state: string;
  /** Page diff file; see memory-diff.ts. Null: memory is the base file as it is (a capsule made from a template). */
  memory: string | null;
}

/** A file whose end is still being written. */
export interface Growing {
  /** How many it will have. */
  bytes: number;
  whole: Promise<unknown>;
}

/** What whoever saves a VM does meanwhile. */
export interface AroundSave {
  /** Resolves when the CPUs may be stopped; until then all else is made ready. Rejects: nothing is saved, and they run on. */
  calm?: () => Promise<unknown>;
  /** The CPUs stand still. Called again whenever they have gone on for a moment. */
  stopped?: () => void;
  /**
   * What else is to be done, done while memory is copied, each time that it is: until the guest stands still, it needs the
   * processor and the disk.
   */
  meanwhile?: () => Promise<unknown>;
  /**
   * Makes both files durable, once the last of the memory is written. Called while they are still being checked to be of one
   * moment; if they are not, they are written and sealed again.
   */
  seal?: (memory: Growing) => Promise<unknown>;
}

export interface SaveResult {
  stateBytes: number;
  memoryBytes: number;
  /** Pages in the diff that hold data. */
  pages: number;
}

/** `shutdown`: the guest has ended, by power-off, reset or panic; `ended` says which. */
export type VmState = "running" | "stopped" | "shutdown";

/** Why a VM is no longer running. */
export type VmEnd =
  | { kind: "exited" } // the QEMU process is gone
  | { kind: "overused"; what: string } // QEMU took more of the machine than any guest can make it, and was ended
  | { kind: "powered_off" } // the guest powered itself off; QEMU still there, stopped
  | { kind: "reset" }; // the guest reset itself or its kernel panicked; QEMU still there, stopped

export interface Vm {
  readonly spec: VmSpec;
  readonly process: VmProcess;
  /** Path to connect to for the agent's byte pipe (already short enough for sun_path). */
  readonly agentSocket: string;
  /** Resolves once, within a second, when the VM ends for a reason that was not `kill`. Never rejects. */
  readonly ended: Promise<VmEnd>;
  /** Stops the CPUs. */
  stop(): Promise<void>;
  /** Lets the CPUs run (again). */
  resume(): Promise<void>;
  state(): Promise<VmState>;
  /** Stops the CPUs, flushes the disk layer, writes devices and dirty memory. The VM stays stopped and can be resumed. */
  save(to: SavedVm & { memory: string }, around?: AroundSave): Promise<SaveResult>;
  /** Ends the process and waits until it is gone. Idempotent. */
  kill(): Promise<void>;
  /** The last the guest printed on its console, at most 64 KiB; for error reports, and written by the guest. */
  console(): Promise<string>;
  /** Lets go of sockets and timers; the VM runs on (daemon shutdown). */
  release(): void;
}

/** A QEMU that was started before anybody knew for which VM of its kind: without a disk layer, waiting for a saved VM. */
export interface WarmProcess {
  readonly spec: VmSpec;
  readonly process: VmProcess;
  /** Resolves when its process has ended by itself. Never rejects. */
  readonly ended: Promise<unknown>;
  /** Whether it can rehearse: under software emulation of a recent QEMU, with one CPU and up to 2 GiB, and not twice. */
  readonly canWarmTranslations: boolean;
  /**
   * Is for a while the VM that all of its kind begin as: `saved` is loaded, on the disk layer `layer`, and handed to `play`,
   * which leaves it stopped. Afterwards memory, devices and disk are as before, but the process knows how to translate what
   * has run. Before it is claimed. Whatever fails, the process is ended.
   */
  warmTranslations(saved: SavedVm, layer: string, play: (vm: Vm) => Promise<void>): Promise<void>;
  /**
   * Becomes the VM of `spec`, which is of the same machine, memory and backing files, and is known to QEMU as the blank's
   * folder; resolves with it loaded but **stopped**. Whatever fails, the process is ended and `spec`'s folder is as before.
   */
  claim(spec: VmSpec, saved: SavedVm): Promise<Vm>;
  /** Ends the process and waits until it is gone. Idempotent. */
  kill(): Promise<void>;
}

export interface Vmm {
  /** Whether there can be blanks. They need a jail in which each VM has a user of its own. */
  readonly hasWarmProcesses: boolean;
  /** The machine this host would build for a shape now. */
  machine(vcpus: number, memoryMb: number): Machine;
  /** What it tells a kernel that it boots. */
  readonly kernelOptions: string;
  /** Starts a VM from its kernel; resolves when QEMU runs (the agent not yet up). `onSpawn` sees the process before anything else. */
  boot(spec: VmSpec, onSpawn: (process: VmProcess) => void): Promise<Vm>;
  /** Starts QEMU, puts memory and devices in place; resolves with the VM loaded but **stopped**. */
  restore(spec: VmSpec, saved: SavedVm, onSpawn: (process: VmProcess) => void): Promise<Vm>;
  /**
   * Starts a blank of this kind in `spec.files.dir`. The folder of `spec.files.disk` is the blank's alone, empty, and two
   * levels below what the layers' backing files are named from: the layer is handed in through it.
   */
  startWarm(spec: VmSpec, onSpawn: (process: VmProcess) => void): Promise<WarmProcess>;
  /** Connects to a VM an earlier daemon started; throws when the process is not the one described. */
  adopt(spec: VmSpec, process: VmProcess): Promise<Vm>;
  /** Ends a process of an earlier life if pid, start time and nonce agree. Resolves when it is gone. */
  reap(nonce: string, process: VmProcess): Promise<void>;
  /** Processes whose command line carries this nonce (a crash between spawn and journal). */
  find(nonce: string): Promise<VmProcess[]>;
  /** VMs whose own folder lies, or lay, below `folder`, whoever started them. */
  findBelow(folder: string): Promise<{ process: VmProcess; nonce: string }[]>;
}
