/**
 * A line of requests by path, such as the networks around a client, the largest first. The branches of each level are served in
 * turn, and requests with the same path in order of arrival. Memory is bounded by the requests that wait.
 */
export class NestedLine<T> {
  readonly #items = new Set<T>();
  readonly #branches = new Map<string, NestedLine<T>>();

  get size(): number {
    return [...this.#branches.values()].reduce((sum, branch) => sum + branch.size, this.#items.size);
  }

  get isEmpty(): boolean {
    return this.#items.size === 0 && this.#branches.size === 0;
  }

  add([name, ...rest]: readonly string[], item: T): void {
    if (name === undefined) {
      this.#items.add(item);
      return;
    }
    const branch = this.#branches.get(name) ?? new NestedLine<T>();
    this.#branches.set(name, branch);
    branch.add(rest, item);
  }

  /** Without effect when the item is not in the line. */
  remove([name, ...rest]: readonly string[], item: T): void {
    if (name === undefined) {
      this.#items.delete(item);
      return;
    }
    const branch = this.#branches.get(name);
    branch?.remove(rest, item);
    if (branch?.isEmpty) this.#branches.delete(name);
  }

  /** Takes the next item out of the line; its branch goes behind the others of its level. Undefined: the line is empty. */
  take(): T | undefined {
    const [first] = this.#items;
    if (first !== undefined) {
      this.#items.delete(first);
      return first;
    }
    const [next] = this.#branches;
    if (next === undefined) return undefined;
    const [name, branch] = next;
    const item = branch.take();
    this.#branches.delete(name);
    if (!branch.isEmpty) this.#branches.set(name, branch);
    return item;
  }
}
