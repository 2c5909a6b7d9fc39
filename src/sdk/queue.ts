/** An ordered queue with one `for await` reader. It has no limit itself: the pushing side checks `sizeBytes`. */
export class Queue<T> implements AsyncIterable<T> {
  readonly #items: { item: T; sizeBytes: number }[] = [];
  readonly #onTaken: () => void;
  #sizeBytes = 0;
  #end: { error?: unknown } | undefined;
  #wake: (() => void) | undefined;

  constructor(onTaken: () => void = () => {}) {
    this.#onTaken = onTaken;
  }

  /** Size of the pushed items that were not taken yet. */
  get sizeBytes(): number {
    return this.#sizeBytes;
  }

  get isEnded(): boolean {
    return this.#end !== undefined;
  }

  push(item: T, sizeBytes: number): void {
    if (this.#end !== undefined) return;
    this.#items.push({ item, sizeBytes });
    this.#sizeBytes += sizeBytes;
    this.#wake?.();
  }

  /** Items pushed before are still delivered. */
  end(): void {
    this.#end ??= {};
    this.#wake?.();
  }

  /** Items pushed before are delivered, then the error is thrown. */
  fail(error: unknown): void {
    this.#end ??= { error };
    this.#wake?.();
  }

  async next(): Promise<IteratorResult<T, undefined>> {
    for (;;) {
      const first = this.#items.shift();
      if (first !== undefined) {
        this.#sizeBytes -= first.sizeBytes;
        this.#onTaken();
        return { done: false, value: first.item };
      }
      if (this.#end !== undefined) {
        if ("error" in this.#end) throw this.#end.error;
        return { done: true, value: undefined };
      }
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  [Symbol.asyncIterator](): AsyncIterator<T, undefined> {
    return { next: () => this.next() };
  }
}
