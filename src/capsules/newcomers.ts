/**
 * Capsules that are given a VM made ahead of time, so many at once. In emulation such a guest computes for as long as its
 * client waits, and guests that alternate on a core find little of themselves in its caches afterwards: each of twenty at
 * once takes a third more of the processor than one of a few. So the others wait in line, and are let in as those before
 * them have had their first command, or are not given one.
 */
import { StartScheduler } from "../host/capacity/start-scheduler.ts";
import type { Activity } from "./activity.ts";

/** Until a client that has its capsule sends a command, if it does at once. */
const graceMs = 20;
/** For a start, or a command, that takes longer nobody behind waits. */
const longestMs = 100;

export class Newcomers {
  readonly #slots: StartScheduler;
  readonly #places = new Map<string, Place>();

  /** `most` at once; Infinity: nobody waits. */
  constructor(most: number, activity: Activity) {
    this.#slots = new StartScheduler(most);
    activity.onChange((id) => {
      if (activity.isBusy(id)) this.#places.get(id)?.begin();
      else this.#places.get(id)?.end();
    });
  }

  /** Resolves when it is this capsule's turn to start. When `unwanted` fires before, rejects with its reason. */
  enter(id: string, signal: AbortSignal): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const occupy = async () => {
      const place = new Place();
      this.#places.set(id, place);
      resolve();
      await place.left;
      this.#places.delete(id);
    };
    this.#slots.run(occupy, "now", signal).catch(reject);
    return promise;
  }

  /** Its start is over, well or not: from here on it is its client's to use. */
  arrived(id: string): void {
    this.#places.get(id)?.wait();
  }
}

/** One newcomer's, from its turn on. */
class Place {
  readonly left: Promise<void>;
  readonly #leave: () => void;
  #isAtWork = false;
  #timer: NodeJS.Timeout;

  constructor() {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.left = promise;
    this.#leave = resolve;
    this.#timer = setTimeout(resolve, longestMs);
  }

  /** For its first command. */
  wait(): void {
    if (this.#isAtWork) return;
    // A command may have come while the server was too busy to look.
    this.#leaveAfter(graceMs, () => setImmediate(() => this.#isAtWork || this.#leave()));
  }

  /** A command has come. */
  begin(): void {
    if (this.#isAtWork) return;
    this.#isAtWork = true;
    this.#leaveAfter(longestMs, this.#leave);
  }

  /** None is running. */
  end(): void {
    if (!this.#isAtWork) return;
    clearTimeout(this.#timer);
    this.#leave();
  }

  #leaveAfter(ms: number, leave: () => void): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(leave, ms);
  }
}
