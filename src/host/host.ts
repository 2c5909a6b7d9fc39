/**
 * The interface between the state machine of capsules and one machine's folders, VMs and agents. The host knows no team and
 * no database.
 *
 *   start ───────┐                        ┌── save ──► (VM stopped, checkpoint durable) ── end
 *                ├─► guest held ─ release ─► guest runs        └─ unsave ─► guest runs
 *   restore ─────┘    (clock, identity and randomness are right, no command of the user runs yet)
 *
 * The two-step start makes a failed resume harmless: until `release`, which follows the commit of the record, no process of
 * the user has run and the checkpoint is still there.
 */
import type { Agent } from "../agent/agent.ts";

export interface Shape {
  vcpus: number;
  memoryMb: number;
  /** Size of the disk, at least the parent's. Default: the parent's. */
  diskMb?: number | undefined;
}

/** The parent of a new capsule: a built-in image, or the files of a template. */
export type Origin = { kind: "base"; name: string } | { kind: "template"; storage: string };

/** A built-in image as a template. */
export interface BuiltIn {
  name: string;
  /** On disk. */
  sizeBytes: number;
  /** Size of the guest's disk. */
  diskMb: number;
  /** Milliseconds since the epoch. */
  createdAt: number;
}

/** How a guest ended by itself. `reason` is shown to clients. */
export interface GuestEnd {
  kind: "powered_off" | "reset" | "lost";
  reason: string;
}

/** The live VM of one capsule. */
export interface Guest {
  readonly id: string;
  /** The connection to its agent. Throws CapsuleError("agent_error") while it is being made anew. */
  readonly agent: Agent;
  /**
   * Path of the socket through which its network is reached, for `net.connect` in this process; null: its machine was made without
   * one. It stays valid until the guest has ended or is given up.
   */
  readonly networkSocket: string | null;
  /** The guest's sentences about optional parts of its last wake that failed, for the log. */
  readonly wakeProblems: readonly string[];
  /** Resolves once when the guest ends by itself; never when the host ended it. Never rejects. */
  readonly ended: Promise<GuestEnd>;
  /** Limits the rate of its writes to its disk; 0: not at all. */
  limitWrites(bytesPerSec: number): Promise<void>;
  /** CPU time of its VM since that began, in milliseconds; undefined: it has ended. */
  cpuMs(): number | undefined;
}

/** How many VMs wait, started ahead of time, and how many should. */
export interface PoolState {
  ready: number;
  target: number;
}

/** The owner of work that is done for no team. */
export const serviceOwner = "";

/** A piece of work's place in line. */
export interface Turn {
  /** Whose turn it takes: free slots go to the owners in turn. The host does not interpret the string. */
  owner: string;
  /** Ends the waiting; the signal's reason is thrown. */
  signal?: AbortSignal;
  /** The memory that is set aside for this start, which takes it when the turn has come. */
  admitted?: Admitted | undefined;
}

/** Memory that is set aside for a start, until it is disposed of. */
export interface Admitted extends Disposable {
  /**
   * The start's turn has come; the host calls it. Throws CapsuleError("no_capacity") when other owners' starts have taken the
   * memory meanwhile.
   */
  begin(): void;
  /** The VM is loaded; the host calls it. The memory that it has taken counts as promised no more. */
  loaded(): void;
}

/** Whose part of the disk's reserve a pause may use. */
export interface ReserveShare {
  owner: string;
  /** Over its disk quota: it may use its own part only, also while more is free. */
  isOverQuota: boolean;
  /** The owners with running capsules, among which the reserve is divided. */
  sharers: Iterable<string>;
}

export interface SaveTurn extends Turn {
  /** The revision of the row with the intent; the checkpoint belongs to it. */
  revision: number;
  /** Asked when the turn has come. */
  share: () => ReserveShare;
}

/** Folders of the data folder that hold what users saved. */
export type SavedKind = "capsules" | "templates";

export interface Inventory {
  /** Ids of capsule folders. */
  capsules: string[];
  /** Storage ids of template folders. */
  templates: string[];
}

export interface Captured {
  sizeBytes: number;
  /** Its agent can make its file system larger. */
  canGrow: boolean;
}

export interface Host {
  readonly accelerator: "kvm" | "tcg";
  /** The built-in images, the default one first. */
  images(): readonly BuiltIn[];
  /** Makes the base for this shape if there is none. */
  prepare(origin: Origin, shape: Shape): Promise<void>;
  /** Whether disks of a built-in image can be made larger; when that is not known, this waits for the base of the shape. */
  canGrow(image: string, shape: Shape, turn: Turn): Promise<boolean>;

