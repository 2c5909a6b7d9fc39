/**
 * One VM in QEMU: its process, its monitor (QMP) socket, and timers that watch both. Nothing here depends on having started
 * the process: a VM adopted from an earlier daemon is the same as any other.
 */
import { closeSync, constants, openSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { allSettledOrThrow } from "./all-settled.ts";
import { flushDeadlineMs, loadDeviceState, statusOf } from "./devices.ts";
import { memoryVerdict } from "./jail/cgroups.ts";
import { ResourceWatchdog } from "./jail/resource-watchdog.ts";
import { hasNetwork } from "./machine/parts.ts";
import { consoleBytes, consoleDevice, disk } from "./machine/qemu-args.ts";
import { endBwrap, endProcess, isAlive, isGoneWithin } from "./process.ts";
import { vmLimits } from "./qemu-profile.ts";
import { Qmp, type QmpEvent } from "./qmp.ts";
import { agentSocketName, clearFolder, networkSocketName, qmpSocketName } from "./vm-folder.ts";
import { QemuSave } from "./vm-save.ts";
import type { SavedVm, Vm, VmEnd, VmProcess, VmSave, VmSpec, VmState } from "./vmm.ts";
import { limitWrites } from "./write-limit.ts";

const connectPollMs = 2;
/** A QEMU that does not answer for so long is ended; one of an earlier daemon with all its guest's memory. */
const connectDeadlineMs = 15_000;
/**
 * Time between two checks of a VM's process, each of three reads in /proc. Its end is not found by these: the monitor socket
 * closes with the process.
 */
const watchMs = 5_000;
/** How long a QEMU that closed its monitor socket may take to exit by itself. */
const exitMs = 800;
const diskRetryMs = 1_000;

export class QemuVm implements Vm {
  readonly process: VmProcess;
  readonly ended: Promise<VmEnd>;
  #spec: VmSpec;
  #folder: number;
  readonly #end = Promise.withResolvers<VmEnd>();
  #qmp!: Qmp;
  #watch: NodeJS.Timeout | undefined;
  #wasTooLarge = () => false;
  #diskRetry: NodeJS.Timeout | undefined;
  #console = "";
  /** The CPUs were stopped by a call, so a retry of a failed disk write must not resume them. */
  #isHeld = false;
  #isDetached = false;

  /** Connects to a QEMU that was just spawned. */
  static async connect(spec: VmSpec, process: VmProcess): Promise<QemuVm> {
    const vm = new QemuVm(spec, process);
    await vm.#connect();
    return vm;
  }

  /** Connects to a QEMU of an earlier daemon, whose guest may have ended meanwhile. */
  static async adopt(spec: VmSpec, process: VmProcess): Promise<QemuVm> {
    const vm = new QemuVm(spec, process);
    await vm.#connect();
    if ((await vm.state()) === "shutdown") {
      // QEMU reported the kind of end to the earlier daemon only. The console is the guest's word, as the end was its choice.
      const hasPoweredOff = (await vm.console()).trimEnd().endsWith("reboot: Power down");
      vm.#end.resolve({ kind: hasPoweredOff ? "powered_off" : "reset" });
    }
    return vm;
  }

  private constructor(spec: VmSpec, process: VmProcess) {
    this.#spec = spec;
    this.process = process;
    this.ended = this.#end.promise;
    this.#folder = openFolder(spec.files.dir);
  }

  get spec(): VmSpec {
    return this.#spec;
  }

  get agentSocket(): string {
    return this.socket(agentSocketName);
  }

  get networkSocket(): string | null {
    return hasNetwork(this.#spec.machine.devices) ? this.socket(networkSocketName) : null;
  }

  /** Path of one of its sockets, through the open folder, so that it fits into sun_path. Invalid after `detach`. */
  socket(name: string): string {
    if (this.#isDetached) return join("/proc/self/fd/detached", name);
    return `/proc/self/fd/${this.#folder}/${name}`;
  }

  /** For the commands of a warm process, which are not part of Vm. */
  get monitor(): Qmp {
    return this.#qmp;
  }

  /** From here on it is the VM of `spec`, whose folder holds its sockets and its device state now. */
  rebind(spec: VmSpec): void {
    const folder = openFolder(spec.files.dir);
    closeSync(this.#folder);
    this.#folder = folder;
    this.#spec = spec;
  }

  async stop(): Promise<void> {
    this.#isHeld = true;
    await this.#qmp.command("stop", {}, flushDeadlineMs);
  }

  async resume(): Promise<void> {
    await this.#qmp.command("cont");
    this.#isHeld = false;
  }

  async state(): Promise<VmState> {
    const status = await this.#status();
    if (status === "running") return "running";
    return status === "shutdown" || status === "guest-panicked" ? "shutdown" : "stopped";
  }

  limitWrites(bytesPerSec: number): Promise<void> {
    return limitWrites(this.#qmp, bytesPerSec);
  }

  async growDisk(sizeBytes: number): Promise<void> {
    await this.#qmp.command("block_resize", { "node-name": disk["node-name"], size: sizeBytes });
  }

  openSave(to: SavedVm & { memory: string }): VmSave {
    return new QemuSave(this, this.#qmp, to);
  }

  /** Loads saved devices from `uri`, once in the process's life; the CPUs stay stopped. A failure ends the process. */
  async load(uri: string): Promise<void> {
    this.#isHeld = true;
    await loadDeviceState(this.#qmp, uri);
  }

  async console(): Promise<string> {
    const reading = { device: consoleDevice, size: consoleBytes, format: "base64" };
    const printed = String(await this.#qmp.command("ringbuf-read", reading));
    // Reading removes it from QEMU's buffer.
    this.#console = (this.#console + Buffer.from(printed, "base64").toString("utf8")).slice(-consoleBytes);
    return this.#console;
  }

  /** Discards the console output so far. */
  async clearConsole(): Promise<void> {
    await this.console();
    this.#console = "";
  }

  async kill(): Promise<void> {
    this.detach();
    await allSettledOrThrow([endProcess(this.process), clearFolder(this.spec.files.dir)]);
  }

  detach(): void {
    if (this.#isDetached) return;
    this.#isDetached = true;
    clearInterval(this.#watch);
    clearTimeout(this.#diskRetry);
    this.#qmp?.close();
    closeSync(this.#folder);
  }

  async #connect(): Promise<void> {
    const path = this.socket(qmpSocketName);
    const deadline = performance.now() + connectDeadlineMs;
    try {
      for (;;) {
        try {
          const leftMs = Math.max(1, deadline - performance.now());
          this.#qmp = await Qmp.connect(path, (event) => this.#onEvent(event), leftMs);
          break;
        } catch (error) {
          // The socket does not exist yet, or is not listening yet.
          const { code } = error as NodeJS.ErrnoException;
          if (code !== "ENOENT" && code !== "ECONNREFUSED") throw error;
          if (!isAlive(this.process)) throw new Error("QEMU ended as soon as it started", { cause: error });
          if (performance.now() > deadline) throw error;
          await delay(connectPollMs);
        }
      }
    } catch (error) {
      this.detach();
      throw error;
    }
    await endBwrap(this.process);
    const watchdog = new ResourceWatchdog(vmLimits(this.spec));
    this.#wasTooLarge = memoryVerdict(this.process.pid);
    this.#watch = setInterval(() => {
      const what = watchdog.sample(this.process.pid);
      if (what !== undefined) this.#stopOveruse(what);
      if (!isAlive(this.process)) this.#reportExit();
    }, watchMs).unref();
    void this.#qmp.closed.then(() => this.#endWithoutMonitor());
  }

  /** A QEMU that closed its monitor socket is exiting or compromised: it is ended in both cases. */
  async #endWithoutMonitor(): Promise<void> {
    if (this.#isDetached) return;
    if (!(await isGoneWithin(this.process, exitMs))) await endProcess(this.process).catch(() => {});
    if (!this.#isDetached) this.#reportExit();
  }

  #reportExit(): void {
    this.#end.resolve(this.#wasTooLarge() ? { kind: "overused", what: "memory" } : { kind: "exited" });
  }

  #stopOveruse(what: string): void {
    this.#end.resolve({ kind: "overused", what });
    void endProcess(this.process).catch(() => {});
  }

  #onEvent({ name, data }: QmpEvent): void {
    if (this.#isDetached) return;
    if (name === "SHUTDOWN" && data.guest === true) {
      this.#end.resolve({ kind: data.reason === "guest-shutdown" ? "powered_off" : "reset" });
    } else if (name === "BLOCK_IO_ERROR" && data.action === "stop") this.#retryDisk();
    else if (name === "STOP" && !this.#isHeld) void this.#endIfCrashed().catch(() => {});
  }

  /** The host's disk is full: QEMU has stopped the guest in the middle of a write, and repeats the write when resumed. */
  #retryDisk(): void {
    clearTimeout(this.#diskRetry);
    this.#diskRetry = setTimeout(() => {
      if (this.#isHeld || this.#isDetached) return;
      // A QEMU that does not answer waits for the same disk; one that has exited is noticed by the timer.
      this.#resumeIfWaiting().catch(() => this.#retryDisk());
    }, diskRetryMs).unref();
  }

  async #resumeIfWaiting(): Promise<void> {
    if ((await this.#status()) === "io-error") await this.#qmp.command("cont");
  }

  /** After an error of the accelerator the guest cannot continue. */
  async #endIfCrashed(): Promise<void> {
    if ((await this.#status()) === "internal-error") await endProcess(this.process);
  }

  #status(): Promise<string> {
    return statusOf(this.#qmp);
  }
}

function openFolder(path: string): number {
  return openSync(path, constants.O_RDONLY | constants.O_DIRECTORY);
}
