/** Requests that give a capsule a VM again: the resume of a paused one, and the start of one that has its disk only. */
import type { Host } from "../host/host.ts";
import { CapsuleError } from "../wire/errors.ts";
import { cannot } from "../wire/requirements.ts";
import type { Decisions } from "./decisions.ts";
import type { Envs } from "./envs.ts";
import type { Ownership } from "./ownership.ts";
import type { Quotas } from "./quotas.ts";
import type { Capsule, CapsuleStore } from "./store.ts";
import type { Transitions } from "./transitions.ts";

type Action = "resume" | "start";

export interface RevivalsOptions {
  store: CapsuleStore;
  host: Pick<Host, "admitRestore" | "admitStart" | "requireDisk">;
  /** Throws "conflict" when those of the capsule cannot be read. */
  envs: Pick<Envs, "require">;
  quotas: Quotas;
  transitions: Transitions;
  ownership: Ownership;
  decisions: Decisions;
  /** Throws "not_found", then "invalid_state". */
  permit: (teamId: string, id: string, action: Action) => Capsule;
}

export class Revivals {
  readonly #options: RevivalsOptions;

  constructor(options: RevivalsOptions) {
    this.#options = options;
  }

  async resume(teamId: string, id: string): Promise<Capsule> {
    const { host, transitions } = this.#options;
    using admitted = await host.admitRestore(teamId, id, this.#require(teamId, id, "resume").memoryMb);
    return await this.#revive(teamId, id, "resume", (row) => transitions.resume(row, admitted));
  }

  async start(teamId: string, id: string): Promise<Capsule> {
    const { host, transitions } = this.#options;
    const { memoryMb } = this.#require(teamId, id, "start");
    await host.requireDisk(id);
    using admitted = await host.admitStart(teamId, memoryMb);
    return await this.#revive(teamId, id, "start", (row) => transitions.start(row, admitted));
  }

  /** Checks again first: the status may have changed during the admission. */
  async #revive(
    teamId: string,
    id: string,
    action: Action,
    work: (row: Capsule) => Promise<Capsule>,
  ): Promise<Capsule> {
    const { envs, quotas, store, ownership, decisions } = this.#options;
    using promises = new DisposableStack();
    let row: Capsule;
    const ask = () => {
      row = this.#require(teamId, id, action);
      envs.require(id);
      quotas.requireRevival(teamId, row, action);
      const decided = ownership.admitResume(row);
      if (decided !== undefined) promises.use(quotas.promised.start(row));
      return decided;
    };
    const begin = (hasWaited: boolean) => {
      promises.dispose();
      const reviving = store.setIntentUnsynced(hasWaited ? this.#require(teamId, id, action) : row, action);
      return { revived: quotas.duringStart(teamId, () => work(reviving)) };
    };
    const { revived } = await decisions.make(id, ask, begin);
    return await revived;
  }

  /** Throws "conflict" when the template is gone that the capsule stands on. */
  #require(teamId: string, id: string, action: Action): Capsule {
    const row = this.#options.permit(teamId, id, action);
    if (row.blockedBy === null) return row;
    const message = `${cannot(action, id)}: its template ${row.blockedBy} was deleted`;
    throw new CapsuleError("conflict", message, { details: { template: row.blockedBy } });
  }
}
