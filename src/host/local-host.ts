/** The Host of this machine: folders, VMs and agents put together. See host.ts for what each call promises. */
import { mkdirSync, readdirSync } from "node:fs";
import { mkdir, rm, writeFile } from "node:fs/promises";
import { join, relative } from "node:path";
import { emptyOverlay } from "../vmm/qcow2.ts";
import type { Vmm } from "../vmm/vmm.ts";
import { CapsuleError } from "../wire/errors.ts";
import { Bases } from "./bases.ts";
import { overlayOn } from "./boot.ts";
import { captureTemplate } from "./capture.ts";
import { diffName, openCheckpoint, parts, seal } from "./checkpoints.ts";
import { within } from "./deadline.ts";
import { allocatedBytes, explainSpace, freshFolder, publish, requireSpace, syncFile, syncFolder } from "./files.ts";
import type { LiveGuest } from "./guest.ts";
import type { Adopted, Captured, Guest, Host, Inventory, Origin, Shape } from "./host.ts";
import type { Image } from "./images.ts";
import { type CapsuleFile, checkpointName, diskName, forgetVm, readCapsule, readVm, writeCapsule } from "./journal.ts";
import type { Paths } from "./paths.ts";
import { reapFolder, reapStrays } from "./reaper.ts";
import { Slots } from "./slots.ts";
import { identityOfSource, Sources } from "./sources.ts";
import type { Step } from "./steps.ts";
import { dirtyBytes, freeze, goOn, requireRunning } from "./stillness.ts";
import { Verifier } from "./verifier.ts";
import { Waker, type WakerOptions } from "./waker.ts";

export interface LocalHostOptions extends WakerOptions {
  images: Image[];
  flatten: (base: string, diff: string, out: string) => Promise<void>;
  /** Deadline of a boot, kernel to agent. */
  bootMs: number;
  /** How many VMs are started at once. */
  concurrentStarts: number;
  /** How many unneeded bases are kept. */
  spareBases: number;
  /** Told of checkpoints that were found damaged in the background. */
  onDamage: (folder: string, why: string) => void;
}

/** How often a guest is asked to freeze before its capture is given up; each time it tries for a third of a second. */
const captureAttempts = 10;
/** What a new capsule takes on disk soon after its start. */
const newCapsuleBytes = 16 << 20;

export class LocalHost implements Host {
  readonly #options: LocalHostOptions;
  readonly #paths: Paths;
  readonly #vmm: Vmm;
  readonly #bases: Bases;
  readonly #sources: Sources;
  readonly #waker: Waker;
  readonly #verifier: Verifier;
  readonly #guests = new Map<string, LiveGuest>();
  readonly #step: Step;

