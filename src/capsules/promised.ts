/**
 * Capsules that are to be made or to get a VM, and wait for a decision about it: what they will use is promised to them. They have no
 * row, or no intent, by which others would see it.
 */
import { Counts } from "../counts.ts";
import type { Shape } from "../host/host.ts";
import type { Capsule } from "./store.ts";

export class Promised {
  /** By team. */
  readonly #starts = new Counts();
  readonly #capsules = new Counts();
  readonly #vcpus = new Counts();
  readonly #memoryMb = new Counts();
  /** Folders of capsules, and storages of their templates. */
  readonly #folders = new Counts();
  readonly #names = new Set<string>();

  /** A new capsule, until the result is disposed of. */
  capsule({ id, name, storage, ...row }: Capsule): Disposable {
    const stack = new DisposableStack();
    stack.use(this.start(row));
    this.#hold(stack, this.#capsules, row.teamId, 1);
    this.#hold(stack, this.#folders, id, 1);
    if (storage !== null) this.#hold(stack, this.#folders, storage, 1);
    stack.use(this.name(row.teamId, name));
    return stack;
  }

  /** The files of a template. */
  folder(storage: string): Disposable {
    const stack = new DisposableStack();
    this.#hold(stack, this.#folders, storage, 1);
    return stack;
  }

  /** A VM for a capsule. */
  start({ teamId, vcpus, memoryMb }: Pick<Capsule, "teamId"> & Shape): Disposable {
    const stack = new DisposableStack();
    this.#hold(stack, this.#starts, teamId, 1);
    this.#hold(stack, this.#vcpus, teamId, vcpus);
    this.#hold(stack, this.#memoryMb, teamId, memoryMb);
    return stack;
  }

  /** A free name. */
  name(teamId: string, name: string | null): Disposable {
    const stack = new DisposableStack();
    if (name === null) return stack;
    const claim = claimOf(teamId, name);
    this.#names.add(claim);
    stack.defer(() => this.#names.delete(claim));
    return stack;
  }

  hasName(teamId: string, name: string): boolean {
    return this.#names.has(claimOf(teamId, name));
  }

  /** A folder of a capsule or template without a row that needs it. */
  hasFolder(name: string): boolean {
    return this.#folders.of(name) > 0;
  }

  ofTeam(teamId: string): { starts: number; capsules: number; vcpus: number; memoryMb: number } {
    const [starts, capsules] = [this.#starts.of(teamId), this.#capsules.of(teamId)];
    return { starts, capsules, vcpus: this.#vcpus.of(teamId), memoryMb: this.#memoryMb.of(teamId) };
  }

  /** Memory promised to the capsules of all teams. */
  get memoryMb(): number {
    return this.#memoryMb.sum;
  }

  #hold(stack: DisposableStack, counts: Counts, key: string, amount: number): void {
    counts.add(key, amount);
    stack.defer(() => counts.subtract(key, amount));
  }
}

function claimOf(teamId: string, name: string): string {
  return JSON.stringify([teamId, name]);
}
