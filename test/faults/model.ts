/** The model of the service: all that it has acknowledged to several clients, and that must still be true after any crash. */
import assert from "node:assert/strict";

export class Model {
  /** Every id ever seen. */
  readonly #ids = new Set<string>();
  /** A DELETE or a capture was requested, and may be done. */
  readonly #deleting = new Set<string>();
  readonly #destroyed = new Set<string>();
  /** Capsule or template → path → content. */
  readonly #files = new Map<string, Map<string, string>>();
  readonly #templates = new Set<string>();
  /** Capsules whose pause was acknowledged, while no resume was requested. */
  readonly #paused = new Set<string>();
  /** Resumes requested so far, and those without an answer. */
  readonly #resumes = new Map<string, { requested: number; unanswered: number }>();
  /** Capsules that may have run when all VMs were ended. */
  readonly #mayBeLost = new Set<string>();

  created(id: string): void {
    assert.ok(!this.#ids.has(id), `the id ${id} was reused`);
    this.#ids.add(id);
    this.#files.set(id, new Map());
  }

  /** A capsule made from a template has its files. */
  createdFrom(template: string, id: string): void {
    this.created(id);
    this.#files.set(id, new Map(this.#files.get(template)));
  }

  wrote(id: string, path: string, content: string): void {
    this.#files.get(id)?.set(path, content);
  }

  filesOf(id: string): Map<string, string> {
    return this.#files.get(id) ?? new Map();
  }

  deleting(id: string): void {
    this.#deleting.add(id);
  }

  destroyed(id: string): void {
    this.#destroyed.add(id);
  }

  /** `files`: acknowledged before the capture started. */
  captured(id: string, name: string, files: Map<string, string>): void {
    this.destroyed(id);
    this.#templates.add(name);
    this.#files.set(name, files);
  }

  /** A pause is requested. Call the result when it is acknowledged. */
  pausing(id: string): () => void {
    const before = { ...this.#resumesOf(id) };
    return () => {
      if (before.unanswered === 0 && this.#resumesOf(id).requested === before.requested) this.#paused.add(id);
    };
  }

  /** A resume is requested. Call the result when it is answered, or will never be. */
  resuming(id: string): () => void {
    this.#paused.delete(id);
    const resumes = this.#resumesOf(id);
    resumes.requested++;
    resumes.unanswered++;
    return () => {
      resumes.unanswered--;
    };
  }

  /** All VMs have been ended. */
  machineReset(): void {
    for (const id of this.#ids) if (!this.#paused.has(id)) this.#mayBeLost.add(id);
  }

  /** Nothing but a reset of the machine takes a capsule to `error`, and none that was paused. */
  assertLost(id: string, reason: string | null): void {
    assert.ok(this.#mayBeLost.has(id), `${id} is lost: ${reason}`);
  }

  #resumesOf(id: string): { requested: number; unanswered: number } {
    const found = this.#resumes.get(id) ?? { requested: 0, unanswered: 0 };
    this.#resumes.set(id, found);
    return found;
  }

  get templates(): string[] {
    return [...this.#templates];
  }

  /** Compares a list of capsules with the acknowledgements; `isAtRest`: no create is in progress. */
  assertListed(listed: string[], isAtRest: boolean): void {
    for (const id of listed) assert.ok(!this.#destroyed.has(id), `${id} is back after its DELETE`);
    if (!isAtRest) return;
    const expected = [...this.#ids].filter((id) => !this.#deleting.has(id) && !this.#destroyed.has(id));
    for (const id of expected) assert.ok(listed.includes(id), `${id} is missing`);
  }
}
