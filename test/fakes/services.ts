/** Services in memory, with the states and refusals of the real ones and without VMs. */
import type { Agent } from "../../src/agent/agent.ts";
import { type AgentParts, partsOf } from "../../src/capsules/agent-parts.ts";
import type { CapsuleView, CreateRequest } from "../../src/capsules/capsules.ts";
import type { Usage } from "../../src/capsules/quotas.ts";
import type { RunEnd } from "../../src/capsules/runs.ts";
import { AuditRows } from "../../src/db/audit-rows.ts";
import { openDatabase } from "../../src/db/database.ts";
import type { CapsulesService, Services, TemplatesService } from "../../src/http/services.ts";
import { Audit } from "../../src/teams/audit.ts";
import type { CaptureRequest, TemplateView } from "../../src/templates/templates.ts";
import type { CapsuleStatus } from "../../src/wire/capsule.ts";
import { CapsuleError } from "../../src/wire/errors.ts";
import type { ServiceState } from "../../src/wire/health.ts";
import type { Action } from "../../src/wire/requirements.ts";
import type { TemplateType } from "../../src/wire/template.ts";
import { FakeAgent } from "./agent.ts";
import { FakeTeams } from "./teams.ts";

export { keys } from "./teams.ts";

const requires: Partial<Record<Action, CapsuleStatus>> = {
  exec: "running",
  processes: "running",
  pty: "running",
  files: "running",
  ping: "running",
  pause: "running",
  snapshot: "running",
  resume: "paused",
};

interface FakeCapsule {
  teamId: string;
  /** Callers get copies. */
  view: { -readonly [Field in keyof CapsuleView]: CapsuleView[Field] };
  agent: FakeAgent;
  busy: number;
  ends: Set<(end: RunEnd) => void>;
}

export class FakeCapsules implements CapsulesService {
  readonly all = new Map<string, FakeCapsule>();
  readonly #waits = new Set<() => void>();
  readonly #listeners = new Set<Parameters<CapsulesService["onChange"]>[0]>();
  /** Teams whose capsules' writes are throttled. */
  readonly throttled = new Set<string>();
  /** Thrown by the next mutating call. */
  nextFailure: unknown;
  #clock = Date.UTC(2024, 0, 2, 3, 4, 5, 6);

  async create(teamId: string, request: CreateRequest): Promise<CapsuleView> {
    this.#mayFail();
    if (request.template !== "minimal") {
      throw new CapsuleError("not_found", `template ${JSON.stringify(request.template)} does not exist`);
    }
    const id = `cl-${String(this.all.size + 1).padStart(25, "0")}`;
    const now = this.#tick();
    const view: CapsuleView = {
      id,
      status: "starting",
      ...request,
      createdAt: now,
      lastUpdated: now,
      startedAt: null,
      lastActiveAt: null,
      errorReason: null,
    };
    this.all.set(id, { teamId, view, agent: new FakeAgent(), busy: 0, ends: new Set() });
    this.#tell(teamId, id, view);
    return { ...view };
  }

