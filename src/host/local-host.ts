/** The Host of this machine: folders, VMs and agents put together. See host.ts for what each call promises. */
import { mkdirSync, readdirSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join, relative } from "node:path";
import type { MergeLayer } from "../vmm/layer-merge.ts";
import { CapsuleError } from "../wire/errors.ts";
import { Admission } from "./capacity/admission.ts";
import { MemoryPressure } from "./capacity/pressure.ts";
import { quietPeriodMs, StartScheduler } from "./capacity/start-scheduler.ts";
import { Checkpointer } from "./checkpoint/checkpointer.ts";
import { Verifier } from "./checkpoint/verifier.ts";
import { unlessAborted, withDeadline } from "./deadline.ts";
import { checkpointName, forgetVm, readCapsule, readVm } from "./disk/capsule-folder.ts";
import { diffName, fileNames, openCheckpoint } from "./disk/checkpoint-folder.ts";
import { allocatedBytes, explainSpace } from "./disk/files.ts";
import type { Paths } from "./disk/paths.ts";
import { reapFolder, reapLeftovers } from "./disk/reaper.ts";
import type { LiveGuest } from "./guest.ts";
import type { Adopted, Captured, Guest, Host, Inventory, Origin, Shape } from "./host.ts";
import { Bases } from "./images/bases.ts";
import { trimBuilds } from "./images/builds.ts";
import type { Image } from "./images/images.ts";
import { createCapsuleFolder } from "./images/new-capsule.ts";
import { TemplateStore } from "./images/template-store.ts";
import { Launcher, type LauncherOptions } from "./launch/launcher.ts";
import { type WarmCapsule, WarmCapsules, type WarmKey } from "./warm/warm-capsules.ts";
import { WarmPool } from "./warm/warm-pool.ts";
import { WarmProcesses, type WarmProcessSettings } from "./warm/warm-processes.ts";

export interface LocalHostOptions extends LauncherOptions {
  images: Image[];
  flatten: (base: string, diff: string, out: string) => Promise<void>;
  mergeLayer: MergeLayer;
  /** Deadline of a boot, kernel to agent. */
  bootMs: number;
  /** How many VMs are started at once. */
  concurrentStarts: number;
  /** How many unneeded bases are kept. */
  spareBases: number;
  /** Memory of the host that is never given to a new capsule. */
  memoryReserveBytes: number;
  pool: PoolSettings;
  warmProcesses: WarmProcessSettings;
  /** Told of checkpoints that were found damaged in the background. */
  onDamage: (folder: string, why: string) => void;
}

/** See warm-pool.ts. */
export interface PoolSettings {
  newId: () => string;
  budgetBytes: number;
  minimum: { key: WarmKey; size: number };
  onFailure: (error: unknown) => void;
}

export class LocalHost implements Host {
  readonly #options: LocalHostOptions;
  readonly #paths: Paths;
  readonly #bases: Bases;
  readonly #templates: TemplateStore;
  readonly #launcher: Launcher;
  readonly #verifier: Verifier;
  readonly #checkpointer: Checkpointer;
  readonly #warmPool: WarmPool;
  readonly #warmProcesses: WarmProcesses;
  readonly #admission: Admission;
  readonly #guests = new Map<string, LiveGuest>();

