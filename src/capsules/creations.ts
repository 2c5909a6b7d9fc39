/** Creates: the checks of a request, the row, and the start that follows it. */
import type { TemplateRows } from "../db/template-rows.ts";
import type { Host } from "../host/host.ts";
import { encodePolicy, noNetwork } from "../network/policy.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Clock } from "./clock.ts";
import type { Decisions } from "./decisions.ts";
import { type Envs, requireSmall } from "./envs.ts";
import { newCapsuleId } from "./ids.ts";
import type { Networks } from "./networks.ts";
import { type CreateRequest, newRow } from "./new-row.ts";
import { originOf } from "./origin.ts";
import type { KeyedAnswer, Ownership } from "./ownership.ts";
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
  ownership: Ownership;
  decisions: Decisions;
  /** Called when a capsule that was not made no longer needs its template's files. */
  onFreed: (storage: string) => Promise<void>;
  networks: Networks;
  /** Called when a create has been admitted; whether a warm capsule was ready for it. */
  onCreateBegan: (isWarm: boolean) => void;
}

export interface CreateOptions {
  alongside: (row: Capsule) => void;
  answerOf: (row: Capsule) => KeyedAnswer | undefined;
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

  /** As Capsules.create, with the new row in place of its view. */
  async create(teamId: string, request: CreateRequest, { alongside, answerOf }: CreateOptions): Promise<Capsule> {
    const { store, transitions, clock, host, quotas, ownership } = this.#options;
    this.#requireOpen();
    ownership.requireCreates?.();
    const encoded = {
      labels: encodeLabels(request.labels ?? {}),
      network: encodePolicy(request.network ?? noNetwork),
    };
    const { envs = {}, injected = [] } = request;
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
    this.#options.onCreateBegan(warm !== undefined);
    const id = warm ?? newCapsuleId();
    const row = newRow({ id, teamId, storage, vcpus, memoryMb, diskMb }, { ...request, ...encoded }, clock.now());
    const insert = () => {
      const isNew = store.insert(row, () => {
        this.#options.envs.keep(row.id, envs);
        if (injected.length > 0) this.#options.networks.keepInjected(row.id, injected);
        alongside(row);
      });
      if (!isNew) throw new Error(`the random id ${row.id} was taken`);
      const untilStarted = stack.move();
      void quotas.duringStart(teamId, () => transitions.boot(row, admitted)).finally(() => untilStarted.dispose());
    };
    const owned = this.#owned(row, () => answerOf(row), insert);
    if (owned !== undefined) await owned;
    return row;
  }

  /** Throws CapsuleError("name_taken"). */
  requireFree(teamId: string, name: string | null): void {
    const { store, quotas } = this.#options;
    if (name === null) return;
    if (store.idNamed(teamId, name) === undefined && !quotas.promised.hasName(teamId, name)) return;
    throw new CapsuleError("name_taken", `the team has a capsule named ${name}`);
  }

  /** Calls `insert` once the capsule is this host's. A capsule without a row is no host's after a failure, and has no folder. */
  #owned(row: Capsule, answer: () => KeyedAnswer | undefined, insert: () => void): Promise<void> | undefined {
    const { ownership, decisions, quotas } = this.#options;
    const promises = new DisposableStack();
    let isOwned = false;
    const ask = () => {
      const decided = ownership.create(row, answer);
      if (decided !== undefined) promises.use(quotas.promised.capsule(row));
      return decided;
    };
    const commit = (hasWaited: boolean) => {
      isOwned = true;
      if (hasWaited) this.#requireOpen();
      promises.dispose();
      insert();
    };
    const fail = async (error: unknown): Promise<never> => {
      promises.dispose();
      await this.#unmake(row, isOwned);
      throw error;
    };
    try {
      return decisions.make(row.id, ask, commit)?.catch(fail);
    } catch (error) {
      return fail(error);
    }
  }

  async #unmake(row: Capsule, isOwned: boolean): Promise<void> {
    const { host, ownership, onFreed } = this.#options;
    // A decision that is lost is noticed where it was made.
    const unmade = isOwned
      ? ownership.unmake === undefined
        ? ownership.destroy(row)
        : ownership.unmake(row)
      : undefined;
    await unmade?.catch(() => {});
    await host.remove(row.id);
    if (row.storage !== null) await onFreed(row.storage);
  }

  #requireOpen(): void {
    if (this.#isClosing) throw new CapsuleError("no_capacity", "cannot create a capsule: the server is stopping");
  }

  #resolve(teamId: string, request: CreateRequest): Resolved {
    return resolveTemplate(this.#options, teamId, request);
  }
}