  /** Makes the changes of status that the real service makes by itself. */
  become(id: string, status: CapsuleStatus, errorReason: string | null = null): void {
    const capsule = this.of(id);
    const now = this.#tick();
    Object.assign(capsule.view, { status, lastUpdated: now, errorReason });
    if (status === "running") capsule.view.startedAt = now;
    else if (status !== "pending" && status !== "starting") this.#end(capsule, status);
    for (const check of this.#waits) check();
    this.#tell(capsule.teamId, id, capsule.view);
  }

  of(id: string): FakeCapsule {
    const capsule = this.all.get(id);
    if (capsule === undefined) throw new Error(`the test knows no capsule ${id}`);
    return capsule;
  }

  list(teamId: string): CapsuleView[] {
    return [...this.all.values()]
      .filter((capsule) => capsule.teamId === teamId)
      .map(({ view }) => ({ ...view }))
      .reverse();
  }

  get(teamId: string, id: string): CapsuleView {
    const capsule = this.all.get(id);
    if (capsule?.teamId !== teamId) throw new CapsuleError("not_found", `capsule ${id} does not exist`);
    return { ...capsule.view };
  }

  wait(
    teamId: string,
    id: string,
    status: CapsuleStatus,
    timeoutMs: number,
    signal: AbortSignal,
  ): Promise<CapsuleView> {
    return new Promise((resolve, reject) => {
      const settle = (finish: () => void) => {
        clearTimeout(timer);
        this.#waits.delete(check);
        finish();
      };
      const check = () => {
        const view = this.get(teamId, id);
        if (view.status === status || view.status === "error") settle(() => resolve(view));
      };
      const timer = setTimeout(() => settle(() => resolve(this.get(teamId, id))), timeoutMs);
      signal.addEventListener("abort", () => settle(() => reject(signal.reason)));
      this.#waits.add(check);
      check();
    });
  }

  get waits(): number {
    return this.#waits.size;
  }

  permit(teamId: string, id: string, action: Action): void {
    const { status } = this.get(teamId, id);
    const required = requires[action];
    if (required !== undefined && status !== required) {
      throw new CapsuleError("invalid_state", `capsule ${id} is ${status}; ${action} needs it ${required}`);
    }
  }

  async use<Name extends keyof AgentParts, T>(
    teamId: string,
    id: string,
    action: Name,
    work: (agent: AgentParts[Name]) => T | Promise<T>,
  ): Promise<T> {
    this.permit(teamId, id, action);
    using use = new DisposableStack();
    const { agent } = this.of(id);
    return await work(partsOf(agent as unknown as Agent, () => this.#beginExec(id), use)[action]);
  }

  requireWritable(teamId: string): void {
    if (this.throttled.has(teamId))
      throw new CapsuleError("no_space", "the team is over its disk quota", { details: { shortage: "quota" } });
  }

  #beginExec(id: string): () => void {
    const capsule = this.of(id);
    capsule.busy += 1;
    capsule.view.lastActiveAt = this.#tick();
    return () => {
      capsule.busy -= 1;
      capsule.view.lastActiveAt = this.#tick();
    };
  }

  ping(teamId: string, id: string): void {
    this.permit(teamId, id, "ping");
    this.of(id).view.lastActiveAt = this.#tick();
  }

  async pause(teamId: string, id: string): Promise<CapsuleView> {
    this.#mayFail();
    this.permit(teamId, id, "pause");
    this.become(id, "paused");
    return this.get(teamId, id);
  }

  async resume(teamId: string, id: string): Promise<CapsuleView> {
    this.#mayFail();
    this.permit(teamId, id, "resume");
    this.become(id, "running");
    return this.get(teamId, id);
  }

  async destroy(teamId: string, id: string): Promise<void> {
    this.#mayFail();
    this.permit(teamId, id, "destroy");
    const capsule = this.of(id);
    this.all.delete(id);
    this.#end(capsule, "destroyed");
    this.#tell(teamId, id, undefined);
  }

  onChange(callback: Parameters<CapsulesService["onChange"]>[0]): () => void {
    this.#listeners.add(callback);
    return () => this.#listeners.delete(callback);
  }

  #tell(teamId: string, id: string, view: CapsuleView | undefined): void {
    for (const listener of this.#listeners) listener(teamId, id, view && { ...view });
  }

  usage(teamId: string): Usage {
    const own = this.list(teamId);
    const running = own.filter((view) => view.status === "running" || view.status === "starting");
    return {
      capsules: own.length,
      runningVcpus: running.reduce((sum, view) => sum + view.vcpus, 0),
      runningMemoryMb: running.reduce((sum, view) => sum + view.memoryMb, 0),
      diskBytes: 0,
      templates: 0,
    };
  }

  onEnd(id: string, callback: (end: RunEnd) => void): () => void {
    const { ends } = this.of(id);
    ends.add(callback);
    return () => ends.delete(callback);
  }

  #end(capsule: FakeCapsule, end: RunEnd): void {
    for (const callback of [...capsule.ends]) callback(end);
    capsule.ends.clear();
  }

  #mayFail(): void {
    const failure = this.nextFailure;
    this.nextFailure = undefined;
    if (failure !== undefined) throw failure;
  }