  constructor(options: LocalHostOptions) {
    this.#options = options;
    this.#paths = options.paths;
    const slots = new StartScheduler(options.concurrentStarts, quietPeriodMs);
    this.#admission = new Admission({ folder: this.#paths.data, reserveBytes: options.memoryReserveBytes });
    this.#bases = new Bases({ ...options, spare: options.spareBases, slots });
    this.#verifier = new Verifier(options.onDamage, this.#paths.scratch("hashing"));
    this.#templates = new TemplateStore(this.#paths, options.images, this.#bases, options.vmm);
    const pressure = new MemoryPressure();
    const shared = { sources: this.#templates, slots, pressure };
    this.#warmProcesses = new WarmProcesses({ ...options, ...options.warmProcesses, ...shared });
    this.#launcher = new Launcher(options, this.#templates, slots, this.#warmProcesses);
    this.#checkpointer = new Checkpointer({ ...options, sources: this.#templates, verifier: this.#verifier });
    const warmCapsules = new WarmCapsules(this.#paths, this.#templates, this.#launcher, options.wakeMs, options.step);
    this.#warmPool = new WarmPool({ ...options.pool, capsules: warmCapsules, pressure });
    for (const folder of [this.#paths.capsules, this.#paths.templates, this.#paths.bases, this.#paths.work]) {
      mkdirSync(folder, { recursive: true, mode: 0o700 });
    }
  }

  get accelerator(): "kvm" | "tcg" {
    return this.#options.vmm.machine(1, 128).accelerator;
  }

  images() {
    return this.#templates.builtIn();
  }

  async prepare(origin: Origin, shape: Shape): Promise<void> {
    await this.#templates.find(origin, shape);
  }

  admit(memoryMb: number): Promise<void> {
    return this.#admission.admit(memoryMb, this.#warmPool.reserved);
  }

  async diskBytes(id: string): Promise<number> {
    const folder = this.#paths.capsule(id);
    const sizes = await Promise.allSettled([folder, join(folder, checkpointName)].map(allocatedBytes));
    return sizes.reduce((sum, size) => sum + (size.status === "fulfilled" ? size.value : 0), 0);
  }

  reserve(origin: Origin, shape: Shape): string | undefined {
    return this.#warmPool.reserve({ origin, shape });
  }

  pool(): { ready: number; target: number } {
    return this.#warmPool.state();
  }

  warmProcesses(): { ready: number; target: number } {
    return this.#warmProcesses.state();
  }

  start(id: string, origin: Origin, shape: Shape, signal?: AbortSignal): Promise<Guest> {
    return this.#admission.during(async () => {
      const warm = this.#warmPool.claim(id);
      const unparked = warm && (await this.#rouse(warm, signal).catch(() => undefined));
      const guest = unparked ?? (await this.#startAnew(id, origin, shape, signal));
      guest.mayHaveCheckpoint = false;
      return guest;
    });
  }

  restore(id: string, signal?: AbortSignal): Promise<Guest> {
    return this.#admission.during(() => this.#restore(id, signal));
  }

  async #restore(id: string, signal: AbortSignal | undefined): Promise<Guest> {
    if (this.#guests.has(id)) await this.end(this.#guests.get(id)!); // its VM could not be ended after the pause
    const folder = this.#paths.capsule(id);
    const checkpoint = join(folder, checkpointName);
    this.#verifier.requireSound(checkpoint);
    const [capsule, manifest] = await Promise.all([readCapsule(folder), openCheckpoint(checkpoint)]);
    if (capsule === undefined || manifest === undefined) {
      throw new CapsuleError("internal_error", `capsule ${id} has no checkpoint to resume from`);
    }
    this.#templates.requireMachine(manifest, `capsule ${id}`);
    await this.#templates.requireParent(capsule, `capsule ${id}`);
    const saved = { state: join(checkpoint, fileNames.state), memory: join(checkpoint, diffName) };
    return this.#hold(await this.#launcher.restore(id, capsule, saved, { signal }));
  }

  async release(guest: Guest): Promise<void> {
    const live = this.#live(guest);
    try {
      await withDeadline(this.#options.wakeMs, `releasing capsule ${live.id}`, live.thaw());
      this.#options.step("release.thawed");
    } finally {
      // The record says running: whatever the guest does now, nobody goes back to this checkpoint.
      await this.#checkpointer.forgetCheckpoint(live);
    }
  }

  save(guest: Guest, purpose: "pause" | "capture"): Promise<void> {
    return this.#checkpointer.save(this.#live(guest), purpose);
  }

  unsave(guest: Guest): Promise<void> {
    return this.#checkpointer.unsave(this.#live(guest));
  }

  capture(guest: Guest, storage: string): Promise<Captured> {
    return this.#checkpointer.capture(this.#live(guest), storage);
  }

  abandon(guest: Guest): void {
    this.#live(guest).abandon();
  }

  async end(guest: Guest): Promise<void> {
    const live = this.#live(guest);
    live.disconnect(new CapsuleError("invalid_state", `capsule ${live.id} is no longer running`));
    await this.#admission.trackRelease(live.vm.kill());
    this.#options.step("end.killed");
    this.#guests.delete(live.id);
    await forgetVm(this.#paths.capsule(live.id));
  }

  async remove(id: string): Promise<void> {
    const folder = this.#paths.capsule(id);
    this.#warmPool.claim(id)?.guest.close();
    const live = this.#guests.get(id);
    if (live !== undefined) await this.end(live);
    await reapFolder(this.#options.vmm, folder);
    this.#options.step("remove.reaped");
    await Promise.all(
      [folder, this.#paths.scratch(`save-${id}`)].map((path) => rm(path, { recursive: true, force: true })),
    );
  }

  retireTemplate(storage: string): Promise<void> {
    return this.#warmPool.drop(storage);
  }

  async removeTemplate(storage: string): Promise<void> {
    const folder = this.#paths.template(storage);
    await Promise.all([this.#warmPool.drop(storage), this.#warmProcesses.drop(relative(this.#paths.data, folder))]);
    await rm(folder, { recursive: true, force: true });
  }

  async adopt(id: string): Promise<Adopted> {
    const folder = this.#paths.capsule(id);
    const [capsule, vm] = await Promise.all([readCapsule(folder), readVm(folder)]);
    if (capsule === undefined) return { kind: "nothing" };
    const hasCheckpoint = (await openCheckpoint(join(folder, checkpointName)).catch(() => undefined)) !== undefined;
    const otherwise: Extract<Adopted, { reason?: string }> = { kind: hasCheckpoint ? "checkpoint" : "nothing" };
    if (vm === undefined) return otherwise;
    const process = vm.process ?? (await this.#options.vmm.find(vm.nonce))[0];
    if (process === undefined) return otherwise;
    try {
      const guest = await this.#launcher.adopt(id, capsule, vm, process);
      return guest === undefined ? { kind: "powered_off" } : { kind: "running", guest: this.#hold(guest) };
    } catch (error) {
      await reapFolder(this.#options.vmm, folder);
      return { ...otherwise, reason: error instanceof Error ? error.message : String(error) };
    }
  }

  async reap(id: string): Promise<void> {
    await reapFolder(this.#options.vmm, this.#paths.capsule(id));
  }

  inventory(): Inventory {
    // What has another name, like a file system's lost+found, was not put there by us.
    const ours = (folder: string, name: RegExp) => readdirSync(folder).filter((entry) => name.test(entry));
    return {
      capsules: ours(this.#paths.capsules, /^cl-[0-9a-z]+$/).filter((id) => !this.#warmPool.holds(id)),
      templates: ours(this.#paths.templates, /^t[0-9a-f]+$/),
    };
  }

  /**
   * Ends what an earlier daemon left half-made in `work/`, and VMs of nobody's; removes bases and image builds that nobody
   * needs. Call before the first start.
   */
  async sweep(): Promise<void> {
    const { vmm, images, onDamage } = this.#options;
    await reapLeftovers(vmm, this.#paths, onDamage);
    for (const name of readdirSync(this.#paths.work)) {
      const folder = join(this.#paths.work, name);
      await reapFolder(vmm, folder);
      await rm(folder, { recursive: true, force: true });
    }
    await this.trimBases()
      .then(() => trimBuilds(this.#paths, images))
      .catch((error: unknown) => onDamage(this.#paths.data, String(error)));
  }

  async trimBases(): Promise<void> {
    const pooled = this.#warmPool.sources().map((folder) => relative(this.#paths.data, folder));
    const needed = new Set([...pooled, ...this.#warmProcesses.origins()]);
    for (const id of this.inventory().capsules) {
      const capsule = await readCapsule(this.#paths.capsule(id)); // one that cannot be read stops the trimming
      if (capsule !== undefined) needed.add(capsule.origin);
    }
    await this.#bases.trim((folder) => needed.has(folder));
  }

  /** Begins to make capsules and to start QEMUs ahead of time. Call when what an earlier daemon left has been dealt with. */
  openWarmPools(): void {
    this.#warmPool.open();
    this.#warmProcesses.open();
  }

  /** Reads every checkpoint whole, in the background. */
  verifyAll(): void {
    const { templates, capsules } = this.inventory();
    for (const storage of templates) this.#verifier.verifyLater(this.#paths.template(storage));
    for (const id of capsules) this.#verifier.verifyLater(join(this.#paths.capsule(id), checkpointName));
  }

  async close(): Promise<void> {
    await Promise.all([this.#warmPool.close(), this.#warmProcesses.close()]);
    this.#verifier.stop();
    await this.#verifier.settled();
    for (const guest of this.#guests.values()) guest.close();
    this.#guests.clear();
  }

  async #rouse({ id, guest, source }: WarmCapsule, signal: AbortSignal | undefined): Promise<LiveGuest> {
    try {
      this.#verifier.requireSound(source);
      await this.#launcher.unpark(guest, signal);
      return this.#hold(guest);
    } catch (error) {
      this.#options.pool.onFailure(error);
      guest.disconnect();
      await guest.vm.kill();
      await this.remove(id);
      throw error;
    }
  }

  async #startAnew(id: string, origin: Origin, shape: Shape, signal: AbortSignal | undefined): Promise<LiveGuest> {
    signal?.throwIfAborted();
    const source = await unlessAborted(signal, this.#templates.find(origin, shape));
    this.#verifier.requireSound(source.folder);
    try {
      const capsule = await createCapsuleFolder(this.#paths, this.#templates, id, source);
      this.#options.step("start.journalled");
      const saved = { state: join(source.folder, fileNames.state), memory: null };
      return this.#hold(await this.#launcher.restore(id, capsule, saved, { signal }));
    } catch (error) {
      await this.remove(id);
      throw explainSpace(error, `creating capsule ${id}`);
    }
  }

  #hold(guest: LiveGuest): LiveGuest {
    this.#guests.set(guest.id, guest);
    return guest;
  }

  #live(guest: Guest): LiveGuest {
    const live = this.#guests.get(guest.id);
    if (live !== guest) throw new Error(`guest ${guest.id} is not this host's`);
    return live;
  }
}
