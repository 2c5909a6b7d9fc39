/**
 * One machine's capsules, as the state machine sees them. The host knows folders, VMs and agents; it knows no team and
 * no database, so that one day it can stand on another machine.
 *
 *   start ───────┐                        ┌── save ──► (VM stopped, checkpoint durable) ── end
 *                ├─► guest held ─ release ─► guest runs        └─ unsave ─► guest runs on
 *   restore ─────┘    (clock, identity and randomness are right, no command of the user runs yet)
 *
 * The two-step start is what makes a failed resume harmless: until `release` no process of the user has run, the
 * checkpoint is still there, and the caller has committed its record.
 */
import type { Agent } from "../agent/agent.ts";

export interface Shape {
  vcpus: number;
  memoryMb: number;
}

/** What a capsule starts from: a built-in image, or the files of a snapshot template. */
export type Origin = { kind: "base"; name: string } | { kind: "template"; storage: string };

/** Why a guest is no more: powered off by itself, or lost. `reason` is a sentence for people. */
export interface GuestEnd {
  kind: "powered_off" | "lost";
  reason: string;
}

/** The live VM of one capsule. */
export interface Guest {
  readonly id: string;
  /** The way in. Throws CapsuleError("agent_error") while the connection is being remade. */
  readonly agent: Agent;
  /** Resolves once when the guest ends by itself; never when the host ended it. Never rejects. */
  readonly ended: Promise<GuestEnd>;
}

export interface Inventory {
  /** Ids of capsule folders. */
  capsules: string[];
  /** Storage ids of template folders. */
  templates: string[];
}

export interface Captured {
  sizeBytes: number;
}

export interface Host {
  readonly accelerator: "kvm" | "tcg";
  /** Bytes that an image's checkpoint takes on disk, per built-in image. */
  images(): { name: string; sizeBytes: number; createdAt: number }[];
  /** Makes what a capsule of this shape starts from, if it isn't there yet. */
  prepare(origin: Origin, shape: Shape): Promise<void>;

  /**
   * Throws CapsuleError("no_capacity") when the machine has no memory or disk left for another VM of this size, nor gets any
   * from VMs that are being ended, for which it waits some seconds.
   */
  admit(memoryMb: number): Promise<void>;
  /**
   * The id of a capsule of this kind that was made ahead of time, if there is one: `start` makes use of it, `remove` gives
   * it up. Whoever asks counts as wanting such a capsule.
   */
  reserve(origin: Origin, shape: Shape): string | undefined;
  /** Capsules made ahead of time: how many there are and how many there should be. */
  pool(): { ready: number; target: number };
  /**
   * A new capsule's VM, held. On failure nothing is left behind. Throws CapsuleError("agent_error" | "no_space"), and the
   * reason of `unwanted` soon after it fires: the VM under way is ended, and nobody waits for it.
   */
  start(id: string, origin: Origin, shape: Shape, signal?: AbortSignal): Promise<Guest>;
  /** A saved capsule's VM, held; the checkpoint stays. On failure the capsule is as it was. `unwanted` as for `start`. */
  restore(id: string, signal?: AbortSignal): Promise<Guest>;
  /** Lets the user's processes run and forgets the checkpoint. Call when the record is committed. */
  release(guest: Guest): Promise<void>;

  /**
   * Stops the guest and writes its checkpoint durably. On failure the guest runs on. To be captured, its processes must be
   * frozen: clones of it wake before they have randomness of their own. Throws "no_space" | "agent_error".
   */
  save(guest: Guest, purpose: "pause" | "capture"): Promise<void>;
  /** Takes a save back: the guest runs on. */
  unsave(guest: Guest): Promise<void>;
  /** Of a saved guest: makes a template's files, durable when it resolves. The guest stays saved. */
  capture(guest: Guest, storage: string): Promise<Captured>;
  /** The guest will be ended, whatever comes of what is done to it now: that stops waiting for its agent. */
  abandon(guest: Guest): void;
  /** Ends the VM; the capsule's folder stays. */
  end(guest: Guest): Promise<void>;

  /** Bytes that the capsule's files take on disk. */
  diskBytes(id: string): Promise<number>;
  /** Ends whatever VM the capsule has and removes its folder. Idempotent. */
  remove(id: string): Promise<void>;
  /** No new capsule starts from it: ends what was made ahead of time from it. Its files stay for those that stand on them. */
  retireTemplate(storage: string): Promise<void>;
  /** Removes a template's files. Idempotent. */
  removeTemplate(storage: string): Promise<void>;

  /** What an earlier daemon left of a capsule that should be running; a stopped VM is set running again. */
  adopt(id: string): Promise<Adopted>;
  /** Ends whatever VM was left of a capsule that should have none. */
  reap(id: string): Promise<void>;
  inventory(): Inventory;
  /** Removes the bases beyond the spare ones that no capsule needs. */
  trimBases(): Promise<void>;
  /** Lets go of all VMs without ending them (the daemon stops). */
  close(): Promise<void>;
}

/** `checkpoint`: no VM, but a complete checkpoint. A running guest may be held: `release` it. `reason`: why its VM had to go. */
export type Adopted =
  | { kind: "running"; guest: Guest }
  | { kind: "powered_off" }
  | { kind: "checkpoint"; reason?: string }
  | { kind: "nothing"; reason?: string };
