/** The files of a team's templates on this host: those that another host has made are fetched before a capsule is made from them. */
import type { TemplateRows } from "../db/template-rows.ts";
import { CapsuleError } from "../wire/errors.ts";
import { type Artifacts, NotInBucket } from "./artifacts.ts";
import type { TemplatePlaces } from "./template-places.ts";

export interface TemplateFilesOptions {
  artifacts: Pick<Artifacts, "fetch" | "folders">;
  places: Pick<TemplatePlaces, "placed" | "find">;
  rows: Pick<TemplateRows, "named">;
  /** For how long a create waits for a fetch, which goes on. */
  waitMs?: number | undefined;
}

const defaultWaitMs = 60_000;

/** This host's machine is another one than that of the template, or its disk is full: another host may do. */
export class UnusableHere extends CapsuleError {}

export class TemplateFiles {
  readonly #options: TemplateFilesOptions;

  constructor(options: TemplateFilesOptions) {
    this.#options = options;
  }

  /**
   * The files of the team's template of this name are here, and stay until the result is disposed of, if there is such a template.
   * `hasImage`: this host has an image of that name, which is meant where no template is known. `isReplaced`: the template that is here was
   * replaced. Throws UnusableHere, "unavailable" and "agent_error".
   */
  async ensure(teamId: string, name: string, { hasImage = false, isReplaced = false } = {}): Promise<Disposable> {
    const { places, rows, artifacts, waitMs = defaultWaitMs } = this.#options;
    const own = isReplaced ? undefined : rows.named(teamId, name);
    // By PostgreSQL: the template that the catalog knew may have been replaced.
    const isAsked = isReplaced || !hasImage || places.placed(teamId, name) !== undefined;
    const found = own === undefined && isAsked ? await places.find(teamId, name) : undefined;
    const storage = (own ?? found)?.storage;
    if (storage === undefined) return { [Symbol.dispose]() {} };
    try {
      const held = own === undefined ? await artifacts.fetch("template", storage, within(waitMs, name)) : undefined;
      using stack = new DisposableStack();
      if (held !== undefined) stack.use(held);
      await artifacts.folders.requireUsable(storage);
      return stack.move();
    } catch (error) {
      const isHere = error instanceof CapsuleError && (error.code === "conflict" || error.code === "no_space");
      if (isHere) throw new UnusableHere(error.code, error.message, { cause: error });
      throw error instanceof NotInBucket && found !== undefined ? onlyOn(found.host, name) : error;
    }
  }
}

function onlyOn(host: string, name: string): CapsuleError {
  const message = `cannot create a capsule: the bucket does not have its template ${name} yet, which is on host ${host}`;
  return new CapsuleError("unavailable", message, { details: { host } });
}

function within(ms: number, name: string): AbortSignal {
  const late = new AbortController();
  const message = `cannot create a capsule: its template ${name} is still being fetched to this host`;
  setTimeout(() => late.abort(new CapsuleError("unavailable", message, { retryAfterSec: 5 })), ms).unref();
  return late.signal;
}
