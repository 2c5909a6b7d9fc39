/** The capsules of all teams, as clients use them: each call checks team and status and hands the change to transitions.ts. */
import type { TemplateRows } from "../db/template-rows.ts";
import type { Host } from "../host/host.ts";
import { type CapsuleStatus, resumeWaitMs } from "../wire/capsule.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Action } from "../wire/requirements.ts";
import type { Activity } from "./activity.ts";
import type { Adoptions } from "./adoptions.ts";
import { type AgentParts, partsOf } from "./agent-parts.ts";
import type { AutoResumes, UntilResumed } from "./auto-resumes.ts";
import type { Clock } from "./clock.ts";
import { Creations, type CreationsOptions } from "./creations.ts";
import type { Decisions } from "./decisions.ts";
import type { DiskLimiter } from "./disk-limiter.ts";
import type { Envs } from "./envs.ts";
import { allow, allowOnTheWay, onTheWay } from "./lifecycle.ts";
import type { CapsuleLocks } from "./locks.ts";
import type { Metrics } from "./metrics/metrics.ts";
import type { Networks, PortAccess } from "./networks.ts";
import type { CreateRequest } from "./new-row.ts";
import { type Capturing, OwnedChanges } from "./owned-changes.ts";
import type { KeyedAnswer, Ownership, TemplatePlace } from "./ownership.ts";
import { type Conditions, type Part, readPage } from "./pages.ts";
import type { Quotas, Usage } from "./quotas.ts";
import { Revivals } from "./revivals.ts";
import type { RunEnd, Runs } from "./runs.ts";
import type { SettingsChange } from "./settings.ts";
import type { Capsule, CapsuleStore } from "./store.ts";
import type { Transitions } from "./transitions.ts";
import { UrlSecrets } from "./url-secrets.ts";
import { type CapsuleView, type ViewTurn, viewOf } from "./view.ts";

export type { CapsuleView, CreateRequest, PortAccess };

export interface CapsulesOptions {
  store: CapsuleStore;
  templates: TemplateRows;
  host: Host;
  locks: CapsuleLocks;
  transitions: Transitions;
  runs: Runs;
  adoptions: Adoptions;
  autoResumes: AutoResumes;
  activity: Activity;
  clock: Clock;
  quotas: Quotas;
  envs: Envs;
  metrics: Metrics;
  networks: Networks;
  disk: Pick<DiskLimiter, "requireWritable">;
  ownership: Ownership;
  decisions: Decisions;
  /** Called when a capsule that was not made no longer needs its template's files. */
  onFreed: (storage: string) => Promise<void>;
  /** Called when a command was sent; the returned function at its end. */
  observeExec: (id: string) => () => void;
  onCreateBegan: CreationsOptions["onCreateBegan"];
}

export interface UseOptions {
  /** Ends a wait for a resume. */
  signal?: AbortSignal;
  /** Whether a paused capsule with `auto_resume` is resumed; default: yes. */
  mayResume?: boolean;
  /** Called before a wait for a resume, with whether that is under way already; the returned function is called after the wait. */
  onWait?: (isResuming: boolean) => () => void;
}

export class Capsules {
  readonly urlSecrets: UrlSecrets;
  readonly metrics: Metrics;
  readonly networks: Networks;
  readonly #options: CapsulesOptions;
  readonly #creations: Creations;
  readonly #revivals: Revivals;
  readonly #owned: OwnedChanges;

  constructor(options: CapsulesOptions) {
    this.#options = options;
    this.#creations = new Creations(options);
    this.#revivals = new Revivals({ ...options, permit: (...of) => this.permit(...of) });
    this.metrics = options.metrics;
    this.networks = options.networks;
    this.#owned = new OwnedChanges({ ...options, requireFree: (...of) => this.#creations.requireFree(...of) });
    this.urlSecrets = new UrlSecrets(options.store);
  }

  /**
   * Inserts the row, in one transaction with `alongside`, and begins the start; `answerOf`: what is kept for an Idempotency-Key by who
   * decides about the capsule; `running` follows. Throws CapsuleError: "not_found" for an unknown template,
   * "name_taken", "invalid_request" for labels and envs, "quota_exceeded", "no_capacity", "agent_error" when the host can start no VM.
   */
  async create(
    teamId: string,
    request: CreateRequest,
    alongside: (capsule: CapsuleView) => void = () => {},
    answerOf: (capsule: CapsuleView) => KeyedAnswer | undefined = () => undefined,
  ): Promise<CapsuleView> {
    const row = await this.#creations.create(teamId, request, {
      alongside: (made) => alongside(this.#view(made)),
      answerOf: (made) => answerOf(this.#view(made)),
    });
    return this.#view(row);
  }

