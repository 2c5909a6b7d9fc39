/**
 * One virtual machine: started, saved, restored, watched. This folder knows no capsule, no team and no database; a VM is a
 * machine shape, a few files and two sockets.
 *
 *      boot ───► running ──save──► stopped, files written ──kill──► process gone
 *      restore ─► stopped ─resume─► running  └──────────resume──► running
 */

/** A saved VM can only be restored on an equal machine; recorded in every checkpoint's manifest. */
export interface Machine {
  /** QEMU's version, e.g. "10.0.2". */
  qemu: string;
  /**
   * The content hash of QEMU's files, where the host keeps them; it picks the program that restores. Absent in saves of
   * earlier releases and where the files could not be kept: then any build of this version will do.
   */
  qemuBuild?: string;
  accelerator: "kvm" | "tcg";
  /** The -cpu argument. */
  cpu: string;
  /** The features behind `cpu` "host", see machine/cpu-features.ts. Absent for other models, and in saves of earlier releases. */
  cpuFeatures?: string;
  /** Rate of the host's time stamp counter. Absent in saves of earlier releases. */
  tscKhz?: number;
  /** Its parts, each with a version: see machine/parts.ts. */
  devices: readonly string[];
  vcpus: number;
  memoryMb: number;
}

export interface Accelerator {
  kind: "kvm" | "tcg";
  /** The -cpu argument. */
  cpu: string;
  /** The host's features, when `cpu` is "host": see machine/cpu-features.ts. */
  cpuFeatures?: string;
  /** Rate of the host's time stamp counter, which emulated guests get on the kernel command line; null: not measured. */
  tscKhz: number | null;
  /** The reason for the choice, a sentence for operators. */
  why: string;
}

export interface VmFiles {
  /** The VM's own folder, with its sockets. QEMU sees only the disk layer and the device state in it. */
  dir: string;
  /** Guest memory, mapped privately (never written). Size = memoryMb MiB. */
  memory: string;
  /** The VM's own writable disk layer (qcow2, its backing chain recorded in it). */
  disk: string;
  /** Size of the guest's disk, where that is larger than the root disk below its layers. */
  diskBytes?: number | undefined;
  /** Backing chain of `disk`, nearest first, the root disk last; read-only. Shown to the jail. */
  backing: string[];
  kernel: string;
  initrd: string;
}

export interface VmSpec {
  /** In the command line, for an operator's `ps`. */
  name: string;
  /** Random, in the command line; with pid and start time it identifies the process beyond doubt. */
  nonce: string;
  machine: Machine;
  files: VmFiles;
}

/** A process, identified beyond reuse of its pid. */
export interface VmProcess {
  pid: number;
  /** Field 22 of /proc/<pid>/stat, clock ticks since the host booted. */
  startTicks: number;
}

/** Hashes of each 4 MiB of a file, see memory/piece-hashes.ts. */
export interface Pieces {
  bytes: number;
  /** Hex, one for each piece; the last one may be shorter. */
  sha256: readonly string[];
}

/** A frozen VM's memory and devices: `state` (devices, CPUs), `memory` (pages that differ from the base file). */
export interface SavedVm {
  /** Device state file. */
  state: string;
  /** Page diff file; see memory-diff.ts. Null: memory is the base file as it is (a capsule made from a template). */
  memory: string | null;
  /** Hashes of the diff, which is checked while it is loaded. Absent: they were not made yet. */
  pieces?: Pieces | undefined;
}

export interface SaveSizes {
  stateBytes: number;
  memoryBytes: number;
  /** Pages in the diff that hold data. */
  pages: number;
}

/**
 * Saving a VM, one call per step, so that the caller decides what runs at the same time:
 *
 *      prepare → stopCpus → copyMemory → finish ‖ isConsistent      again from prepare while isConsistent says false
 *
 * After a failure, dispose of it and resume the VM, of which only the CPUs were stopped. Disposal removes incomplete files.
 */
export interface VmSave extends AsyncDisposable {
  /** Opens everything that is the same whether the CPUs run or not. */
  prepare(): Promise<void>;
  /** Stops the CPUs and reads the devices' state. */
  stopCpus(): Promise<void>;
  /** Writes the devices, copies memory, and makes QEMU flush the disk layer. The end of the memory file may not be written yet. */
  copyMemory(): Promise<SaveSizes>;
  /** Resolves when the memory file is written. Syncing both files is the caller's. */
  finish(): Promise<void>;
  /**
   * Whether devices and memory are of the same instant. False: repeat all steps. Throws when the devices still change in the
   * eighth attempt.
   */
  isConsistent(): Promise<boolean>;
}

/** `shutdown`: the guest has ended, by power-off, reset or panic; `ended` says which. */
export type VmState = "running" | "stopped" | "shutdown";

/** Why a VM is no longer running. */
export type VmEnd =
  | { kind: "exited" } // the QEMU process is gone
  | { kind: "overused"; what: string } // QEMU exceeded its limits and was ended
  | { kind: "powered_off" } // the guest powered itself off; QEMU still there, stopped
  | { kind: "reset" }; // the guest reset itself or its kernel panicked; QEMU still there, stopped

