/**
 * The capsules of all teams: what clients may ask of them. Looks, permits, and hands each change to transitions.ts.
 */
import type { Agent } from "../agent/agent.ts";
import type { TemplateRows } from "../db/template-rows.ts";
import type { Guest, Host } from "../host/host.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Action } from "../wire/requirements.ts";
import type { Activity } from "./activity.ts";
import type { Clock } from "./clock.ts";
import type { Idle } from "./idle.ts";
import { newCapsuleId } from "./ids.ts";
import { allow, isFinal, type Status } from "./lifecycle.ts";
import type { CapsuleLocks } from "./locks.ts";
import type { Quotas, Usage } from "./quotas.ts";
import type { Capsule, CapsuleStore } from "./store.ts";
import { originOf, type RunEnd, type Transitions } from "./transitions.ts";

export interface CreateRequest {
  template: string;
  vcpus: number;
  memoryMb: number;
  timeoutSec: number;
}

/** A capsule as its team sees it; times are epoch milliseconds. Never changes: of what has changed there is another. */
export interface CapsuleView {
  readonly id: string;
  readonly status: Status;
  readonly template: string;
  readonly vcpus: number;
  readonly memoryMb: number;
  readonly timeoutSec: number;
  readonly createdAt: number;
  readonly lastUpdated: number;
  readonly startedAt: number | null;
  readonly lastActiveAt: number | null;
  readonly errorReason: string | null;
}

/** Records a captured template; must be durable when it returns. */
export type CaptureCommit = (capsule: CapsuleView, sizeBytes: number) => void;

export interface CapsulesOptions {
  store: CapsuleStore;
  templates: TemplateRows;
  host: Host;
  locks: CapsuleLocks;
  transitions: Transitions;
  activity: Activity;
  idle: Idle;
  clock: Clock;
  quotas: Quotas;
}

export class Capsules {
  readonly #options: CapsulesOptions;
  /** By their rows, which stay the same objects for as long as nobody writes them. */
  readonly #views = new WeakMap<Capsule, CapsuleView>();
  #isClosing = false;

  constructor(options: CapsulesOptions) {
    this.#options = options;
  }

  /**
   * Makes the record and begins the boot; `running` follows. Throws CapsuleError: "not_found" for an unknown template,
   * "quota_exceeded", "no_capacity".
   */
  async create(teamId: string, request: CreateRequest): Promise<CapsuleView> {
    const { store, transitions, clock, host, quotas } = this.#options;
    if (this.#isClosing) throw new CapsuleError("no_capacity", "cannot create a capsule: the server is stopping");
    await host.admit(this.#resolve(teamId, request).memoryMb);
    const { storage, vcpus, memoryMb } = this.#resolve(teamId, request); // again: it may be gone by now
    quotas.requireCreate(teamId, { vcpus, memoryMb });
    const now = clock.now();
    const origin = originOf({ storage, template: request.template });
    const reserved = host.reserve(origin, { vcpus, memoryMb });
    const row: Capsule = {
      id: reserved ?? newCapsuleId(),
      teamId,
      status: "starting",
      generation: 1,
      intent: "create",
      template: request.template,
      storage,
      blockedBy: null,
      vcpus,
      memoryMb,
      timeoutSec: request.timeoutSec,
      createdAt: now,
      lastUpdated: now,
      startedAt: null,
      lastActiveAt: null,
      errorReason: null,
    };
    try {
      if (!store.insert(row)) throw new Error(`the random id ${row.id} was taken`);
    } catch (error) {
      await host.remove(row.id);
      throw error;
    }
    void transitions.boot(row, reserved !== undefined);
    return this.#view(row);
  }

  /** Newest first. */
  list(teamId: string): CapsuleView[] {
    return this.#options.store.ofTeam(teamId).map((row) => this.#view(row));
  }

  /** Throws CapsuleError("not_found"). */
  get(teamId: string, id: string): CapsuleView {
    return this.#view(this.#options.store.require(teamId, id));
  }

  /** Resolves when the capsule has `status`, can no longer reach it, or `timeoutMs` is over; with its view then. */
  async wait(teamId: string, id: string, status: Status, timeoutMs: number, signal: AbortSignal): Promise<CapsuleView> {
    const { store } = this.#options;
    const isOver = () => {
      const row = store.require(teamId, id);
      return row.status === status || isFinal(row.status);
    };
    if (isOver()) return this.get(teamId, id);
    await new Promise<void>((resolve, reject) => {
      const done = (error?: unknown) => {
        clearTimeout(timer);
        off();
        signal.removeEventListener("abort", onAbort);
        if (error === undefined) resolve();
        else reject(error);
      };
      const onAbort = () => done();
      const timer = setTimeout(done, timeoutMs);
      const off = store.onChange(id, () => {
        try {
          if (isOver()) done();
        } catch (error) {
          done(error);
        }
      });
      signal.addEventListener("abort", onAbort);
    });
    return this.get(teamId, id);
  }

  /** The gate: throws "not_found", then "invalid_state". */
  permit(teamId: string, id: string, action: Action): Capsule {
    const row = this.#options.store.require(teamId, id);
    allow(action, id, row.status, row.intent);
    return row;
  }

  /** Through the gate to the agent inside. Throws also "agent_error". */
  async enter(teamId: string, id: string, action: Action): Promise<Agent> {
    this.permit(teamId, id, action);
    const guest: Guest | undefined = this.#options.transitions.guest(id);
    if (guest === undefined) throw new CapsuleError("agent_error", `capsule ${id} cannot be reached`);
    return guest.agent;
  }

  /** A command began in this capsule: the idle timer stands still until the returned function is called. */
  beginExec(id: string): () => void {
    return this.#options.activity.began(id);
  }

  /** Calls `listener` once when the capsule's guest is paused, destroyed or ends; the returned function takes it back. */
  onEnd(id: string, listener: (parting: RunEnd) => void): () => void {
    return this.#options.transitions.onRunEnd(id, listener);
  }

  /** Calls `listener` at each change of any capsule that its team can see, without a view when it is gone. */
  onChange(listener: (teamId: string, id: string, view: CapsuleView | undefined) => void): () => void {
    return this.#options.store.subscribe((teamId, id, row) => {
      listener(teamId, id, row === undefined ? undefined : this.#view(row));
    });
  }

  ping(teamId: string, id: string): void {
    this.permit(teamId, id, "ping");
    this.#options.activity.note(id);
  }

  /** Resolves when everything is durable. Throws "agent_error" or "no_space", and then the capsule is still running. */
  async pause(teamId: string, id: string): Promise<CapsuleView> {
    const row = this.permit(teamId, id, "pause");
    return this.#view(await this.#options.transitions.pause(this.#options.store.setIntentUnsynced(row, "pause")));
  }

  /** Resolves when the agent is ready. Throws "agent_error" or "conflict", "quota_exceeded" or "no_capacity"; it is still paused then. */
  async resume(teamId: string, id: string): Promise<CapsuleView> {
    const { host, quotas, transitions, store } = this.#options;
    await host.admit(this.#requireResumable(teamId, id).memoryMb);
    const row = this.#requireResumable(teamId, id); // again: much may have happened meanwhile
    quotas.requireResume(teamId, row);
    return this.#view(await transitions.resume(store.setIntentUnsynced(row, "resume")));
  }

  /**
   * Turns a running capsule into the files of a template; `commit` makes the template's record and runs in the same
   * transaction that ends the capsule's. On failure the capsule is still running.
   */
  async capture(teamId: string, id: string, storage: string, commit: CaptureCommit): Promise<void> {
    const row = this.#options.store.setIntent(this.permit(teamId, id, "snapshot"), "capture");
    await this.#options.transitions.capture(row, storage, (sizeBytes) => {
      commit(row, sizeBytes);
      this.#options.store.publishRemoved(row);
    });
  }

