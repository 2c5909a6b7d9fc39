/**
 * In one turn of the event loop, one request of each team goes on to its body's parser and its handler; further ones wait for
 * the next turns, in order of arrival. A request of another team waits for one of them at most, however many the team sends
 * and whatever each costs, such as a commit that waits for the disk. After a large body the team's next turn comes later, so that
 * other teams' requests, which need several turns each, do not meet such a body in each of them. A request whose client disconnects
 * while it waits is dropped, and never handled. Large messages of WebSockets take turns of their team as requests do.
 *
 * All requests without a key share one turn, which goes to their networks in turn, the largest first.
 */
import type { ServerResponse } from "node:http";
import type { FastifyRequest } from "fastify";
import type { App } from "../route.ts";
import { NestedLine } from "./nested-line.ts";
import { nestedNetworks } from "./network.ts";

/** A request's response, or the connection of a WebSocket, as far as its end is noticed. */
export interface Ending {
  readonly closed: boolean;
  once(event: "close", onClosed: () => void): unknown;
  off(event: "close", onClosed: () => void): unknown;
}

/** Whose turn a request takes. `networks`: among which that turn is shared, the largest first. */
export interface TurnOwner {
  name: string;
  networks?: readonly string[];
}

/** Without a key. */
const keyless = "";
/** A body of so many bytes holds the turns of its team off for a millisecond: about twice what parsing and passing it on takes. */
export const pausedBytesPerMs = 65_536;

export class TeamTurns {
  /** Owners that have had their turn, and the time until which they wait for the next one. 0: until the next turn of the loop. */
  readonly #served = new Map<string, number>();
  readonly #waiting = new Map<string, NestedLine<() => void>>();
  #isSoon = false;
  /** Fires when the first of the owners may go on that have to wait for longer than a turn of the loop. */
  #later: NodeJS.Timeout | undefined;

  /**
   * Calls `next` at once when it is the first of its owner in this turn of the loop, or else in a later one, unless the response
   * is closed before. `bytes`: of its body.
   */
  enter(owner: TurnOwner, response: Ending, next: () => void, bytes = 0): void {
    if (this.#served.has(owner.name)) this.#wait(owner, response, () => this.#serve(owner.name, next, bytes));
    else this.#serve(owner.name, next, bytes);
  }

  /** Requests that wait. */
  get size(): number {
    return [...this.#waiting.values()].reduce((sum, line) => sum + line.size, 0);
  }

  #wait({ name, networks = [] }: TurnOwner, response: Ending, serve: () => void): void {
    if (response.closed) return;
    const line = this.#waiting.get(name) ?? new NestedLine();
    this.#waiting.set(name, line);
    const drop = () => {
      line.remove(networks, goOn);
      if (line.isEmpty) this.#waiting.delete(name);
    };
    const goOn = () => {
      response.off("close", drop);
      serve();
    };
    line.add(networks, goOn);
    response.once("close", drop);
  }

  #serve(name: string, next: () => void, bytes: number): void {
    this.#served.set(name, 0);
    this.#lookSoon();
    next();
    this.worked(name, bytes);
  }

  /** The pause for a body begins at the end of its work: call again in the same turn, when work on it goes on after `next`. */
  worked(name: string, bytes: number): void {
    const pauseMs = Math.floor(bytes / pausedBytesPerMs);
    if (pauseMs > 0) this.#served.set(name, performance.now() + pauseMs);
  }

  #lookSoon(): void {
    if (this.#isSoon) return;
    this.#isSoon = true;
    setImmediate(() => {
      this.#isSoon = false;
      this.#look();
    });
  }

  #look(): void {
    const now = performance.now();
    for (const [name, untilMs] of this.#served) if (untilMs <= now) this.#served.delete(name);
    for (const [name, line] of [...this.#waiting]) {
      if (this.#served.has(name)) continue;
      const goOn = line.take();
      if (line.isEmpty) this.#waiting.delete(name);
      goOn?.();
    }
    clearTimeout(this.#later);
    if (this.#isSoon || this.#served.size === 0) return;
    const untilMs = Math.min(...this.#served.values());
    this.#later = setTimeout(() => this.#look(), Math.ceil(untilMs - now));
  }
}

const entered = new WeakSet<FastifyRequest>();
/** A body's parser is given the request alone. */
const responses = new WeakMap<FastifyRequest, ServerResponse>();

/** The response to a request whose headers have been read. */
export function responseOf(request: FastifyRequest): ServerResponse {
  return responses.get(request) as ServerResponse;
}

/**
 * Call before a JSON body of so many bytes is parsed, which can cost more than the handler. Resolves with a function to be called when
 * it is parsed, in the same turn of the loop.
 */
export function enterTurn(turns: TeamTurns, request: FastifyRequest, bytes: number): Promise<() => void> {
  entered.add(request);
  const response = responses.get(request) as ServerResponse;
  const owner = ownerOf(request);
  const end = () => turns.worked(owner.name, bytes);
  return new Promise((resolve) => turns.enter(owner, response, () => resolve(end), bytes));
}

/** Call before the answer to a request that has waited, since many may have waited for the same. Resolves too when its client is gone. */
export function enterTurnAgain(turns: TeamTurns, request: FastifyRequest): Promise<void> {
  const response = responses.get(request) as ServerResponse;
  const { promise, resolve } = Promise.withResolvers<void>();
  const goOn = () => {
    response.off("close", goOn);
    resolve();
  };
  if (response.closed) resolve();
  response.once("close", goOn);
  turns.enter(ownerOf(request), response, goOn);
  return promise;
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

export function ownerOf({ identity, ip }: FastifyRequest): TurnOwner {
  return turnOwner((identity as FastifyRequest["identity"] | undefined)?.teamId, ip);
}

/** `teamId`: undefined without a key. */
export function turnOwner(teamId: string | undefined, ip: string): TurnOwner {
  return teamId === undefined ? { name: keyless, networks: nestedNetworks(ip) } : { name: teamId };
}
