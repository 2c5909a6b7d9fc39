/** Which blocks of the watched sources an input reaches, how often roughly: V8's own counters, read between inputs. */
import { type Profiler, Session } from "node:inspector";

export class Coverage implements Disposable {
  readonly #session = new Session();
  readonly #watched: string;
  readonly #seen = new Set<string>();
  readonly #calls = new Map<string, number>();

  /** `watched`: what the sources' URLs contain. */
  constructor(watched: string) {
    this.#watched = watched;
    this.#session.connect();
    this.#post("Profiler.enable");
    this.#post("Profiler.startPreciseCoverage", { callCount: true, detailed: true });
  }

  get blocks(): number {
    return this.#seen.size;
  }

  /** How often a function of this name was called, as of the last look. */
  callsOf(name: string): number {
    return this.#calls.get(name) ?? 0;
  }

  /** What was reached since the last call and never before it was accepted. */
  news(): Set<string> {
    const found = new Set<string>();
    for (const { url, functions } of this.#take()) {
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

  knows(news: Set<string>): boolean {
    return [...news].every((block) => this.#seen.has(block));
  }

  accept(news: Iterable<string>): void {
    for (const block of news) this.#seen.add(block);
  }

  #take(): Profiler.ScriptCoverage[] {
    let taken: Profiler.ScriptCoverage[] = [];
    this.#session.post("Profiler.takePreciseCoverage", (_error, { result }) => {
      taken = result; // within the call: the session is our own thread's
    });
    return taken;
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
