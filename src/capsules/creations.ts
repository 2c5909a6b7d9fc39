/** Creates: the checks of a request, the row, and the start that follows it. */
import type { TemplateRows } from "../db/template-rows.ts";
import type { Host } from "../host/host.ts";
import { encodePolicy, noNetwork } from "../network/policy.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Clock } from "./clock.ts";
import { type Envs, requireSmall } from "./envs.ts";
import { newCapsuleId } from "./ids.ts";
import { type CreateRequest, newRow } from "./new-row.ts";
import { originOf } from "./origin.ts";
import type { Quotas } from "./quotas.ts";
import { type Resolved, requireGrowth, resolveTemplate } from "./resolved.ts";
import { encodeLabels } from "./settings.ts";
import type { Capsule, CapsuleStore } from "./store.ts";
import type { Transitions } from "./transitions.ts";

export interface CreationsOptions {
  store: CapsuleStore;
  templates: TemplateRows;
  host: Host;
  transitions: Transitions;
  clock: Clock;
  quotas: Quotas;
  envs: Envs;
}

export class Creations {
  readonly #options: CreationsOptions;
  #isClosing = false;

  constructor(options: CreationsOptions) {
    this.#options = options;
  }

  /** Every later create is refused. */
  close(): void {
    this.#isClosing = true;
  }

  /** As Capsules.create; `alongside` is called with the new row. */
  async create(teamId: string, request: CreateRequest, alongside: (row: Capsule) => void): Promise<Capsule> {
    const { store, transitions, clock, host, quotas } = this.#options;
    if (this.#isClosing) throw new CapsuleError("no_capacity", "cannot create a capsule: the server is stopping");
    const encoded = {
      labels: encodeLabels(request.labels ?? {}),
      network: encodePolicy(request.network ?? noNetwork),
    };
    const { envs = {} } = request;
    requireSmall(envs);
    const name = request.name ?? null;
    this.requireFree(teamId, name);
    const first = this.#resolve(teamId, request);
    if (first.isGrown) await requireGrowth(this.#options, teamId, request.template, first);
    using stack = new DisposableStack();
    const admitted = stack.use(await host.admitStart(teamId, first.memoryMb));
    const { storage, vcpus, memoryMb, diskMb, isGrown } = this.#resolve(teamId, request); // again: the template may have gone meanwhile
    this.requireFree(teamId, name); // again: another capsule may have taken it meanwhile
    quotas.requireCreate(teamId, { vcpus, memoryMb });
    const origin = originOf({ storage, template: request.template });
    const warm = isGrown ? undefined : host.reserve(origin, { vcpus, memoryMb });
    const id = warm ?? newCapsuleId();
    const row = newRow({ id, teamId, storage, vcpus, memoryMb, diskMb }, { ...request, ...encoded }, clock.now());
    try {
      const isNew = store.insert(row, () => {
        this.#options.envs.keep(row.id, envs);
        alongside(row);
      });
      if (!isNew) throw new Error(`the random id ${row.id} was taken`);
    } catch (error) {
      await host.remove(row.id);
      throw error;
    }
    const untilStarted = stack.move();
    void quotas.duringStart(teamId, () => transitions.boot(row, admitted)).finally(() => untilStarted.dispose());
    return row;
  }

  /** Throws CapsuleError("name_taken"). */
  requireFree(teamId: string, name: string | null): void {
    if (name === null || this.#options.store.idNamed(teamId, name) === undefined) return;
    throw new CapsuleError("name_taken", `the team has a capsule named ${name}`);
  }

  #resolve(teamId: string, request: CreateRequest): Resolved {
    return resolveTemplate(this.#options, teamId, request);
  }
}