  /** Newest first. */
  list(teamId: string): CapsuleView[] {
    return this.#options.store.ofTeam(teamId).map((row) => this.#view(row));
  }

  /** The capsules that meet the conditions, newest first, in turns of the event loop. Returns the last one's place if more follow. */
  async *find(teamId: string, conditions: Conditions, part: Part): AsyncGenerator<ViewTurn, number | undefined> {
    const turns = readPage(this.#options.store, teamId, conditions, part);
    for (;;) {
      const { done, value } = await turns.next();
      if (done) return value;
      yield { items: value.rows.map((row) => this.#view(row)), seen: value.seen };
    }
  }

  /** The id of the team's capsule with this name. */
  idNamed(teamId: string, name: string): string | undefined {
    return this.#options.store.idNamed(teamId, name);
  }

  /**
   * All of the change or none; in every status, and also while the capsule's status changes. Rejects with "not_found", "name_taken",
   * "invalid_request" for the labels.
   */
  async update(teamId: string, id: string, change: SettingsChange): Promise<CapsuleView> {
    return this.#view(await this.#owned.update(teamId, id, change));
  }

  /** Throws CapsuleError("not_found"). */
  get(teamId: string, id: string): CapsuleView {
    return this.#view(this.#options.store.require(teamId, id));
  }

  /** Resolves when the capsule has `status`, can no longer reach it, or `timeoutMs` is over; its view can be made later. Both throw "not_found". */
  async wait(
    teamId: string,
    id: string,
    status: CapsuleStatus,
    timeoutMs: number,
    signal: AbortSignal,
  ): Promise<() => CapsuleView> {
    const { store } = this.#options;
    store.require(teamId, id);
    const row = await store.untilStatus(id, status, timeoutMs, signal);
    return () => this.#view(row ?? store.require(teamId, id));
  }

  /**
   * Checks team and status: throws "not_found", then "invalid_state". A save that an earlier daemon has left half-way is taken back,
   * or completed, by the capsule's adoption and is no change under way.
   */
  permit(teamId: string, id: string, action: Action): Capsule {
    return this.#allowed(this.#options.store.require(teamId, id), action);
  }

  /** As `permit`; undefined, or, if it may resume, the wait for the resume of a capsule with `auto_resume`, as AutoResumes.resumed. */
  admit(teamId: string, id: string, action: Action, mayResume = true): UntilResumed | undefined {
    const { store, adoptions, autoResumes } = this.#options;
    const row = store.require(teamId, id);
    if (mayResume && !adoptions.has(id) && autoResumes.concerns(action, row))
      return (signal, until) => autoResumes.resumed(row, action, signal, until);
    this.#allowed(row, action);
    return undefined;
  }

  /** As `permit`; undefined, or what to await before a guest that is not adopted yet can be used. Rejects with "unavailable". */
  adoption(teamId: string, id: string, action: Action): Promise<void> | undefined {
    this.permit(teamId, id, action);
    return this.#options.adoptions.has(id) ? this.#options.adoptions.ended(id, action) : undefined;
  }

  /**
   * Runs `work`, which uses the agent in the capsule for `action`, and resolves with its result. A command counts as activity,
   * and holds the idle timer off, from when `work` sends it until `work` ends. Throws "not_found", "invalid_state",
   * "unavailable" or "agent_error", and what `admit` does. The waits for a resume and an adoption have one deadline.
   */
  async use<Name extends keyof AgentParts, T>(
    teamId: string,
    id: string,
    action: Name,
    work: (agent: AgentParts[Name]) => T | Promise<T>,
    { signal, mayResume, onWait = () => () => {} }: UseOptions = {},
  ): Promise<T> {
    const { runs, adoptions, observeExec, activity, clock, store } = this.#options;
    const deadline = clock.ticks() + resumeWaitMs;
    const untilResumed = this.admit(teamId, id, action, mayResume);
    const isAdopted = !adoptions.has(id);
    const waited = async (until: UntilResumed) => {
      const end = onWait(store.get(id)?.intent === "resume");
      await until(signal, deadline).finally(end);
    };
    if (untilResumed !== undefined) await waited(untilResumed); // paused since the request was let in
    if (!isAdopted) await adoptions.ended(id, action);
    if (untilResumed !== undefined || !isAdopted) {
      const untilResumedAgain = this.admit(teamId, id, action, mayResume); // the adoption has completed a pause
      if (untilResumedAgain !== undefined) await waited(untilResumedAgain);
      this.permit(teamId, id, action);
    }
    const guest = runs.guest(id);
    if (guest === undefined) throw new CapsuleError("agent_error", `capsule ${id} cannot be reached`);
    using use = new DisposableStack();
    const begin = () => {
      const ends = [observeExec(id), activity.began(id)];
      return () => {
        for (const end of ends) end();
      };
    };
    return await work(
      partsOf(guest.agent, {
        begin,
        beginRequest: () => activity.began(id),
        use,
        envs: () => this.#options.envs.of(id),
      })[action],
    );
  }

  /** Throws CapsuleError("no_space") while files cannot be sent to the team's capsules. */
  requireWritable(teamId: string): void {
    this.#options.disk.requireWritable(teamId);
  }

  /** Calls `listener` once when the capsule's run ends; the returned function removes it. */
  onEnd(id: string, listener: (end: RunEnd) => void): () => void {
    return this.#options.runs.onEnd(id, listener);
  }

  /** Calls `listener` at each change that a team can see; `view` is undefined when the capsule is gone. */
  onChange(listener: (teamId: string, id: string, view: CapsuleView | undefined) => void): () => void {
    return this.#options.store.subscribe((teamId, id, row) => {
      listener(teamId, id, row === undefined ? undefined : this.#view(row));
    });
  }

  /** The rules of access to its ports, whatever its team; undefined: there is no such capsule, or it is being destroyed. Reads one row. */
  portAccess(id: string): PortAccess | undefined {
    return this.networks.access(id);
  }

  /** Calls `listener` after each change of what `portAccess` tells, but for the capsule's end; the returned function removes it. */
  onPortsChanged(id: string, listener: () => void): () => void {
    return this.networks.onChange(id, listener);
  }

  ping(teamId: string, id: string): void {
    this.permit(teamId, id, "ping");
    this.#options.activity.note(id);
  }

  /** Resolves when everything is durable. Throws "agent_error" or "no_space", and then the capsule is still running. */
  async pause(teamId: string, id: string): Promise<CapsuleView> {
    const { adoptions, transitions, store } = this.#options;
    let row = this.permit(teamId, id, "pause");
    if (adoptions.has(id)) {
      await adoptions.ended(id, "pause");
      row = this.permit(teamId, id, "pause");
    }
    return this.#view(await transitions.pause(store.setIntentUnsynced(row, "pause")));
  }

  /** Resolves when the agent is ready. Throws "agent_error" or "conflict", "quota_exceeded" or "no_capacity"; it is still paused then. */
  async resume(teamId: string, id: string): Promise<CapsuleView> {
    return this.#view(await this.#revivals.resume(teamId, id));
  }

  /** As `resume`, from the disk. Throws "invalid_state" also when there is none. */
  async start(teamId: string, id: string): Promise<CapsuleView> {
    return this.#view(await this.#revivals.start(teamId, id));
  }

  /** Resolves when the VM has ended; only the disk is left of the capsule. */
  async stop(teamId: string, id: string): Promise<CapsuleView> {
    const { store, transitions } = this.#options;
    await this.adoption(teamId, id, "stop");
    return this.#view(await transitions.stop(store.setIntentUnsynced(this.permit(teamId, id, "stop"), "stop")));
  }

  /**
   * Turns a running capsule into a template's files and destroys it; resolves with what `capturing.commit` returned. On failure the
   * capsule is still running.
   */
  async capture<T>(teamId: string, id: string, to: TemplatePlace, capturing: Capturing<T>): Promise<T> {
    const row = this.permit(teamId, id, "snapshot");
    return await this.#owned.capture(row, to, () => this.#view(row), capturing);
  }

  /** Waits for the change under way, if any, and resolves when nothing of the capsule is left. */
  destroy(teamId: string, id: string): Promise<void> {
    return this.#owned.destroy(teamId, id);
  }

  usage(teamId: string): Usage {
    return this.#options.quotas.usage(teamId);
  }

  /** Waits up to `graceMs` for changes under way; VMs run on. */
  async close(graceMs: number): Promise<void> {
    this.#creations.close();
    this.#options.runs.close();
    this.#options.adoptions.close();
    const grace = new Promise<void>((resolve) => setTimeout(resolve, graceMs).unref());
    await Promise.race([this.#settled(), grace]);
    await this.metrics.stop();
    this.#options.activity.flush();
  }

  /** A decision may begin a change. */
  async #settled(): Promise<void> {
    await this.#options.decisions.ended();
    await this.#options.locks.released();
  }

  #allowed(row: Capsule, action: Action): Capsule {
    const way = this.#options.store.moving.get(row.id);
    if (way === "away" && action === "resume") throw onTheWay(row.id);
    const intent = this.#options.adoptions.has(row.id) ? null : row.intent;
    (way === undefined ? allow : allowOnTheWay)(action, row.id, row.status, intent);
    return row;
  }

  #view(row: Capsule): CapsuleView {
    return viewOf(row, this.#options.activity.lastOf(row.id));
  }
}
