/**
 * In one turn of the event loop, one request of each team goes on to its body's parser and its handler; further ones wait for
 * the next turns, in order of arrival. A request of another team waits for one of them at most, however many the team sends
 * and whatever each costs, such as a commit that waits for the disk.
 */
import type { FastifyRequest } from "fastify";
import type { App } from "../route.ts";
import { networkOf } from "./network.ts";

export class TeamTurns {
  /** Owners that have had their turn in this turn of the loop. */
  readonly #served = new Set<string>();
  readonly #waiting = new Map<string, (() => void)[]>();
  #isScheduled = false;

  /** Calls `next` at once when it is the first of its owner in this turn of the loop, or else in a later one. */
  enter(owner: string, next: () => void): void {
    if (this.#served.has(owner)) {
      const queue = this.#waiting.get(owner);
      if (queue === undefined) this.#waiting.set(owner, [next]);
      else queue.push(next);
      return;
    }
    this.#serve(owner, next);
  }

  #serve(owner: string, next: () => void): void {
    this.#served.add(owner);
    this.#schedule();
    next();
  }

  #schedule(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    setImmediate(() => {
      this.#isScheduled = false;
      this.#served.clear();
      for (const [owner, queue] of [...this.#waiting]) {
        const next = queue.shift();
        if (queue.length === 0) this.#waiting.delete(owner);
        if (next !== undefined) this.#serve(owner, next);
      }
    });
  }
}

const entered = new WeakSet<FastifyRequest>();

/** Call before a JSON body is parsed, which can cost more than the handler. */
export function enterTurn(turns: TeamTurns, request: FastifyRequest): Promise<void> {
  entered.add(request);
  return new Promise((resolve) => turns.enter(ownerOf(request), resolve));
}

/** For the requests that have not entered before a body of theirs was parsed. */
export function takeTurns(app: App, turns: TeamTurns): void {
  app.addHook("preValidation", (request, _reply, done) => {
    if (entered.has(request)) done();
    else turns.enter(ownerOf(request), done);
  });
}

/** Requests without a key share the turns of their network. */
function ownerOf({ identity, ip }: FastifyRequest): string {
  return (identity as FastifyRequest["identity"] | undefined)?.teamId ?? networkOf(ip);
}
