/** The list of all that waits in a schedule: requests between hosts, actions of hosts and statements. One of them goes on at a time, by the seed. */
import type { Random } from "../../conformance/random.ts";
import { Life } from "./life.ts";

export interface Waiting {
  life: Life;
  what: string;
  goOn: () => void | Promise<void>;
}

/** Turns of the event loop after which code that was resumed waits for something of the schedule again. */
const turns = 2;

export class Scheduler {
  readonly random: Random;
  readonly trace: string[] = [];
  readonly #waiting: Waiting[] = [];

  constructor(random: Random) {
    this.random = random;
  }

  get waiting(): number {
    return this.#waiting.length;
  }

  note(line: string): void {
    this.trace.push(line);
  }

  add(waiting: Waiting): void {
    this.#waiting.push(waiting);
  }

  /** For code of a life: resolves when it is its turn. A life that is over waits for ever. */
  turn(what: string): Promise<void> {
    const life = Life.current;
    if (life === undefined) throw new Error(`${what} is asked for outside of every life`);
    const { promise, resolve } = Promise.withResolvers<void>();
    this.add({ life, what, goOn: resolve });
    return promise;
  }

  /** `isFirst`: the one that waits longest, instead of any. False: nothing waits. */
  async goOn(isFirst = false): Promise<boolean> {
    if (this.#waiting.length === 0) return false;
    const [next] = this.#waiting.splice(isFirst ? 0 : this.random.below(this.#waiting.length), 1);
    this.note(`${next!.life.name}: ${next!.what}`);
    await next!.goOn();
    return true;
  }

  drop(life: Life): void {
    life.isOver = true;
    const kept = this.#waiting.filter((each) => each.life !== life);
    this.#waiting.splice(0, this.#waiting.length, ...kept);
  }

  async quiet(): Promise<void> {
    for (let turn = 0; turn < turns; turn++) await new Promise<void>((resolve) => setImmediate(resolve));
  }

  chance(probability: number): boolean {
    return this.random.next() < probability;
  }

  pick<T>(of: readonly T[]): T {
    return of[this.random.below(of.length)]!;
  }
}
