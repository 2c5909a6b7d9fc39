/** The Host of this machine: folders, VMs and agents put together. host.ts has the contract of each call. */
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { Admission, restoreNeed } from "./capacity/admission.ts";
import { FairSlots } from "./capacity/fair-slots.ts";
import type { HostMemory } from "./capacity/host-memory.ts";
import { privateMemory } from "./capacity/private-memory.ts";
import { quietPeriods, StartScheduler } from "./capacity/start-scheduler.ts";
import { Adopter } from "./checkpoint/adopter.ts";
import { Checkpointer, lineOfCopies, savesAtOnce } from "./checkpoint/checkpointer.ts";
import { Restorer } from "./checkpoint/restorer.ts";
import { Verifier } from "./checkpoint/verifier.ts";
import { checkpointName } from "./disk/capsule-folder.ts";
import { diffName, hasNetworkIn } from "./disk/checkpoint-folder.ts";
import { diskMbIn } from "./disk/disk-layer.ts";
import { DiskSpace } from "./disk/disk-space.ts";
import { allocatedInAll, explainSpace } from "./disk/files.ts";
import { LostFound } from "./disk/lost-found.ts";
import { encodeMachine } from "./disk/machine-record.ts";
import type { Paths } from "./disk/paths.ts";
import { reapFolder } from "./disk/reaper.ts";
import { readReferences } from "./disk/references.ts";
import type { LiveGuest } from "./guest.ts";
import type { Admitted, Captured, Guest, Host, Origin, SavedKind, SaveTurn, Shape, Turn } from "./host.ts";
import { Bases } from "./images/bases.ts";
import { TemplateStore } from "./images/template-store.ts";
import { Booter } from "./launch/booter.ts";
import { Launcher } from "./launch/launcher.ts";
import { shutDown, stopGraceMs } from "./launch/shut-down.ts";
import { Starter } from "./launch/starter.ts";
import { LiveGuests } from "./live-guests.ts";
import type { LocalHostOptions } from "./local-host-options.ts";
import { LocalFetches } from "./moves/local-fetches.ts";
import { LocalMoves } from "./moves/local-moves.ts";
import type { MovedFolders } from "./moves/moved-folders.ts";
import { SharedFolders } from "./shared-folders/shared-folders.ts";
import { sweep } from "./sweep.ts";
import type { WarmCapsule } from "./warm/warm-pool.ts";
import { WarmStarts } from "./warm/warm-starts.ts";

