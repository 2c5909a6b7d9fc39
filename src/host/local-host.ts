/** The Host of this machine: folders, VMs and agents put together. See host.ts for what each call promises. */
import { mkdirSync, readdirSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join, relative } from "node:path";
import type { MergeLayer } from "../vmm/layer-merge.ts";
import { CapsuleError } from "../wire/errors.ts";
import { Admission } from "./capacity/admission.ts";
import { MemoryPressure } from "./capacity/pressure.ts";
import { Slots, settleMs } from "./capacity/start-scheduler.ts";
import { Saver } from "./checkpoint/checkpointer.ts";
import { Verifier } from "./checkpoint/verifier.ts";
import { unless, within } from "./deadline.ts";
import { checkpointName, forgetVm, readCapsule, readVm } from "./disk/capsule-folder.ts";
import { diffName, openCheckpoint, parts } from "./disk/checkpoint-folder.ts";
import { allocatedBytes, explainSpace } from "./disk/files.ts";
import type { Paths } from "./disk/paths.ts";
import { reapFolder, reapStrays } from "./disk/reaper.ts";
import type { LiveGuest } from "./guest.ts";
import type { Adopted, Captured, Guest, Host, Inventory, Origin, Shape } from "./host.ts";
import { Bases } from "./images/bases.ts";
import { trimBuilds } from "./images/builds.ts";
import type { Image } from "./images/images.ts";
import { found } from "./images/new-capsule.ts";
import { Sources } from "./images/template-store.ts";
import { Waker, type WakerOptions } from "./launch/launcher.ts";
import { type Kind, type Standby, Standbys } from "./warm/warm-capsules.ts";
import { Pool } from "./warm/warm-pool.ts";
import { type BlankSettings, Blanks } from "./warm/warm-processes.ts";

export interface LocalHostOptions extends WakerOptions {
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
  blanks: BlankSettings;
  /** Told of checkpoints that were found damaged in the background. */
  onDamage: (folder: string, why: string) => void;
}

/** See warm-pool.ts. */
export interface PoolSettings {
  newId: () => string;
  budgetBytes: number;
  staple: { kind: Kind; least: number };
  onFailure: (error: unknown) => void;
}

export class LocalHost implements Host {
  readonly #options: LocalHostOptions;
  readonly #paths: Paths;
  readonly #bases: Bases;
  readonly #sources: Sources;
  readonly #waker: Waker;
  readonly #verifier: Verifier;
  readonly #saver: Saver;
  readonly #pool: Pool;
  readonly #blanks: Blanks;
  readonly #admission: Admission;
  readonly #guests = new Map<string, LiveGuest>();

