/** A watch of the fake agent: a test says what it tells. */
import type { ChangeSink, ChangeStream, TakenChange, WatchRequest } from "../../src/agent/agent.ts";

export class FakeWatch implements ChangeStream {
  readonly request: WatchRequest;
  readonly sink: ChangeSink;
  isCancelled = false;
  readonly #changes: TakenChange[] = [];

  constructor(request: WatchRequest, sink: ChangeSink) {
    this.request = request;
    this.sink = sink;
  }

  /** Changes that were not taken. */
  get waiting(): number {
    return this.#changes.length;
  }

  tell(...changes: TakenChange[]): void {
    if (this.isCancelled) return;
    this.#changes.push(...changes);
    this.sink.available();
  }

  take(): TakenChange | undefined {
    return this.#changes[0] === "end" ? "end" : this.#changes.shift();
  }

  cancel(): void {
    this.isCancelled = true;
  }
}