export class LocalHost implements Host {
  readonly lostFound: LostFound;
  readonly moved: MovedFolders;
  readonly fetches: LocalFetches;
  readonly space: DiskSpace;
  readonly memory: HostMemory;
  readonly admission: Admission;
  readonly shared: SharedFolders;
  readonly #options: LocalHostOptions;
  readonly #paths: Paths;
  readonly #bases: Bases;
  readonly #templates: TemplateStore;
  readonly #verifier: Verifier;
  readonly #checkpointer: Checkpointer;
  readonly #launcher: Launcher;
  readonly #starter: Starter;
  readonly #booter: Booter;
  readonly #restorer: Restorer;
  readonly #adopter: Adopter;
  readonly #warm: WarmStarts;
  readonly #guests: LiveGuests;
  readonly keepReady = (isKept: boolean) => this.#warm.keep(isKept);
  readonly hasNetwork = (id: string) => hasNetworkIn(join(this.#paths.capsule(id), checkpointName));

  constructor(options: LocalHostOptions) {
    const { paths, images, vmm, spareBases, memory, concurrentStarts, onDamage, warm } = options;
    this.lostFound = new LostFound(paths);
    const space = new DiskSpace({
      ...{ folder: paths.data, reserveBytes: options.diskReserveBytes },
      reclaim: async () => (await this.moved.dropOldest()) || (await this.lostFound.removeOldest()),
      reclaimableBytes: async () => (await this.moved.bytes()) + (await this.lostFound.bytes()),
    });
    [this.space, this.memory] = [space, memory];
    this.#options = options;
    this.#paths = paths;
    const scheduler = new StartScheduler(concurrentStarts, quietPeriods);
    this.admission = new Admission({ space, memory, missing: options.missing });
    this.#verifier = new Verifier(onDamage, paths.scratch("hashing"));
    this.#bases = new Bases({
      ...options,
      ...{ space, spare: spareBases, isSound: this.#verifier.isSound },
      references: () => readReferences(paths, ["capsules"], () => this.#warm.parents()),
      onRemove: (folder) => {
        this.#verifier.forget(folder);
        return this.#warm.removeBase(folder);
      },
    });
    this.#templates = new TemplateStore(paths, images, this.#bases, vmm);
    const parts = { ...options, space, bases: this.#bases, templates: this.#templates, verifier: this.#verifier };
    [this.moved, this.fetches] = [new LocalMoves(parts), new LocalFetches(parts)];
    this.shared = new SharedFolders(parts);
    const disk = { space, copies: lineOfCopies() };
    this.#checkpointer = new Checkpointer({ ...parts, ...disk, slots: new FairSlots(savesAtOnce) });
    const launch = { ...options, templates: this.#templates, scheduler };
    this.#warm = new WarmStarts(launch, warm, memory);
    const launcher = new Launcher(launch, this.#warm);
    this.#launcher = launcher;
    const starting = { ...launch, verifier: this.#verifier, launcher };
    [this.#starter, this.#booter] = [new Starter(starting), new Booter(starting)];
    this.#restorer = new Restorer({ ...launch, ...disk, verifier: this.#verifier, launcher });
    this.#guests = new LiveGuests({ ...parts, admission: this.admission, restorer: this.#restorer });
    const onReached = (guest: LiveGuest) => void this.#guests.hold(guest);
    this.#adopter = new Adopter({ ...launch, launcher, restorer: this.#restorer, onReached });
    paths.create();
  }

  get accelerator(): "kvm" | "tcg" {
    return this.#options.vmm.machine(1, 128).accelerator;
  }

  machine() {
    const { vcpus: _vcpus, memory_mb: _memoryMb, ...machine } = encodeMachine(this.#options.vmm.machine(1, 128));
    return machine;
  }

  images() {
    return this.#options.images.builtIn;
  }

  prepare(origin: Origin, shape: Shape): Promise<void> {
    return this.#templates.prepare(origin, shape);
  }

  canGrow(image: string, shape: Shape, turn: Turn): Promise<boolean> {
    return this.#templates.canGrow(image, shape, turn);
  }

  admitStart(owner: string, memoryMb: number): Promise<Admitted> {
    return this.admission.admitNew(owner, memoryMb, this.#warm.reserved);
  }

  async admitRestore(owner: string, id: string, memoryMb: number): Promise<Admitted> {
    const need = await restoreNeed(memoryMb, join(this.#paths.capsule(id), checkpointName, diffName));
    return this.admission.admitSaved(owner, need, this.#warm.reserved);
  }

  diskMb(kind: SavedKind, name: string): number | undefined {
    return diskMbIn(kind === "capsules" ? this.#paths.capsule(name) : this.#paths.template(name));
  }

  diskBytes(id: string): Promise<number> {
    return allocatedInAll([this.#paths.capsule(id), join(this.#paths.capsule(id), checkpointName)]);
  }

  memoryByCapsule(): Promise<Map<string, number>> {
    return privateMemory([...this.#launcher.waking, ...this.#guests.all()]);
  }

  reserve(origin: Origin, shape: Shape): string | undefined {
    return this.#warm.reserve(origin, shape);
  }

  pool() {
    return this.#warm.pool();
  }

  warmProcesses() {
    return this.#warm.processes();
  }

  async start(id: string, origin: Origin, shape: Shape, turn: Turn): Promise<Guest> {
    const warm = this.#warm.claim(id);
    const unparked = warm && (await this.#unpark(warm, turn.signal));
    if (unparked !== undefined) return unparked;
    try {
      return this.#guests.hold(await this.#starter.start(id, origin, shape, turn));
    } catch (error) {
      await this.remove(id);
      throw explainSpace(error, `creating capsule ${id}`);
    }
  }

  async restore(id: string, turn: Turn): Promise<Guest> {
    await this.#guests.endLeft(id); // its VM could not be ended after the pause
    return this.#guests.holdRestored(await this.#restorer.restore(id, turn));
  }

  requireDisk(id: string): Promise<void> {
    return this.#booter.requireDisk(id);
  }

  async boot(id: string, turn: Turn): Promise<Guest> {
    await this.#guests.endLeft(id); // its VM could not be ended when it stopped
    return this.#guests.hold(await this.#booter.boot(id, turn));
  }

  shutDown(guest: Guest, signal: AbortSignal): Promise<void> {
    return shutDown(this.#guests.live(guest), this.#options.stopGraceMs ?? stopGraceMs, signal);
  }

  save(guest: Guest, purpose: "pause" | "capture", turn: SaveTurn): Promise<void> {
    return this.#checkpointer.save(this.#guests.live(guest), purpose, turn);
  }

  unsave(guest: Guest): Promise<void> {
    return this.#checkpointer.unsave(this.#guests.live(guest));
  }

  capture(guest: Guest, storage: string, turn: Turn): Promise<Captured> {
    return this.#checkpointer.capture(this.#guests.live(guest), storage, turn);
  }

  abandon(guest: Guest): void {
    this.#guests.live(guest).abandon();
  }

  release(guest: Guest): Promise<void> {
    return this.#guests.release(guest);
  }

  end(guest: Guest): Promise<void> {
    return this.#guests.end(guest);
  }

  async remove(id: string): Promise<void> {
    const folder = this.#paths.capsule(id);
    this.#warm.claim(id)?.guest.close();
    await this.#guests.discard(id);
    await reapFolder(this.#options.vmm, folder);
    this.#options.step("remove.reaped");
    this.#verifier.forget(join(folder, checkpointName));
    const folders = [folder, this.#paths.scratch(`save-${id}`)];
    await Promise.all(folders.map((path) => rm(path, { recursive: true, force: true })));
    this.space.forgetPause(id);
  }

  retireTemplate(storage: string): Promise<void> {
    return this.#warm.retireTemplate(storage);
  }

  async removeTemplate(storage: string): Promise<void> {
    const folder = this.#paths.template(storage);
    this.#verifier.forget(folder);
    await this.#warm.removeTemplate(storage, folder);
    await rm(folder, { recursive: true, force: true });
  }

  adopt(id: string, saving: number | null, signal: AbortSignal) {
    return this.#adopter.adopt(id, saving, signal);
  }

  async reap(id: string, memory: "kept" | "gone"): Promise<void> {
    await this.#guests.endLeft(id);
    await (memory === "kept" ? this.#restorer.reap(id) : this.#booter.reap(id));
  }

  inventory() {
    const capsules = this.#paths.capsuleIds().filter((id) => !this.#warm.holds(id));
    return { capsules, templates: this.#paths.templateIds() };
  }

  async keepLost(kind: SavedKind, name: string): Promise<void> {
    if (kind === "capsules") await this.reap(name, "kept");
    else await this.#warm.removeTemplate(name, this.#paths.template(name));
    this.#verifier.forget(this.lostFound.checkpointOf(kind, name));
    await this.lostFound.keep(kind, name);
  }

  /** Ends and removes everything that an earlier daemon left, and unused bases and builds. Call before the first start. */
  sweep(): Promise<void> {
    return sweep({ ...this.#options, trimBases: () => this.trimBases() });
  }

  trimBases(): Promise<void> {
    return this.#bases.trim();
  }

  /** Begins to start VMs ahead of time. Call after recovery. */
  readonly openWarmPools = () => this.#warm.open();

  /** Queues the hashes of checkpoints that an earlier daemon did not come to make. */
  hashMissing(): void {
    this.#verifier.hashMissing(this.inventory().capsules.map((id) => join(this.#paths.capsule(id), checkpointName)));
  }

  async close(): Promise<void> {
    await this.#warm.close();
    await this.#verifier.stop();
    this.#guests.close();
  }

  /** Undefined when it fails: then nothing is left of the warm capsule. */
  async #unpark(warm: WarmCapsule, signal?: AbortSignal): Promise<LiveGuest | undefined> {
    try {
      return this.#guests.hold(await this.#starter.unpark(warm, signal));
    } catch (error) {
      this.#options.warm.pool.onFailure(error);
      await this.remove(warm.id);
      return undefined;
    }
  }
}