  #tick(): number {
    this.#clock += 1_000;
    return this.#clock;
  }
}

const minimal: TemplateView = {
  name: "minimal",
  type: "base",
  vcpus: null,
  memoryMb: null,
  sizeBytes: 123_456_789,
  createdAt: Date.UTC(2024, 0, 1),
};

class FakeTemplates implements TemplatesService {
  readonly #capsules: FakeCapsules;
  readonly #taken: { teamId: string; view: TemplateView }[] = [];
  readonly #listeners = new Set<Parameters<TemplatesService["onChange"]>[0]>();

  constructor(capsules: FakeCapsules) {
    this.#capsules = capsules;
  }

  list(teamId: string, type?: TemplateType): TemplateView[] {
    const own = this.#taken.filter((each) => each.teamId === teamId).map(({ view }) => view);
    return [minimal, ...own].filter((view) => type === undefined || view.type === type);
  }

  async capture(
    teamId: string,
    { capsuleId, name = "template-0123abcd", overwrite }: CaptureRequest,
  ): Promise<TemplateView> {
    this.#capsules.permit(teamId, capsuleId, "snapshot");
    if (name === minimal.name) throw new CapsuleError("name_reserved", `${name} is the name of a base template`);
    const known = this.#find(teamId, name);
    if (known !== -1 && !overwrite) throw new CapsuleError("template_name_taken", `template ${name} exists already`);
    if (known !== -1) this.#taken.splice(known, 1);
    const { vcpus, memoryMb, createdAt } = this.#capsules.get(teamId, capsuleId);
    const view: TemplateView = { name, type: "snapshot", vcpus, memoryMb, sizeBytes: 1, createdAt };
    this.#taken.push({ teamId, view });
    await this.#capsules.destroy(teamId, capsuleId);
    for (const listener of this.#listeners) listener(teamId, name, view);
    return view;
  }

  async delete(teamId: string, name: string): Promise<void> {
    const known = this.#find(teamId, name);
    if (known === -1) throw new CapsuleError("not_found", `snapshot template ${JSON.stringify(name)} does not exist`);
    this.#taken.splice(known, 1);
    for (const listener of this.#listeners) listener(teamId, name, undefined);
  }

  onChange(callback: Parameters<TemplatesService["onChange"]>[0]): () => void {
    this.#listeners.add(callback);
    return () => this.#listeners.delete(callback);
  }

  #find(teamId: string, name: string): number {
    return this.#taken.findIndex((each) => each.teamId === teamId && each.view.name === name);
  }
}

export class FakeServices implements Services {
  readonly audit = new Audit({
    rows: new AuditRows(openDatabase(":memory:")),
    entriesMax: 1_000_000,
    keepMs: Number.POSITIVE_INFINITY,
    onLoss: () => {},
  });
  readonly teams = new FakeTeams();
  readonly capsules = new FakeCapsules();
  readonly templates = new FakeTemplates(this.capsules);
  /** Why the machine can make no capsule. */
  reasons: string[] = [];
  readonly health: Services["health"] = { state: () => this.#state(), reasons: async () => this.reasons };

  #state(): ServiceState {
    const capsules: Record<string, number> = {};
    for (const { view } of this.capsules.all.values()) capsules[view.status] = (capsules[view.status] ?? 0) + 1;
    return {
      version: "0.0.0",
      accelerator: "tcg",
      accelerator_reason: "a fake",
      jail: { mode: "off", cgroup: "none", missing: ["a fake"] },
      pid: process.pid,
      capsules,
      pool: { ready: 0, target: 0 },
      warm_processes: { ready: 0, target: 0 },
      blanks: { ready: 0, target: 0 },
    };
  }
}