  constructor(options: LocalHostOptions) {
    this.#options = options;
    this.#paths = options.paths;
    const slots = new Slots(options.concurrentStarts, settleMs);
    this.#admission = new Admission({ folder: this.#paths.data, reserveBytes: options.memoryReserveBytes });
    this.#bases = new Bases({ ...options, spare: options.spareBases, slots });
    this.#verifier = new Verifier(options.onDamage, this.#paths.scratch("hashing"));
    this.#sources = new Sources(this.#paths, options.images, this.#bases, options.vmm);
    const pressure = new MemoryPressure();
    this.#blanks = new Blanks({ ...options, ...options.blanks, sources: this.#sources, slots, pressure });
    this.#waker = new Waker(options, this.#sources, slots, this.#blanks);
    this.#saver = new Saver({ ...options, sources: this.#sources, verifier: this.#verifier });
    const standbys = new Standbys(this.#paths, this.#sources, this.#waker, options.wakeMs, options.step);
    this.#pool = new Pool({ ...options.pool, standbys, pressure });
    for (const folder of [this.#paths.capsules, this.#paths.templates, this.#paths.bases, this.#paths.work]) {
      mkdirSync(folder, { recursive: true, mode: 0o700 });
    }
  }

  get accelerator(): "kvm" | "tcg" {
    return this.#options.vmm.machine(1, 128).accelerator;
  }

  images() {
    return this.#sources.builtIn();
  }

  async prepare(origin: Origin, shape: Shape): Promise<void> {
    await this.#sources.find(origin, shape);
  }

  admit(memoryMb: number): Promise<void> {
    return this.#admission.require(memoryMb, this.#pool.reserved);
  }

  async diskBytes(id: string): Promise<number> {
    const folder = this.#paths.capsule(id);
    const sizes = await Promise.allSettled([folder, join(folder, checkpointName)].map(allocatedBytes));
    return sizes.reduce((sum, size) => sum + (size.status === "fulfilled" ? size.value : 0), 0);
  }

  reserve(origin: Origin, shape: Shape): string | undefined {
    return this.#pool.reserve({ origin, shape });
  }

  pool(): { ready: number; target: number } {
    return this.#pool.state();
  }

  blanks(): { ready: number; target: number } {
    return this.#blanks.state();
  }

  start(id: string, origin: Origin, shape: Shape, unwanted?: AbortSignal): Promise<Guest> {
    return this.#admission.during(async () => {
      const standby = this.#pool.claim(id);
      const roused = standby && (await this.#rouse(standby, unwanted).catch(() => undefined));
      const guest = roused ?? (await this.#startAnew(id, origin, shape, unwanted));
      guest.mayHaveCheckpoint = false;
      return guest;
    });
  }

  restore(id: string, unwanted?: AbortSignal): Promise<Guest> {
    return this.#admission.during(() => this.#restore(id, unwanted));
  }

  async #restore(id: string, unwanted: AbortSignal | undefined): Promise<Guest> {
    if (this.#guests.has(id)) await this.end(this.#guests.get(id)!); // its VM could not be ended after the pause
    const folder = this.#paths.capsule(id);
    const checkpoint = join(folder, checkpointName);
    this.#verifier.requireSound(checkpoint);
    const [capsule, manifest] = await Promise.all([readCapsule(folder), openCheckpoint(checkpoint)]);
    if (capsule === undefined || manifest === undefined) {
      throw new CapsuleError("internal_error", `capsule ${id} has no checkpoint to resume from`);
    }
    this.#sources.requireMachine(manifest, `capsule ${id}`);
    await this.#sources.requireOrigin(capsule, `capsule ${id}`);
    const saved = { state: join(checkpoint, parts.state), memory: join(checkpoint, diffName) };
    return this.#hold(await this.#waker.wake(id, capsule, saved, { unwanted }));
  }

  async release(guest: Guest): Promise<void> {
    const live = this.#live(guest);
    try {
      await within(this.#options.wakeMs, `releasing capsule ${live.id}`, live.thaw());
      this.#options.step("release.thawed");
    } finally {
      // The record says running: whatever the guest does now, nobody goes back to this checkpoint.
      await this.#saver.forgetCheckpoint(live);
    }
  }

  save(guest: Guest, purpose: "pause" | "capture"): Promise<void> {
    return this.#saver.save(this.#live(guest), purpose);
  }

  unsave(guest: Guest): Promise<void> {
    return this.#saver.unsave(this.#live(guest));
  }

  capture(guest: Guest, storage: string): Promise<Captured> {
    return this.#saver.capture(this.#live(guest), storage);
  }

  abandon(guest: Guest): void {
    this.#live(guest).abandon();
  }

  async end(guest: Guest): Promise<void> {
    const live = this.#live(guest);
    live.hangUp(new CapsuleError("invalid_state", `capsule ${live.id} is no longer running`));
    await this.#admission.until(live.vm.kill());
    this.#options.step("end.killed");
    this.#guests.delete(live.id);
    await forgetVm(this.#paths.capsule(live.id));
  }

  async remove(id: string): Promise<void> {
    const folder = this.#paths.capsule(id);
    this.#pool.claim(id)?.guest.close();
    const live = this.#guests.get(id);
    if (live !== undefined) await this.end(live);
    await reapFolder(this.#options.vmm, folder);
    this.#options.step("remove.reaped");
    await Promise.all(
      [folder, this.#paths.scratch(`save-${id}`)].map((path) => rm(path, { recursive: true, force: true })),
    );
  }

  retireTemplate(storage: string): Promise<void> {
    return this.#pool.drop(storage);
  }

  async removeTemplate(storage: string): Promise<void> {
    const folder = this.#paths.template(storage);
    await Promise.all([this.#pool.drop(storage), this.#blanks.drop(relative(this.#paths.data, folder))]);
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
      const guest = await this.#waker.adopt(id, capsule, vm, process);
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
      capsules: ours(this.#paths.capsules, /^cl-[0-9a-z]+$/).filter((id) => !this.#pool.holds(id)),
      templates: ours(this.#paths.templates, /^t[0-9a-f]+$/),
    };
  }

  /**
   * Ends what an earlier daemon left half-made in `work/`, and VMs of nobody's; removes bases and image builds that nobody
   * needs. Call before the first start.
   */
  async sweep(): Promise<void> {
    await reapStrays(this.#options.vmm, this.#paths);
    for (const name of readdirSync(this.#paths.work)) {
      const folder = join(this.#paths.work, name);
      await reapFolder(this.#options.vmm, folder);
      await rm(folder, { recursive: true, force: true });
    }
    const { images, onDamage } = this.#options;
    await this.trimBases()
      .then(() => trimBuilds(this.#paths, images))
      .catch((error: unknown) => onDamage(this.#paths.data, String(error)));
  }

  async trimBases(): Promise<void> {
    const pooled = this.#pool.sources().map((folder) => relative(this.#paths.data, folder));
    const needed = new Set([...pooled, ...this.#blanks.origins()]);
    for (const id of this.inventory().capsules) {
      const capsule = await readCapsule(this.#paths.capsule(id)); // one that cannot be read stops the trimming
      if (capsule !== undefined) needed.add(capsule.origin);
    }
    await this.#bases.trim((folder) => needed.has(folder));
  }

  /** Begins to make capsules and to start QEMUs ahead of time. Call when what an earlier daemon left has been dealt with. */
  openPool(): void {
    this.#pool.open();
    this.#blanks.open();
  }

  /** Reads every checkpoint whole, in the background. */
  verifyAll(): void {
    const { templates, capsules } = this.inventory();
    for (const storage of templates) this.#verifier.verifyLater(this.#paths.template(storage));
    for (const id of capsules) this.#verifier.verifyLater(join(this.#paths.capsule(id), checkpointName));
  }

  async close(): Promise<void> {
    await Promise.all([this.#pool.close(), this.#blanks.close()]);
    this.#verifier.stop();
    await this.#verifier.settled();
    for (const guest of this.#guests.values()) guest.close();
    this.#guests.clear();
  }

  async #rouse({ id, guest, source }: Standby, unwanted: AbortSignal | undefined): Promise<LiveGuest> {
    try {
      this.#verifier.requireSound(source);
      await this.#waker.rouse(guest, unwanted);
      return this.#hold(guest);
    } catch (error) {
      this.#options.pool.onFailure(error);
      guest.hangUp();
      await guest.vm.kill();
      await this.remove(id);
      throw error;
    }
  }

  async #startAnew(id: string, origin: Origin, shape: Shape, unwanted: AbortSignal | undefined): Promise<LiveGuest> {
    unwanted?.throwIfAborted();
    const source = await unless(unwanted, this.#sources.find(origin, shape));
    this.#verifier.requireSound(source.folder);
    try {
      const capsule = await found(this.#paths, this.#sources, id, source);
      this.#options.step("start.journalled");
      const saved = { state: join(source.folder, parts.state), memory: null };
      return this.#hold(await this.#waker.wake(id, capsule, saved, { unwanted }));
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