  /**
   * Sets memory aside for the start of a new capsule of this owner. Throws CapsuleError("no_capacity") when the machine has
   * too little memory or disk left; waits up to 5 s for VMs that are being ended. Throws "agent_error" when QEMU, the jail or
   * the image lacks a file.
   */
  admitStart(owner: string, memoryMb: number): Promise<Admitted>;
  /** As `admitStart`, for a saved capsule: what its checkpoint has is needed at once. */
  admitRestore(owner: string, id: string, memoryMb: number): Promise<Admitted>;
  readonly memory: {
    /** Memory available beyond the reserve; negative when the host is short of it. */
    spareBytes(): number;
    /** Whether processes wait for memory. */
    isStalling(): boolean;
  };
  readonly space: {
    /** Space on disk that only pauses may use. */
    readonly reserveBytes: number;
    /** Bytes that can be written to the disk now, without those that are promised to others than pauses. */
    readonly freeBytes: number;
    /** Removes the folder that has been in lost+found longest; false when there is none. */
    reclaim(): Promise<boolean>;
  };
  /** Folders that the database does not know, kept for a week of the server's time or until the disk is short. */
  readonly lostFound: {
    /** The number of folders. */
    readonly size: number;
    /** Whether a folder that is not there is complete: a paused or stopped capsule, or a template. */
    isSaved(kind: SavedKind, name: string): boolean;
    /** Removes the folders that have been there for a week. */
    removeExpired(): Promise<void>;
  };
  /** Memory that the end of each VM would free, by capsule. */
  memoryByCapsule(): Promise<Map<string, number>>;
  /** The id of a warm capsule, if there is one, for `start` or `remove`. Counts as demand in both cases. */
  reserve(origin: Origin, shape: Shape): string | undefined;
  /** The machine of new VMs, whatever their shape, as checkpoints name it. Another one once another QEMU is installed. */
  machine(): Readonly<Record<string, unknown>>;
  /** Whether VMs are started ahead of time; those that were are ended within a second. Default: they are. */
  keepReady(isKept: boolean): void;
  /** The size and target size of the warm pool. */
  pool(): PoolState;
  /**
   * A new capsule's VM, held. On failure nothing is left of it. Throws CapsuleError("agent_error" | "no_space"). When the turn's
   * signal fires, also after the waiting, the VM is ended and the signal's reason thrown.
   */
  start(id: string, origin: Origin, shape: Shape, turn: Turn): Promise<Guest>;
  /** A saved capsule's VM, held; the checkpoint stays. On failure the capsule is as before. `turn` as for `start`. */
  restore(id: string, turn: Turn): Promise<Guest>;
  /**
   * Throws CapsuleError: "invalid_state" for a capsule without a disk of its own, "conflict" when what it stands on is gone, or a
   * VM of its kind cannot be started here.
   */
  requireDisk(id: string): Promise<void>;
  /** A VM that boots from the capsule's disk, held. `turn` as for `start`. On failure the folder is there as before. */
  boot(id: string, turn: Turn): Promise<Guest>;
  /**
   * Ends the guest's programs, writes its disk's cache out and powers it off, within a bounded time: a guest that does not answer
   * loses what it had not written. The VM is left to `end`. When the signal fires, nothing is waited for any longer. Never rejects.
   */
  shutDown(guest: Guest, signal: AbortSignal): Promise<void>;
  /** Lets the user's processes run and removes the checkpoint. Call when the record is committed. */
  release(guest: Guest): Promise<void>;

  /**
   * Stops the guest when it is the owner's turn and writes its checkpoint durably. Until then the guest runs, with its processes
   * frozen when its owner's turn is near. On failure the guest runs on. A capture requires its processes to be frozen, because
   * its clones run before they have new randomness. Throws "no_space" | "agent_error".
   */
  save(guest: Guest, purpose: "pause" | "capture", turn: SaveTurn): Promise<void>;
  /** Takes a save back: the guest runs on. */
  unsave(guest: Guest): Promise<void>;
  /**
   * Makes a template's files from a saved guest, which stays saved, when it is the owner's turn. They are durable when it
   * resolves.
   */
  capture(guest: Guest, storage: string, turn: Turn): Promise<Captured>;
  /** The guest will be ended: calls that wait for its agent reject. */
  abandon(guest: Guest): void;
  /** Ends the VM; the capsule's folder stays. */
  end(guest: Guest): Promise<void>;

  /** Size of the disk in a folder; undefined: there is none. */
  diskMb(kind: SavedKind, name: string): number | undefined;
  /** Whether the machine of a paused capsule has a network port; false also where that cannot be read. */
  hasNetwork(id: string): Promise<boolean>;
  /** Bytes that the capsule's files take on disk. */
  diskBytes(id: string): Promise<number>;
  /** Ends the capsule's VM, if any, and removes its folder. Idempotent. */
  remove(id: string): Promise<void>;
  /** Ends the warm capsules of a template from which no new capsule starts. Its files stay for existing capsules. */
  retireTemplate(storage: string): Promise<void>;
  /** Removes a template's files. Idempotent. */
  removeTemplate(storage: string): Promise<void>;

  /**
   * Connects to the VM that an earlier daemon left of a running capsule; a stopped VM is resumed. `saving`: the row's revision
   * when it has an intent to save, else null. A checkpoint of that revision holds what the VM was. Waits for no agent: `alive` is
   * the answer while one is waited for. When `signal` fires this is given up, with the signal's reason, and the VM runs on.
   */
  adopt(id: string, saving: number | null, signal: AbortSignal): Promise<Adopted | AliveVm>;
  /**
   * Ends the VM, if any, of a capsule that should have none. `memory`: of a paused capsule it is kept, and what a resume has done to
   * the disk is undone.
   */
  reap(id: string, memory: "kept" | "gone"): Promise<void>;
  inventory(): Inventory;
  /** Moves the folder of a capsule, whose VM is ended, or of a template to lost+found. */
  keepLost(kind: SavedKind, name: string): Promise<void>;
  /** Removes the bases beyond the spare ones that no capsule needs. */
  trimBases(): Promise<void>;
  /** Closes all connections without ending the VMs (the daemon stops). */
  close(): Promise<void>;
}

/**
 * `checkpoint`: no VM, but a complete checkpoint, of the row with `revision`; null: saved by an earlier release, at `savedAt` in
 * milliseconds since the epoch. A running guest may be held: `release` it. `reason`: why its VM was ended.
 */
export type Adopted =
  | { kind: "running"; guest: Guest }
  | { kind: "powered_off" | "reset" }
  | { kind: "checkpoint"; revision: number | null; savedAt: number; reason?: string | undefined }
  | { kind: "nothing"; reason?: string | undefined };

/** The VM is there, and its agent is waited for until a deadline; without an answer the VM is ended. */
export interface AliveVm {
  kind: "alive";
  settled: Promise<Adopted>;
}
