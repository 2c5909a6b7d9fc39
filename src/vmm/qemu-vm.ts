/**
 * One VM in QEMU: its process, its control socket, and the watch over both. Nothing here depends on having started the
 * process: a VM adopted from an earlier daemon is the same as one of our own.
 */
import { closeSync, constants, openSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { allSettledOrThrow } from "./all-settled.ts";
import { flushDeadlineMs, loadDevices, reloadDevices, resetDevices, statusOf } from "./devices.ts";
import { attachLayer, detachLayer } from "./disk-layer.ts";
import { memoryVerdict } from "./jail/cgroups.ts";
import { ResourceWatchdog } from "./jail/resource-watchdog.ts";
import { endBwrap, endProcess, isAlive, isGoneWithin } from "./process.ts";
import { consoleBytes, consoleDevice, qtestName, qtestPortName } from "./qemu-args.ts";
import { sizeOfDisk, vmLimits } from "./qemu-profile.ts";
import { Qmp, type QmpEvent } from "./qmp.ts";
import { agentSocketName, clearFolder, emptyDevices, qmpSocketName } from "./vm-folder.ts";
import { VmSave } from "./vm-save.ts";
import type { AroundSave, SavedVm, SaveResult, Vm, VmEnd, VmProcess, VmSpec, VmState } from "./vmm.ts";

const connectPollMs = 2;
const connectDeadlineMs = 15_000;
const adoptDeadlineMs = 5_000;
const watchMs = 500;
/** How long a QEMU that closed its control socket may take to be gone. */
const dyingMs = 800;
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
  /** We have stopped the CPUs, so nothing else may set them running. */
  #isHeld = false;
  #isReleased = false;
  #dropping: Promise<void> | undefined;

  /** Reaches a QEMU that was just spawned. */
  static async connect(spec: VmSpec, process: VmProcess): Promise<QemuVm> {
    const vm = new QemuVm(spec, process);
    await vm.#connect(connectDeadlineMs);
    return vm;
  }

  /** Reaches a QEMU of an earlier daemon, and finds out whether its guest has ended meanwhile. */
  static async adopt(spec: VmSpec, process: VmProcess): Promise<QemuVm> {
    const vm = new QemuVm(spec, process);
    await vm.#connect(adoptDeadlineMs);
    if ((await vm.state()) === "shutdown") {
      // Which end it was, QEMU told its earlier client only. The guest's word is good enough: the end was its choice too.
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

  /**
   * Where one of its sockets is reached; nowhere once it is released. Through an open folder, paths stay short however deep
   * the data folder lies.
   */
  socket(name: string): string {
    if (this.#isReleased) return join("/proc/self/fd/released", name);
    return `/proc/self/fd/${this.#folder}/${name}`;
  }

  /** From here on it is the VM of `spec`, in whose folder its sockets and its device state are now. */
  rebind(spec: VmSpec): void {
    const folder = openFolder(spec.files.dir);
    closeSync(this.#folder);
    this.#folder = folder;
    this.#spec = spec;
  }

  /** Gives a blank's disk the layer that it has waited for. */
  attach(path: string): Promise<void> {
    return attachLayer(this.#qmp, path);
  }

  /** Takes it back. */
  async detach(): Promise<void> {
    await detachLayer(this.#qmp, await sizeOfDisk(this.#spec));
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

  async save(to: SavedVm & { memory: string }, around: AroundSave = {}): Promise<SaveResult> {
    await this.#dropping;
    return await new VmSave(this, this.#qmp, to, around).run();
  }

  /** What was loaded is of no more use. Begins to empty that file; what fails of it costs the next save some time, not more. */
  dropLoaded(): void {
    this.#dropping = emptyDevices(this.#spec.files.dir).catch(() => {});
  }

  /** Loads saved devices into a QEMU that waits for them, once in its life; the CPUs stay stopped. A failure ends it. */
  async load(uri: string): Promise<void> {
    this.#isHeld = true;
    await loadDevices(this.#qmp, uri);
  }

  /** Loads saved devices, from its `devices` as a snapshot, into a QEMU that has run and is stopped. After a failure it is lost. */
  async reload(): Promise<void> {
    this.#isHeld = true;
    await reloadDevices(this.#qmp);
  }

  /** The machine as after power-on, stopped: no device holds on to the guest's memory, and nothing was printed. */
  async reset(): Promise<void> {
    await resetDevices(this.#qmp);
    await this.console();
    this.#console = "";
  }

  /** Takes the way into the guest's memory away that a blank has for its rehearsal. */
  async closeQtest(): Promise<void> {
    const gone = this.#qmp.command("object-del", { id: qtestName });
    await allSettledOrThrow([gone, this.#qmp.command("chardev-remove", { id: qtestPortName })]);
  }

  async console(): Promise<string> {
    const reading = { device: consoleDevice, size: consoleBytes, format: "base64" };
    const printed = String(await this.#qmp.command("ringbuf-read", reading));
    // Reading takes it out of QEMU.
    this.#console = (this.#console + Buffer.from(printed, "base64").toString("utf8")).slice(-consoleBytes);
    return this.#console;
  }

  async kill(): Promise<void> {
    this.release();
    await allSettledOrThrow([endProcess(this.process), clearFolder(this.spec.files.dir)]);
  }

  release(): void {
    if (this.#isReleased) return;
    this.#isReleased = true;
    clearInterval(this.#watch);
    clearTimeout(this.#diskRetry);
    this.#qmp?.close();
    closeSync(this.#folder);
  }

  async #connect(deadlineMs: number): Promise<void> {
    const path = this.socket(qmpSocketName);
    const deadline = performance.now() + deadlineMs;
    try {
      for (;;) {
        try {
          const leftMs = Math.max(1, deadline - performance.now());
          this.#qmp = await Qmp.connect(path, (event) => this.#take(event), leftMs);
          break;
        } catch (error) {
          // Not there yet, or not listening yet.
          const { code } = error as NodeJS.ErrnoException;
          if (code !== "ENOENT" && code !== "ECONNREFUSED") throw error;
          if (!isAlive(this.process)) throw new Error("QEMU ended as soon as it started", { cause: error });
          if (performance.now() > deadline) throw error;
          await delay(connectPollMs);
        }
      }
    } catch (error) {
      this.release();
      throw error;
    }
    await endBwrap(this.process);
    const overuse = new ResourceWatchdog(vmLimits(this.spec));
    this.#wasTooLarge = memoryVerdict(this.process.pid);
    this.#watch = setInterval(() => {
      const what = overuse.sample(this.process.pid);
      if (what !== undefined) this.#stopOveruse(what);
      if (!isAlive(this.process)) this.#tellExit();
    }, watchMs).unref();
    void this.#qmp.closed.then(() => this.#followDeath());
  }

  /** QEMU without its control socket is dying, or is no longer what we started: either way it ends. */
  async #followDeath(): Promise<void> {
    if (this.#isReleased) return;
    if (!(await isGoneWithin(this.process, dyingMs))) await endProcess(this.process).catch(() => {});
    if (!this.#isReleased) this.#tellExit();
  }

  #tellExit(): void {
    this.#end.resolve(this.#wasTooLarge() ? { kind: "overused", what: "memory" } : { kind: "exited" });
  }

  #stopOveruse(what: string): void {
    this.#end.resolve({ kind: "overused", what });
    void endProcess(this.process).catch(() => {});
  }

  #take({ name, data }: QmpEvent): void {
    if (this.#isReleased) return;
    if (name === "SHUTDOWN" && data.guest === true) {
      this.#end.resolve({ kind: data.reason === "guest-shutdown" ? "powered_off" : "reset" });
    } else if (name === "BLOCK_IO_ERROR" && data.action === "stop") this.#retryDisk();
    else if (name === "STOP" && !this.#isHeld) void this.#lookForCrash().catch(() => {});
  }

  /** The host's disk is full: QEMU has stopped the guest in the middle of a write, and repeats it when it runs again. */
  #retryDisk(): void {
    clearTimeout(this.#diskRetry);
    this.#diskRetry = setTimeout(() => {
      if (this.#isHeld || this.#isReleased) return;
      // QEMU that cannot answer hangs on the same disk; a QEMU that is gone is noticed elsewhere.
      this.#goOnWriting().catch(() => this.#retryDisk());
    }, diskRetryMs).unref();
  }

  async #goOnWriting(): Promise<void> {
    if ((await this.#status()) === "io-error") await this.#qmp.command("cont");
  }

  /** The accelerator could not go on with the guest. */
  async #lookForCrash(): Promise<void> {
    if ((await this.#status()) === "internal-error") await endProcess(this.process);
  }

  #status(): Promise<string> {
    return statusOf(this.#qmp);
  }
}

function openFolder(path: string): number {
  return openSync(path, constants.O_RDONLY | constants.O_DIRECTORY);
}