export interface Vm {
  readonly spec: VmSpec;
  readonly process: VmProcess;
  /** Path to connect to for the agent's byte pipe (already short enough for sun_path). */
  readonly agentSocket: string;
  /** The same for the port of its network; null: it was made without one. */
  readonly networkSocket: string | null;
  /** Resolves once, within a second, when the VM ends for a reason that was not `kill`. Never rejects. */
  readonly ended: Promise<VmEnd>;
  /** Stops the CPUs. */
  stop(): Promise<void>;
  /** Lets the CPUs run (again). */
  resume(): Promise<void>;
  state(): Promise<VmState>;
  /** Limits the rate of the guest's writes to its disk; 0: not at all. */
  limitWrites(bytesPerSec: number): Promise<void>;
  /** Makes the guest's disk larger, and tells the guest's kernel. */
  growDisk(sizeBytes: number): Promise<void>;
  /** Begins a save into new files. The VM stays stopped afterwards and can be resumed. */
  openSave(to: SavedVm & { memory: string }): VmSave;
  /** Ends the process and waits until it is gone. Idempotent. */
  kill(): Promise<void>;
  /** The end of the guest's console output, at most 64 KiB. For error reports; the guest controls it. */
  console(): Promise<string>;
  /** Closes sockets and timers; the VM runs on (daemon shutdown). */
  detach(): void;
}

/** A warm process is started as this: a VM without a disk layer. */
export interface WarmSpec extends Omit<VmSpec, "files"> {
  files: Omit<VmFiles, "disk" | "diskBytes">;
  /**
   * An empty folder of the process's own, shown to its jail. The disk layer is linked into it while QEMU opens it, so it must
   * lie as deep in the data folder as `files.dir`: layers name their backing files relatively.
   */
  handoverDir: string;
}

/** A QEMU started ahead of time, without a disk layer, that can become any VM of the same machine, memory and backing files. */
export interface WarmProcess {
  readonly spec: WarmSpec;
  readonly process: VmProcess;
  /** Resolves when its process has ended by itself. Never rejects. */
  readonly ended: Promise<unknown>;
  /** Whether `warmTranslations` may be called: software emulation, QEMU 8.2 or later, one CPU, at most 2 GiB, and only once. */
  readonly canWarmTranslations: boolean;
  /**
   * Loads `saved` on the disk layer `layer` and runs `warmUp` in that VM, which leaves it stopped. Afterwards memory, devices
   * and disk are as before, but QEMU keeps its translations of the code that has run. On failure, and when `signal` fires,
   * the process is ended.
   */
  warmTranslations(
    saved: SavedVm,
    layer: string,
    warmUp: (vm: Vm) => Promise<void>,
    signal?: AbortSignal,
  ): Promise<void>;
  /**
   * Becomes the VM of `spec`; resolves with it loaded but **stopped**. On failure, and when `signal` fires, the process is
   * ended and the folder of `spec` is as before.
   */
  claim(spec: VmSpec, saved: SavedVm, signal?: AbortSignal): Promise<Vm>;
  /** Ends the process and waits until it is gone. Idempotent. */
  kill(): Promise<void>;
}

/** Called with the process of a VM as soon as it exists. */
export type OnSpawn = (process: VmProcess) => void;

/** When the `signal` of `boot`, `restore` or `startWarm` fires, the process is ended and the signal's reason is thrown. */
export interface Vmm {
  /** Whether `startWarm` works: it needs a jail that gives each VM a user of its own. */
  readonly hasWarmProcesses: boolean;
  /** The machine this host would build for a shape now. */
  machine(vcpus: number, memoryMb: number): Machine;
  /** The kernel options of every boot. */
  readonly kernelOptions: string;
  /** Starts a VM from its kernel; resolves when QEMU runs (the agent not yet up). */
  boot(spec: VmSpec, onSpawn: OnSpawn, signal?: AbortSignal): Promise<Vm>;
  /** Starts QEMU, puts memory and devices in place; resolves with the VM loaded but **stopped**. */
  restore(spec: VmSpec, saved: SavedVm, onSpawn: OnSpawn, signal?: AbortSignal): Promise<Vm>;
  /** Starts a warm process in `spec.files.dir`. */
  startWarm(spec: WarmSpec, onSpawn: OnSpawn, signal?: AbortSignal): Promise<WarmProcess>;
  /** Connects to a VM an earlier daemon started; throws when the process is not the one described. */
  adopt(spec: VmSpec, process: VmProcess): Promise<Vm>;
  /** Ends a process of an earlier daemon if pid, start time and nonce agree. Resolves when it is gone. */
  reap(nonce: string, process: VmProcess): Promise<void>;
  /** Processes whose command line carries this nonce (a crash between spawn and journal). */
  find(nonce: string): Promise<VmProcess[]>;
  /** VMs whose own folder is, or was, below `folder`. */
  findBelow(folder: string): Promise<{ process: VmProcess; nonce: string }[]>;
}
