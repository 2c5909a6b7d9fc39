/** A number per team, address or other key. Keys whose number is 0 take no memory. */
export class Counts {
  readonly #numbers = new Map<string, number>();

  of(key: string): number {
    return this.#numbers.get(key) ?? 0;
  }

  set(key: string, number: number): void {
    if (number === 0) this.#numbers.delete(key);
    else this.#numbers.set(key, number);
  }

  add(key: string): void {
    this.set(key, this.of(key) + 1);
  }

  subtract(key: string): void {
    this.set(key, this.of(key) - 1);
  }

  get sum(): number {
    return [...this.#numbers.values()].reduce((sum, number) => sum + number, 0);
  }

  /** Keys whose number is not 0. */
  get size(): number {
    return this.#numbers.size;
  }
}
