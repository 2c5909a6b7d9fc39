/** Blocks of code that inputs reach, with the order of magnitude of their runs, from V8's coverage counters. */
import { type Profiler, Session } from "node:inspector";

export class Coverage implements Disposable {
  readonly #session = new Session();
  readonly #watched: string;
  readonly #seen = new Set<string>();
  readonly #calls = new Map<string, number>();

  /** `watched`: part of the URLs of the sources. */
  constructor(watched: string) {
    this.#watched = watched;
    this.#session.connect();
    this.#post("Profiler.enable");
    this.#post("Profiler.startPreciseCoverage", { callCount: true, detailed: true });
  }

  get blocks(): number {
    return this.#seen.size;
  }

  /** Number of calls of functions of this name until the last reading. */
  callsOf(name: string): number {
    return this.#calls.get(name) ?? 0;
  }

  /** Blocks reached since the last call that have not been accepted yet. */
  newBlocks(): Set<string> {
    const found = new Set<string>();
    for (const { url, functions } of this.#readCounters()) {
      if (!url.includes(this.#watched)) continue;
      for (const { functionName, ranges } of functions) {
        this.#calls.set(functionName, this.callsOf(functionName) + (ranges[0]?.count ?? 0));
        for (const { startOffset, endOffset, count } of ranges) {
          const block = `${url}:${startOffset}:${endOffset}:${Math.floor(Math.log2(count))}`;
          if (count > 0 && !this.#seen.has(block)) found.add(block);
        }
      }
    }
    return found;
  }

  hasAll(blocks: Set<string>): boolean {
    return [...blocks].every((block) => this.#seen.has(block));
  }

  accept(blocks: Iterable<string>): void {
    for (const block of blocks) this.#seen.add(block);
  }

  #readCounters(): Profiler.ScriptCoverage[] {
    let coverage: Profiler.ScriptCoverage[] = [];
    this.#session.post("Profiler.takePreciseCoverage", (_error, { result }) => {
      coverage = result; // called synchronously, because the session is of this thread
    });
    return coverage;
  }

  #post(method: string, params: object = {}): void {
    this.#session.post(method, params, (error) => {
      if (error) throw error;
    });
  }

  [Symbol.dispose](): void {
    this.#session.disconnect();
  }
}
