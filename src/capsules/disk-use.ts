/**
 * What capsules take on disk, looked up now and then and one after the other: a guest writes without asking, and nobody
 * waits for these figures.
 */
export interface DiskUseOptions {
  ids: () => string[];
  /** Bytes that the capsule's files take; 0 when there are none. */
  measure: (id: string) => Promise<number>;
}

export class DiskUse {
  readonly #options: DiskUseOptions;
  #bytes = new Map<string, number>();
  #measuring: Promise<void> | undefined;

  constructor(options: DiskUseOptions) {
    this.#options = options;
  }

  /** As of the last look; 0 for one not yet seen. */
  of(id: string): number {
    return this.#bytes.get(id) ?? 0;
  }

  /** Looks at all of them. One look at a time: whoever comes during one waits for it. */
  measure(): Promise<void> {
    this.#measuring ??= this.#lookAtAll().finally(() => {
      this.#measuring = undefined;
    });
    return this.#measuring;
  }

  async #lookAtAll(): Promise<void> {
    const found = new Map<string, number>();
    for (const id of this.#options.ids()) found.set(id, await this.#options.measure(id).catch(() => this.of(id)));
    this.#bytes = found;
  }
}
