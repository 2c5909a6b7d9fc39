/**
 * Requests that need a capsule with `auto_resume` while it is paused, or being paused: they wait for one resume of it, and go on
 * (docs/adr/0059).
 */
import { resumeWaitersMax, resumeWaitMs } from "../wire/capsule.ts";
import { CapsuleError } from "../wire/errors.ts";
import { type Action, cannot, requires } from "../wire/requirements.ts";
import type { Clock } from "./clock.ts";
import { type Capsule, type CapsuleStore, missing } from "./store.ts";

export interface AutoResumesOptions {
  store: Pick<CapsuleStore, "get" | "onChange">;
  clock: Clock;
  /** By the same path as a client's resume. */
  resume: (teamId: string, id: string) => Promise<unknown>;
  /** Called when the service has resumed a capsule for its requests. */
  onResumed: (teamId: string, id: string) => void;
}

/** Waits for a resume, at most until the monotonic time `until`. */
export type UntilResumed = (signal?: AbortSignal, until?: number) => Promise<void>;

interface Wait {
  /** Requests that wait. */
  count: number;
  /** The capsule runs, or can do so no more. Rejects when its resume was refused. */
  over: Promise<void>;
}

export class AutoResumes {
  readonly #options: AutoResumesOptions;
  readonly #waits = new Map<string, Wait>();

  constructor(options: AutoResumesOptions) {
    this.#options = options;
  }

  /** Requests that wait for the capsule's resume. */
  waiting(id: string): number {
    return this.#waits.get(id)?.count ?? 0;
  }

  /** Whether `action` waits for a resume now. */
  concerns(action: Action, row: Capsule): boolean {
    return requires[action] === "resumable" && row.autoResume !== 0 && isAwaited(row);
  }

  /**
   * Resolves when the capsule need not be waited for any more. Rejects with the resume's refusal, "quota_exceeded" when too many
   * requests wait, "timeout", "not_found", or the signal's reason. `until`: monotonic time of the timeout, by default in a minute.
   */
  async resumed({ teamId, id }: Capsule, action: Action, signal?: AbortSignal, until?: number): Promise<void> {
    const { clock } = this.#options;
    const waitMs = until === undefined ? resumeWaitMs : Math.max(0, until - clock.ticks());
    signal?.throwIfAborted();
    const wait = this.#join(teamId, id, action);
    const ended = Promise.withResolvers<never>();
    const give = () => ended.reject(signal?.reason);
    const cancel = clock.after(waitMs, () => ended.reject(late(action, id)));
    signal?.addEventListener("abort", give);
    try {
      await Promise.race([wait.over, ended.promise]);
    } finally {
      wait.count--;
      cancel();
      signal?.removeEventListener("abort", give);
    }
  }

  #join(teamId: string, id: string, action: Action): Wait {
    const found = this.#waits.get(id);
    if (found !== undefined && found.count >= resumeWaitersMax) {
      const message = `${cannot(action, id)}: ${found.count} requests wait for its resume, as many as may`;
      const details = { quota: "resume_waiters", used: found.count, limit: resumeWaitersMax };
      throw new CapsuleError("quota_exceeded", message, { details });
    }
    if (found !== undefined) {
      found.count++;
      return found;
    }
    const wait: Wait = { count: 1, over: Promise.resolve() };
    this.#waits.set(id, wait);
    wait.over = this.#resume(teamId, id, wait).finally(() => this.#leave(id, wait));
    wait.over.catch(() => {}); // every request may have gone
    return wait;
  }

  /** Nothing is resumed when nobody waits any more. */
  async #resume(teamId: string, id: string, wait: Wait): Promise<void> {
    const { store, resume, onResumed } = this.#options;
    for (;;) {
      const row = store.get(id);
      if (row === undefined || row.intent === "destroy") throw missing(id);
      if (!isAwaited(row) || row.autoResume === 0) return;
      if (wait.count === 0) {
        this.#leave(id, wait); // the next request begins a wait of its own
        return;
      }
      if (row.intent !== null) {
        await this.#changed(id);
        continue;
      }
      try {
        await resume(teamId, id);
        onResumed(teamId, id);
      } catch (error) {
        // The status has changed before the resume began: a client's own resume, for example.
        if (!(error instanceof CapsuleError && error.code === "invalid_state")) throw ofResume(error);
      }
    }
  }

  #leave(id: string, wait: Wait): void {
    if (this.#waits.get(id) === wait) this.#waits.delete(id);
  }

  #changed(id: string): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    const off = this.#options.store.onChange(id, () => resolve());
    return promise.finally(off);
  }
}

/** Paused, whether it is being resumed or not, or being paused. */
function isAwaited({ status, intent }: Capsule): boolean {
  return status === "paused" || (status === "running" && intent === "pause");
}

function late(action: Action, id: string): CapsuleError {
  return new CapsuleError("timeout", `${cannot(action, id)}: it was not resumed within ${resumeWaitMs / 1_000} s`);
}

/** Told apart by its details from an error of the request itself. */
function ofResume(error: unknown): unknown {
  if (!(error instanceof CapsuleError)) return error;
  const { code, message, details, retryAfterSec } = error;
  const retry = retryAfterSec === undefined ? {} : { retryAfterSec };
  return new CapsuleError(code, message, { cause: error, details: { ...details, action: "resume" }, ...retry });
}
