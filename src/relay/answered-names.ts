/** The names that were answered to one capsule, by address: for connections that come with an address alone. */

const addressesMax = 4_096;
const namesMax = 16;

export class AnsweredNames {
  /** Names by address, last answered last. */
  readonly #names = new Map<number, Set<string>>();

  add(address: number, name: string): void {
    const names = this.#names.get(address) ?? new Set();
    names.delete(name);
    names.add(name);
    trim(names, namesMax);
    this.#names.delete(address);
    this.#names.set(address, names);
    trim(this.#names, addressesMax);
  }

  of(address: number): string[] {
    return [...(this.#names.get(address) ?? [])];
  }

  lastOf(address: number): string | undefined {
    return this.of(address).at(-1);
  }
}

function trim(kept: Map<number, unknown> | Set<string>, max: number): void {
  if (kept.size <= max) return;
  for (const oldest of kept.keys()) {
    kept.delete(oldest as never);
    return;
  }
}
