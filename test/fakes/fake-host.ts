/**
 * A Host without VMs, for tests of the layers above it. It tracks guests, checkpoints and folders as the contract of Host
 * says, delays every call by `moment`, and fails where a test tells it to.
 */
import type { Agent } from "../../src/agent/agent.ts";
import type { FairSlots } from "../../src/host/capacity/fair-slots.ts";
import type {
  Admitted,
  Adopted,
  AliveVm,
  Captured,
  Guest,
  GuestEnd,
  Host,
  Inventory,
  Origin,
  SavedKind,
  SaveTurn,
  Shape,
  Turn,
} from "../../src/host/host.ts";
import { CapsuleError } from "../../src/wire/errors.ts";
import { FakeAgent } from "./agent.ts";

export type HostVerb =
  | "start"
  | "restore"
  | "boot"
  | "shutDown"
  | "release"
  | "save"
  | "unsave"
  | "capture"
  | "setAside"
  | "end"
  | "remove";

export class FakeGuest implements Guest {
  readonly id: string;
  readonly agent = new FakeAgent() as FakeAgent & Agent;
  readonly ended: Promise<GuestEnd>;
  readonly endWith: (end: GuestEnd) => void;
  networkSocket: string | null = null;
  wakeProblems: readonly string[] = [];
  isHeld = true;
  /** Each limit of its writes that was set. */
  readonly writeLimits: number[] = [];
  /** Awaited before a limit is set. */
  limiting: () => Promise<void> = () => Promise.resolve();
  isStopped = false;
  readonly abandoned = Promise.withResolvers<void>();

  /** CPU time of its VM; a test moves it. */
  spentMs: number | undefined = 0;

  cpuMs(): number | undefined {
    return this.spentMs;
  }

  constructor(id: string) {
    this.id = id;
    const { promise, resolve } = Promise.withResolvers<GuestEnd>();
    this.ended = promise;
    this.endWith = resolve;
  }

  async limitWrites(bytesPerSec: number): Promise<void> {
    await this.limiting();
    this.writeLimits.push(bytesPerSec);
  }
}

export interface FakeCheckpoint {
  revision: number;
  /** Its guest has run since, so the disk is newer than the memory. */
  isStale: boolean;
  /** The writes in its guest, where a test numbers them. */
  writes?: readonly number[];
}

export class FakeHost implements Host {
  readonly accelerator = "tcg";
  readonly guests = new Map<string, FakeGuest>();
  readonly folders = new Set<string>();
  keepsReady = true;
  readonly checkpoints = new Map<string, FakeCheckpoint>();
  readonly templates = new Map<string, Shape>();
  /** Checkpoints of capsules that were released, by id, epoch and revision. */
  readonly aside = new Map<string, FakeCheckpoint>();
  /** Storages that were retired. */
  readonly retired: string[] = [];
  /** The owner of each start and restore, in order. */
  readonly owners: string[] = [];
  /** Whose part of the disk's reserve each save could use, in order. */
  readonly shares: { owner: string; isOverQuota: boolean; sharers: string[] }[] = [];
  /** Each guest has them from its wake on. */
  wakeProblems: readonly string[] = [];
  /** Called before each verb; an error that it throws is the verb's failure. */
  before: (verb: HostVerb, id: string) => void = () => {};
  /** Awaited in each verb. */
  moment: () => Promise<void> = () => Promise.resolve();
  /** Released guests do not answer. */
  isMute = false;
  /** Saves wait for a slot of it. */
  saveLine: FairSlots | undefined;
  /** Starts, restores and the agents of adopted guests do not answer before `stopHanging`. */
  isHanging = false;
  readonly #hanging = new Set<() => void>();
  /** Capsules whose start or restore does not answer. */
  readonly #waking = new Set<string>();
  /** VMs that were admitted and have not started yet. */
  admitted = 0;
  /** Bytes on disk of each capsule. */
  capsuleBytes = 1_000;
  readonly memories = new Map<string, number>();
  /** Ids of warm capsules. */
  readonly ahead: string[] = [];

  images() {
    return [{ name: "minimal", sizeBytes: 1_000, diskMb: 4_096, createdAt: 0 }];
  }

  async prepare(): Promise<void> {}

  /** The images' agents can make file systems larger. */
  imagesGrow = true;

  async canGrow(): Promise<boolean> {
    return this.imagesGrow;
  }

  async admitStart(): Promise<Admitted> {
    return this.#admit();
  }

  async admitRestore(): Promise<Admitted> {
    return this.#admit();
  }

  /** The size of each capsule's disk, as it was asked for. */
  readonly disks = new Map<string, number | undefined>();

  diskMb(kind: SavedKind, name: string): number | undefined {
    return kind === "capsules" ? this.disks.get(name) : undefined;
  }

