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
  readonly #o: DiskUseOptions;
  #bytes = new Map<string, number>();
  #looking: Promise<void> | undefined;

  constructor(options: DiskUseOptions) {
    this.#o = options;
  }

  /** As of the last look; 0 for one not yet seen. */
  of(id: string): number {
    return this.#bytes.get(id) ?? 0;
  }

  /** Looks at all of them. One look at a time: whoever comes during one waits for it. */
  look(): Promise<void> {
    this.#looking ??= this.#lookAtAll().finally(() => {
      this.#looking = undefined;
    });
    return this.#looking;
  }

  async #lookAtAll(): Promise<void> {
    const found = new Map<string, number>();
    for (const id of this.#o.ids()) found.set(id, await this.#o.measure(id).catch(() => this.of(id)));
    this.#bytes = found;
  }
}
