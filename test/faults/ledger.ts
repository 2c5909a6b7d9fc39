/** What the service has acknowledged to several clients at once, and must therefore be true whatever has happened since. */
import assert from "node:assert/strict";

export class Ledger {
  /** Every id ever seen. */
  readonly #ids = new Set<string>();
  /** A DELETE, or a capture, was asked for and perhaps done. */
  readonly #destroyBegun = new Set<string>();
  readonly #destroyed = new Set<string>();
  /** Capsule or template → path → content. */
  readonly #files = new Map<string, Map<string, string>>();
  readonly #templates = new Set<string>();

  created(id: string): void {
    assert.ok(!this.#ids.has(id), `the id ${id} was used again`);
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

  destroyBegun(id: string): void {
    this.#destroyBegun.add(id);
  }

  destroyed(id: string): void {
    this.#destroyed.add(id);
  }

  /** `files`: those that were acknowledged before the capture began. */
  captured(id: string, name: string, files: Map<string, string>): void {
    this.destroyed(id);
    this.#templates.add(name);
    this.#files.set(name, files);
  }

  get templates(): string[] {
    return [...this.#templates];
  }

  /** Holds a list of capsules against what was acknowledged; `isAtRest`: no create is under way. */
  assertListed(listed: string[], isAtRest: boolean): void {
    for (const id of listed) assert.ok(!this.#destroyed.has(id), `${id} is back after its DELETE`);
    if (!isAtRest) return;
    const owed = [...this.#ids].filter((id) => !this.#destroyBegun.has(id) && !this.#destroyed.has(id));
    for (const id of owed) assert.ok(listed.includes(id), `${id} is forgotten`);
  }
}
