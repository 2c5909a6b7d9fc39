/** Why capsules stay on this host while it is drained: PostgreSQL has the reasons, for the command that began the drain. */
import type { Log } from "../log.ts";
import type { Drain } from "./draining.ts";
import type { Membership } from "./membership.ts";
import type { Postgres } from "./postgres.ts";

export interface StayReasonsOptions {
  sql: Postgres;
  membership: Pick<Membership, "me">;
  log: Log;
}

/** Capsules of one statement, and characters of a reason. */
const [idsMax, reasonMax] = [500, 500];

export class StayReasons {
  readonly #options: StayReasonsOptions;
  readonly #reasons = new Map<string, string>();
  /** Capsules that are not tried again in this drain. */
  readonly #final = new Set<string>();
  /** Paused capsules with a reason. */
  readonly #paused = new Set<string>();
  readonly #unwritten = new Set<string>();
  #drain: number | undefined;

  constructor(options: StayReasonsOptions) {
    this.#options = options;
  }

  /** A further drain tries all again. */
  follow(drain: Drain | undefined): void {
    if (drain?.number === this.#drain) return;
    this.#drain = drain?.number;
    for (const each of [this.#reasons, this.#final, this.#paused, this.#unwritten]) each.clear();
  }

  isFinal(id: string): boolean {
    return this.#final.has(id);
  }

  /** It stays as long as that is so. */
  note(id: string, reason: string): void {
    const text = reason.slice(0, reasonMax);
    if (this.#drain === undefined || this.#reasons.get(id) === text) return;
    this.#reasons.set(id, text);
    this.#unwritten.add(id);
  }

  /** It stays. */
  end(id: string, reason: string): void {
    if (this.#drain === undefined) return;
    this.#final.add(id);
    this.note(id, reason);
  }

  /** All paused capsules that stay now. The reason of another one that has stayed while it was paused is taken back. */
  notePaused(reasons: ReadonlyMap<string, string>): void {
    for (const id of this.#paused) {
      if (reasons.has(id)) continue;
      this.#paused.delete(id);
      if (!this.#final.has(id) && this.#reasons.delete(id)) this.#unwritten.add(id);
    }
    for (const [id, reason] of reasons) {
      this.#paused.add(id);
      this.note(id, reason);
    }
  }

  /** Reasons of locked rows are noted the next time. Never rejects. */
  async write(): Promise<void> {
    const { sql, log } = this.#options;
    const byReason = new Map<string | undefined, string[]>();
    for (const id of [...this.#unwritten].slice(0, idsMax)) {
      const reason = this.#reasons.get(id);
      byReason.set(reason, [...(byReason.get(reason) ?? []), id]);
    }
    try {
      for (const [reason, ids] of byReason) await this.#note(reason, ids);
    } catch (error) {
      if (!sql.isAway) log.error({ err: error }, "it could not be told why capsules stay on this host");
    }
  }

  /** Meanwhile another reason may be given, or another drain may begin. */
  async #note(reason: string | undefined, ids: readonly string[]): Promise<void> {
    const { sql, membership } = this.#options;
    const drain = this.#drain;
    const what = "tell why capsules stay";
    const values = [ids, membership.me.name, drain, reason ?? null];
    const locked = new Set(await sql.call<string[]>("note_stays", values, { what }));
    if (drain !== this.#drain) return;
    for (const id of ids) {
      if (!locked.has(id) && this.#reasons.get(id) === reason) this.#unwritten.delete(id);
    }
  }
}
