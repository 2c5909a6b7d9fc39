/** Bytes that may be held at once: for one capsule, within those for all. */

export class ByteBudget {
  maxBytes: number;
  readonly #within: ByteBudget | undefined;
  #bytes = 0;

  constructor(maxBytes: number, within?: ByteBudget) {
    this.maxBytes = maxBytes;
    this.#within = within;
  }

  get bytes(): number {
    return this.#bytes;
  }

  get isFull(): boolean {
    return this.#bytes >= this.maxBytes || this.#within?.isFull === true;
  }

  /** Takes them, however full it is: they are here already. */
  add(bytes: number): void {
    this.#bytes += bytes;
    this.#within?.add(bytes);
  }

  /** Takes as many as there is room for, all or none. */
  tryAdd(bytes: number): boolean {
    if (this.#bytes + bytes > this.maxBytes || this.#within?.tryAdd(bytes) === false) return false;
    this.#bytes += bytes;
    return true;
  }

  free(bytes: number): void {
    this.add(-bytes);
  }
}
