/** A number per team, address or other key. Keys whose number is 0 take no memory. */
export class Counts {
  readonly #numbers = new Map<string, number>();

  of(key: string): number {
    return this.#numbers.get(key) ?? 0;
  }

  set(key: string, number: number): void {
    if (number > 0) this.#numbers.set(key, number);
    else this.#numbers.delete(key);
  }

  add(key: string, amount = 1): void {
    this.set(key, this.of(key) + amount);
  }

  subtract(key: string, amount = 1): void {
    this.set(key, this.of(key) - amount);
  }

  get sum(): number {
    return [...this.#numbers.values()].reduce((sum, number) => sum + number, 0);
  }

  /** Keys whose number is not 0. */
  keys(): Iterable<string> {
    return this.#numbers.keys();
  }

  get size(): number {
    return this.#numbers.size;
  }
}
