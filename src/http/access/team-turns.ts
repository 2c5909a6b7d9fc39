/**
 * In one turn of the event loop, one request of each team goes on to its body's parser and its handler; further ones wait for
 * the next turns, in order of arrival. A request of another team waits for one of them at most, however many the team sends
 * and whatever each costs, such as a commit that waits for the disk. A request whose client disconnects while it waits is dropped,
 * and never handled.
 */
import type { ServerResponse } from "node:http";
import type { FastifyRequest } from "fastify";
import type { App } from "../route.ts";
import { networkOf } from "./network.ts";

/** A request's response, as far as its end is noticed. */
export type Ending = Pick<ServerResponse, "closed" | "once" | "off">;

export class TeamTurns {
  /** Owners that have had their turn in this turn of the loop. */
  readonly #served = new Set<string>();
  readonly #waiting = new Map<string, Set<() => void>>();
  #isScheduled = false;

  /**
   * Calls `next` at once when it is the first of its owner in this turn of the loop, or else in a later one, unless the response
   * is closed before.
   */
  enter(owner: string, response: Ending, next: () => void): void {
    if (this.#served.has(owner)) this.#wait(owner, response, next);
    else this.#serve(owner, next);
  }

  /** Requests that wait. */
  get size(): number {
    return [...this.#waiting.values()].reduce((sum, queue) => sum + queue.size, 0);
  }

  #wait(owner: string, response: Ending, next: () => void): void {
    if (response.closed) return;
    const queue = this.#waiting.get(owner) ?? new Set();
    this.#waiting.set(owner, queue);
    const drop = () => {
      queue.delete(goOn);
      if (queue.size === 0) this.#waiting.delete(owner);
    };
    const goOn = () => {
      response.off("close", drop);
      next();
    };
    queue.add(goOn);
    response.once("close", drop);
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
        const [next] = queue;
        if (next === undefined) continue;
        queue.delete(next);
        if (queue.size === 0) this.#waiting.delete(owner);
        this.#serve(owner, next);
      }
    });
  }
}

const entered = new WeakSet<FastifyRequest>();
/** A body's parser is given the request alone. */
const responses = new WeakMap<FastifyRequest, ServerResponse>();

/** Call before a JSON body is parsed, which can cost more than the handler. */
export function enterTurn(turns: TeamTurns, request: FastifyRequest): Promise<void> {
  entered.add(request);
  const response = responses.get(request) as ServerResponse;
  return new Promise((resolve) => turns.enter(ownerOf(request), response, resolve));
}

/** For the requests that have not entered before a body of theirs was parsed. */
export function takeTurns(app: App, turns: TeamTurns): void {
  app.addHook("onRequest", (request, reply, done) => {
    responses.set(request, reply.raw);
    done();
  });
  app.addHook("preValidation", (request, reply, done) => {
    if (entered.has(request)) done();
    else turns.enter(ownerOf(request), reply.raw, done);
  });
}

/** Requests without a key share the turns of their network. */
function ownerOf({ identity, ip }: FastifyRequest): string {
  return (identity as FastifyRequest["identity"] | undefined)?.teamId ?? networkOf(ip);
}