  constructor(options: LocalHostOptions) {
    this.#options = options;
    this.#paths = options.paths;
    this.#vmm = options.vmm;
    const slots = new Slots(options.concurrentStarts);
    this.#bases = new Bases({ ...options, spare: options.spareBases, slots });
    this.#verifier = new Verifier(options.onDamage);
    this.#sources = new Sources(this.#paths, options.images, this.#bases, this.#vmm);
    this.#waker = new Waker(options, this.#sources, slots);
    this.#step = options.step;
    for (const folder of [this.#paths.capsules, this.#paths.templates, this.#paths.bases, this.#paths.work]) {
      mkdirSync(folder, { recursive: true, mode: 0o700 });
    }
  }

  get accelerator(): "kvm" | "tcg" {
    return this.#vmm.machine(1, 128).accelerator;
  }

  images() {
    return this.#sources.builtIn();
  }

  async prepare(origin: Origin, shape: Shape): Promise<void> {
    await this.#sources.find(origin, shape);
  }

  async admit(): Promise<void> {
    await requireSpace(this.#paths.data, newCapsuleBytes, "creating a capsule");
  }

  async start(id: string, origin: Origin, shape: Shape): Promise<Guest> {
    const source = await this.#sources.find(origin, shape);
    this.#verifier.requireSound(source.folder);
    const folder = this.#paths.capsule(id);
    try {
      await mkdir(folder, { mode: 0o700 });
      const { machine, image } = source.manifest;
      const origin = relative(this.#paths.data, source.folder);
      const capsule: CapsuleFile = {
        format: 1,
        origin,
        originSha256: identityOfSource(source.manifest),
        image,
        machine,
      };
      const base = join(source.folder, parts.disk);
      const overlay = emptyOverlay(overlayOn(folder, base, "qcow2", this.#sources.image(image).diskBytes));
      await Promise.all([writeFile(join(folder, diskName), overlay, { mode: 0o600 }), writeCapsule(folder, capsule)]);
      this.#step("start.journalled");
      return this.#hold(await this.#waker.wake(id, capsule, { state: join(source.folder, parts.state), memory: null }));
    } catch (error) {
      await this.remove(id);
      throw explainSpace(error, `creating capsule ${id}`);
    }
  }

  async restore(id: string): Promise<Guest> {
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
    return this.#hold(await this.#waker.wake(id, capsule, saved));
  }

  async release(guest: Guest): Promise<void> {
    const live = this.#live(guest);
    const folder = this.#paths.capsule(live.id);
    try {
      await within(this.#options.wakeMs, `releasing capsule ${live.id}`, live.thaw());
      this.#step("release.thawed");
    } finally {
      // The record says running: whatever the guest does now, nobody goes back to this checkpoint.
      await rm(join(folder, checkpointName), { recursive: true, force: true });
      await syncFolder(folder);
    }
  }

  async save(guest: Guest, purpose: "pause" | "capture"): Promise<void> {
    const live = this.#live(guest);
    const folder = this.#paths.capsule(live.id);
    const scratch = this.#paths.scratch(`save-${live.id}`);
    await requireSpace(this.#paths.data, dirtyBytes(live.vm), `pausing capsule ${live.id}`);
    await requireRunning(live);
    // Left behind where a release was cut off; from here on a checkpoint means that this save has succeeded.
    await rm(join(folder, checkpointName), { recursive: true, force: true });
    live.expectSilence();
    try {
      const isFrozen = await freeze(live, purpose === "capture" ? captureAttempts : 1);
      if (purpose === "capture" && !isFrozen) {
        throw new CapsuleError("agent_error", `the processes of capsule ${live.id} could not be frozen`);
      }
      this.#step("save.frozen");
      await live.vm.stop();
      this.#step("save.stopped");
      await freshFolder(scratch);
      await live.vm.save({ state: join(scratch, parts.state), memory: join(scratch, diffName) });
      this.#step("save.written");
      const capsule = await readCapsule(folder);
      if (capsule === undefined) throw new CapsuleError("internal_error", `the folder of capsule ${live.id} is gone`);
      const about = { kind: "pause", machine: capsule.machine, image: capsule.image } as const;
      await seal(scratch, about, [parts.state, diffName], { hashAll: false });
      // QEMU flushes what it wrote; a layer that it never wrote to is ours to make durable, and so is the folder itself.
      await Promise.all([syncFile(join(folder, diskName)), syncFolder(this.#paths.capsules)]);
      await publish(scratch, join(folder, checkpointName));
      this.#verifier.forget(join(folder, checkpointName));
      this.#verifier.hashLater(join(folder, checkpointName));
      this.#step("save.published");
    } catch (error) {
      await this.unsave(live).catch(() => {});
      await rm(scratch, { recursive: true, force: true }).catch(() => {});
      throw explainSpace(error, `pausing capsule ${live.id}`);
    }
  }

  async unsave(guest: Guest): Promise<void> {
    const live = this.#live(guest);
    try {
      await rm(join(this.#paths.capsule(live.id), checkpointName), { recursive: true, force: true });
      await live.vm.resume();
      await within(this.#options.wakeMs, `releasing capsule ${live.id}`, goOn(live));
    } catch (error) {
      // A VM that waits for the host's disk hears the THAW when there is room again.
      if (!(await live.isWaitingForDisk())) live.lose("it could not be set running again after a failed pause");
      throw error;
    }
  }

  async capture(guest: Guest, storage: string): Promise<Captured> {
    const live = this.#live(guest);
    const folder = this.#paths.capsule(live.id);
    const target = this.#paths.template(storage);
    const scratch = this.#paths.scratch(`capture-${storage}`);
    try {
      const capsule = await readCapsule(folder);
      if (capsule === undefined) throw new CapsuleError("internal_error", `the folder of capsule ${live.id} is gone`);
      const origin = join(this.#paths.data, capsule.origin);
      const needBytes = (await allocatedBytes(origin)) + (await allocatedBytes(folder)) + dirtyBytes(live.vm);
      await requireSpace(this.#paths.data, needBytes, `capturing capsule ${live.id}`);
      await freshFolder(scratch);
      await captureTemplate({
        scratch,
        checkpoint: join(folder, checkpointName),
        disk: join(folder, diskName),
        origin,
        root: this.#sources.image(capsule.image).root,
        about: { kind: "template", machine: capsule.machine, image: capsule.image },
        flatten: this.#options.flatten,
      });
      this.#step("capture.written");
      await publish(scratch, target);
      this.#step("capture.published");
      return { sizeBytes: await allocatedBytes(target) };
    } catch (error) {
      await rm(scratch, { recursive: true, force: true }).catch(() => {});
      throw explainSpace(error, `capturing capsule ${live.id}`);
    }
  }

  async end(guest: Guest): Promise<void> {
    const live = this.#live(guest);
    live.hangUp(new CapsuleError("invalid_state", `capsule ${live.id} is no longer running`));
    await live.vm.kill();
    this.#step("end.killed");
    this.#guests.delete(live.id);
    await forgetVm(this.#paths.capsule(live.id));
  }

  async remove(id: string): Promise<void> {
    const folder = this.#paths.capsule(id);
    const live = this.#guests.get(id);
    if (live !== undefined) await this.end(live);
    await reapFolder(this.#vmm, folder);
    this.#step("remove.reaped");
    await Promise.all(
      [folder, this.#paths.scratch(`save-${id}`)].map((path) => rm(path, { recursive: true, force: true })),
    );
  }

  async removeTemplate(storage: string): Promise<void> {
    await rm(this.#paths.template(storage), { recursive: true, force: true });
  }

  async adopt(id: string): Promise<Adopted> {
    const folder = this.#paths.capsule(id);
    const [capsule, vm] = await Promise.all([readCapsule(folder), readVm(folder)]);
    if (capsule === undefined) return { kind: "nothing" };
    const hasCheckpoint = (await openCheckpoint(join(folder, checkpointName)).catch(() => undefined)) !== undefined;
    const otherwise: Extract<Adopted, { reason?: string }> = { kind: hasCheckpoint ? "checkpoint" : "nothing" };
    if (vm === undefined) return otherwise;
    const process = vm.process ?? (await this.#vmm.find(vm.nonce))[0];
    if (process === undefined) return otherwise;
    try {
      const guest = await this.#waker.adopt(id, capsule, vm.nonce, process);
      return guest === undefined ? { kind: "powered_off" } : { kind: "running", guest: this.#hold(guest) };
    } catch (error) {
      await reapFolder(this.#vmm, folder);
      return { ...otherwise, reason: error instanceof Error ? error.message : String(error) };
    }
  }

  async reap(id: string): Promise<void> {
    await reapFolder(this.#vmm, this.#paths.capsule(id));
  }

  inventory(): Inventory {
    // What has another name, like a file system's lost+found, was not put there by us.
    const ours = (folder: string, name: RegExp) => readdirSync(folder).filter((entry) => name.test(entry));
    return {
      capsules: ours(this.#paths.capsules, /^cl-[0-9a-z]+$/),
      templates: ours(this.#paths.templates, /^t[0-9a-f]+$/),
    };
  }

  /** Ends what an earlier daemon left half-made in `work/`, and VMs of nobody's. Call before the first start. */
  async sweep(): Promise<void> {
    await reapStrays(this.#vmm, this.#paths);
    for (const name of readdirSync(this.#paths.work)) {
      const folder = join(this.#paths.work, name);
      await reapFolder(this.#vmm, folder);
      await rm(folder, { recursive: true, force: true });
    }
    await this.trimBases().catch((error: unknown) => this.#options.onDamage(this.#paths.capsules, String(error)));
  }

  async trimBases(): Promise<void> {
    const needed = new Set<string>();
    for (const id of this.inventory().capsules) {
      const capsule = await readCapsule(this.#paths.capsule(id)); // one that cannot be read stops the trimming
      if (capsule !== undefined) needed.add(capsule.origin);
    }
    await this.#bases.trim((folder) => needed.has(folder));
  }

  /** Reads every checkpoint whole, in the background. */
  verifyAll(): void {
    const { templates, capsules } = this.inventory();
    for (const storage of templates) this.#verifier.verifyLater(this.#paths.template(storage));
    for (const id of capsules) this.#verifier.verifyLater(join(this.#paths.capsule(id), checkpointName));
  }

  async close(): Promise<void> {
    this.#verifier.stop();
    await this.#verifier.settled();
    for (const guest of this.#guests.values()) guest.close();
    this.#guests.clear();
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