  /** Waits for its turn and wins. Resolves when nothing is left. */
  async destroy(teamId: string, id: string): Promise<void> {
    const row = this.#options.store.require(teamId, id);
    await this.#options.transitions.destroy(this.#options.store.beginDestroy(row));
  }

  /** The idle timer's pause: the same path as a client's. */
  async expire(id: string): Promise<void> {
    const { store, transitions } = this.#options;
    const row = store.get(id);
    if (row === undefined || row.status !== "running" || row.intent !== null) return;
    await transitions.pause(store.setIntentUnsynced(row, "pause"));
  }

  usage(teamId: string): Usage {
    return this.#options.quotas.usage(teamId);
  }

  counts(): Record<string, number> {
    return this.#options.store.counts();
  }

  /** Lets running changes finish, within `graceMs`; VMs run on. */
  async close(graceMs: number): Promise<void> {
    this.#isClosing = true;
    this.#options.idle.stop();
    const grace = new Promise<void>((resolve) => setTimeout(resolve, graceMs).unref());
    await Promise.race([this.#options.locks.settled(), grace]);
    this.#options.activity.flush();
  }

  #requireResumable(teamId: string, id: string): Capsule {
    const row = this.permit(teamId, id, "resume");
    if (row.blockedBy === null) return row;
    const message = `capsule ${id} cannot be resumed: its template ${row.blockedBy} was deleted`;
    throw new CapsuleError("conflict", message, { details: { template: row.blockedBy } });
  }

  /** A snapshot template brings its own shape. */
  #resolve(teamId: string, request: CreateRequest): { storage: string | null; vcpus: number; memoryMb: number } {
    const { templates, host } = this.#options;
    const { template, vcpus, memoryMb } = request;
    if (host.images().some((image) => image.name === template)) return { storage: null, vcpus, memoryMb };
    const found = templates.named(teamId, template);
    if (found === undefined) throw new CapsuleError("not_found", `there is no template ${JSON.stringify(template)}`);
    return { storage: found.storage, vcpus: found.vcpus, memoryMb: found.memoryMb };
  }

  #view(row: Capsule): CapsuleView {
    const lastActiveAt = this.#options.activity.lastOf(row.id) ?? row.lastActiveAt;
    const known = this.#views.get(row);
    if (known?.lastActiveAt === lastActiveAt) return known;
    const view: CapsuleView = Object.freeze({
      id: row.id,
      status: row.status,
      template: row.template,
      vcpus: row.vcpus,
      memoryMb: row.memoryMb,
      timeoutSec: row.timeoutSec,
      createdAt: row.createdAt,
      lastUpdated: row.lastUpdated,
      startedAt: row.startedAt,
      lastActiveAt,
      errorReason: row.errorReason,
    });
    if (Object.isFrozen(row)) this.#views.set(row, view);
    return view;
  }
}