  /** Paused capsules whose machine has a network port. */
  readonly networked = new Set<string>();
  /** Each guest has it from its start on. */
  networkSocket: string | null = null;

  async hasNetwork(id: string): Promise<boolean> {
    return this.networked.has(id);
  }

  async diskBytes(): Promise<number> {
    return this.capsuleBytes;
  }

  reserve(): string | undefined {
    return this.ahead.shift();
  }

  readonly space = { reserveBytes: 0, freeBytes: 2 ** 40, reclaim: async () => false };
  /** Folders in lost+found. */
  readonly kept: string[] = [];
  readonly lostFound = {
    size: 0,
    isSaved: (kind: SavedKind, name: string) => kind === "templates" || this.checkpoints.has(name),
    removeExpired: async () => {},
  };

  async keepLost(kind: SavedKind, name: string): Promise<void> {
    await this.moment();
    this.guests.delete(name);
    this.folders.delete(name);
    this.templates.delete(name);
    this.kept.push(`${kind}/${name}`);
  }

  readonly memory = { spareBytes: () => 2 ** 40, isStalling: () => false };

  /** As set in `memories`; 0 by default. */
  async memoryByCapsule(): Promise<Map<string, number>> {
    return new Map([...this.guests.keys(), ...this.#waking].map((id) => [id, this.memories.get(id) ?? 0]));
  }

  /** As a test describes it. */
  described: Readonly<Record<string, unknown>> = {};

  machine() {
    return this.described;
  }

  keepReady(isKept: boolean): void {
    this.keepsReady = isKept;
  }

  pool() {
    return { ready: 0, target: 0 };
  }

  async start(id: string, origin: Origin, shape: Shape, turn: Turn): Promise<Guest> {
    await this.moment();
    if (this.folders.has(id)) throw new Error(`folder ${id} is there already`);
    if (origin.kind === "template" && !this.templates.has(origin.storage)) throw new Error("no such template");
    if (shape.vcpus < 1) throw new Error("no shape");
    this.owners.push(turn.owner);
    this.before("start", id);
    if (this.isHanging) await this.#wake(id, turn.signal);
    this.folders.add(id);
    this.disks.set(id, shape.diskMb);
    return this.#hold(id);
  }

  async restore(id: string, turn: Turn): Promise<Guest> {
    await this.moment();
    const checkpoint = this.checkpoints.get(id);
    if (checkpoint === undefined) throw new Error(`${id} has no checkpoint`);
    if (checkpoint.isStale) throw new Error(`the memory of ${id} is older than its disk`);
    this.owners.push(turn.owner);
    this.before("restore", id);
    if (this.isHanging) await this.#wake(id, turn.signal);
    return this.#hold(id);
  }

  async requireDisk(id: string): Promise<void> {
    await this.moment();
    if (!this.folders.has(id)) throw new CapsuleError("invalid_state", `cannot start capsule ${id}: it has no disk`);
  }

  async boot(id: string, turn: Turn): Promise<Guest> {
    await this.moment();
    if (!this.folders.has(id)) throw new Error(`${id} has no disk`);
    const checkpoint = this.checkpoints.get(id);
    if (checkpoint !== undefined) checkpoint.isStale = true;
    this.owners.push(turn.owner);
    this.before("boot", id);
    if (this.isHanging) await this.#wake(id, turn.signal);
    return this.#hold(id);
  }

  /** The guest does what `shuttingDown` says. */
  shuttingDown: (guest: FakeGuest, signal: AbortSignal) => Promise<void> = () => Promise.resolve();

  async shutDown(guest: Guest, signal: AbortSignal): Promise<void> {
    await this.moment();
    this.before("shutDown", guest.id);
    await this.shuttingDown(this.#mine(guest), signal);
  }

  async release(guest: Guest): Promise<void> {
    await this.moment();
    this.before("release", guest.id);
    if (this.isMute) {
      await this.#mine(guest).abandoned.promise;
      throw new CapsuleError("agent_error", `guest ${guest.id} was abandoned`);
    }
    this.#mine(guest).isHeld = false;
    const from = this.checkpoints.get(guest.id);
    if (from === undefined) return;
    from.isStale = true;
    await this.moment();
    if (this.checkpoints.get(guest.id) === from) this.checkpoints.delete(guest.id);
  }

  async save(guest: Guest, _purpose: "pause" | "capture", turn: SaveTurn): Promise<void> {
    const mine = this.#mine(guest);
    if (this.saveLine !== undefined) await this.saveLine.run(turn.owner, async () => {}, turn.signal);
    if (mine.isHeld) throw new Error(`guest ${guest.id} is saved before it was released`);
    const share = turn.share();
    this.shares.push({ ...share, sharers: [...share.sharers] });
    mine.isStopped = true;
    await this.moment();
    try {
      this.before("save", guest.id);
    } catch (error) {
      mine.isStopped = false;
      throw error;
    }
    this.checkpoints.set(guest.id, { revision: turn.revision, isStale: false });
  }

  async unsave(guest: Guest): Promise<void> {
    await this.moment();
    this.before("unsave", guest.id);
    this.checkpoints.delete(guest.id);
    this.#mine(guest).isStopped = false;
  }

  /** The agents of captured guests can make their file systems larger. */
  capturesGrow = true;

  async capture(guest: Guest, storage: string): Promise<Captured> {
    await this.moment();
    if (!this.#mine(guest).isStopped) throw new Error(`guest ${guest.id} is captured before it was saved`);
    this.before("capture", guest.id);
    this.templates.set(storage, { vcpus: 1, memoryMb: 512 });
    return { sizeBytes: 5_000, canGrow: this.capturesGrow };
  }

  abandon(guest: Guest): void {
    this.#mine(guest).abandoned.resolve();
  }

  async end(guest: Guest): Promise<void> {
    await this.moment();
    this.before("end", guest.id);
    if (this.guests.get(guest.id) === guest) this.guests.delete(guest.id);
  }

  async remove(id: string): Promise<void> {
    await this.moment();
    this.before("remove", id);
    this.guests.delete(id);
    this.checkpoints.delete(id);
    this.folders.delete(id);
  }

  readonly moved = {
    setAside: async (id: string, { epoch, revision }: { epoch: number; revision: number }): Promise<void> => {
      await this.moment();
      this.before("setAside", id);
      if (this.guests.has(id)) throw new Error(`${id} may still have a VM`);
      const checkpoint = this.checkpoints.get(id);
      if (checkpoint !== undefined) this.aside.set(`${id}.${epoch}.${revision}`, checkpoint);
      this.checkpoints.delete(id);
      this.folders.delete(id);
    },
  };

  async retireTemplate(storage: string): Promise<void> {
    await this.moment();
    this.retired.push(storage);
  }

  async removeTemplate(storage: string): Promise<void> {
    await this.moment();
    this.templates.delete(storage);
  }

  async adopt(id: string, _saving: number | null, signal: AbortSignal): Promise<Adopted | AliveVm> {
    const guest = this.guests.get(id);
    if (guest !== undefined) {
      guest.isStopped = false;
      if (!this.isHanging) return { kind: "running", guest };
      return { kind: "alive", settled: this.#hang(signal).then(() => this.#answerOf(id)) };
    }
    const checkpoint = this.checkpoints.get(id);
    return checkpoint === undefined ? { kind: "nothing" } : { kind: "checkpoint", savedAt: 0, ...checkpoint };
  }

  async reap(id: string, memory: "kept" | "gone"): Promise<void> {
    if (memory === "kept" && this.checkpoints.get(id)?.isStale) throw new Error(`the memory of ${id} is not whole`);
    this.guests.delete(id);
  }

  inventory(): Inventory {
    return { capsules: [...this.folders], templates: [...this.templates.keys()] };
  }

  async trimBases(): Promise<void> {}

  async close(): Promise<void> {}

  #admit(): Admitted {
    this.admitted++;
    return { begin: () => {}, loaded: () => {}, [Symbol.dispose]: () => void this.admitted-- };
  }

  async #answerOf(id: string): Promise<Adopted> {
    const guest = this.guests.get(id);
    return guest === undefined ? { kind: "nothing", reason: "no answer" } : { kind: "running", guest };
  }

  stopHanging(): void {
    this.isHanging = false;
    for (const goOn of this.#hanging) goOn();
    this.#hanging.clear();
  }

  async #wake(id: string, signal: AbortSignal | undefined): Promise<void> {
    this.#waking.add(id);
    await this.#hang(signal).finally(() => this.#waking.delete(id));
  }

  async #hang(signal: AbortSignal | undefined): Promise<void> {
    signal?.throwIfAborted();
    await new Promise<void>((resolve, reject) => {
      this.#hanging.add(resolve);
      signal?.addEventListener("abort", () => reject(signal.reason));
    });
  }

  #hold(id: string): FakeGuest {
    if (this.guests.has(id)) throw new Error(`two VMs for ${id}`);
    const guest = new FakeGuest(id);
    guest.wakeProblems = this.wakeProblems;
    guest.networkSocket = this.networkSocket;
    this.guests.set(id, guest);
    return guest;
  }

  #mine(guest: Guest): FakeGuest {
    const mine = this.guests.get(guest.id);
    if (mine !== guest) throw new CapsuleError("agent_error", `guest ${guest.id} is no more`);
    return mine;
  }
}
