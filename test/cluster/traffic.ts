/**
 * Traffic of several clients of the SDK, which never ends by itself, through a balancer as docs/operations/cluster.md has it: it knows
 * nothing of the API, tries another host where a connection is refused, and repeats what was sent only if it is a GET.
 */
import { request as httpRequest, type IncomingMessage } from "node:http";
import { Readable } from "node:stream";
import { setTimeout as delay } from "node:timers/promises";
import { Client } from "../../src/sdk/sdk.ts";
import { waitFor } from "../wait-for.ts";

/** Between two rounds of a client, which leaves the processor to the servers. */
const restMs = 50;

export class Balancer {
  readonly #urls: readonly string[];
  #turn = 0;
  /** Requests, and attempts that another host took over. */
  readonly counts = { sent: 0, refused: 0, repeated: 0 };

  constructor(urls: readonly string[]) {
    this.#urls = urls;
  }

  /** A client that repeats nothing itself. */
  client(apiKey: string): Client {
    const next = () => this.#next();
    class BalancedSocket extends WebSocket {
      constructor(url: string) {
        super(Object.assign(new URL(url), { host: new URL(next()).host }));
      }
    }
    const fetch = (input: string | URL | Request, init?: RequestInit) => this.#fetch(new Request(input, init));
    return new Client({ url: this.#urls[0]!, apiKey, retries: 0, fetch, WebSocket: BalancedSocket });
  }

  #next(): string {
    return this.#urls[this.#turn++ % this.#urls.length]!;
  }

  async #fetch(request: Request): Promise<Response> {
    const body = Buffer.from(await request.arrayBuffer());
    const [first, hosts] = [this.#turn++, this.#urls.length];
    this.counts.sent++;
    for (let attempt = 1; ; attempt++) {
      try {
        return await sendTo(this.#urls[(first + attempt) % hosts]!, request, body);
      } catch (error) {
        if (attempt === 2 * hosts || request.signal.aborted) throw error;
        if ((error as NodeJS.ErrnoException).syscall === "connect") this.counts.refused++;
        else if (request.method === "GET") this.counts.repeated++;
        else throw error;
      }
    }
  }
}

/** By a connection of its own. Resolves when the answer begins. */
function sendTo(host: string, { method, url, headers, signal }: Request, body: Buffer): Promise<Response> {
  const target = new URL(new URL(url).pathname + new URL(url).search, host);
  const { promise, resolve, reject } = Promise.withResolvers<Response>();
  const own = { ...Object.fromEntries(headers), ...(body.length > 0 ? { "content-length": body.length } : {}) };
  const sent = httpRequest(target, { method, headers: own, agent: false, signal }, (answer) =>
    resolve(asResponse(answer)),
  );
  sent.once("error", reject);
  sent.end(body);
  return promise;
}

function asResponse(answer: IncomingMessage): Response {
  const { statusCode = 0, headers } = answer;
  const isEmpty = statusCode === 204 || statusCode === 304;
  if (isEmpty) answer.resume();
  const body = isEmpty ? null : (Readable.toWeb(answer) as ReadableStream<Uint8Array>);
  return new Response(body, { status: statusCode, headers: headers as Record<string, string> });
}

/** One client's round, whose number it gets. */
export type Round = (count: number) => Promise<void>;

export class Traffic {
  readonly failures: string[] = [];
  readonly #rounds: Record<string, Round>;
  readonly #done = new Map<string, number>();
  readonly #ending = new AbortController();
  readonly #running: Promise<unknown>;
  /** Rounds that are under way. */
  #underWay = 0;
  /** Settled while rounds may begin. */
  #open = Promise.resolve();

  /** A client by each name begins at once. */
  constructor(rounds: Record<string, Round>) {
    this.#rounds = rounds;
    this.#running = Promise.all(Object.keys(rounds).map((name) => this.#run(name)));
  }

  /** Rounds that have ended, by client. */
  get done(): Record<string, number> {
    return Object.fromEntries(this.#done);
  }

  /** Resolves when each client has ended two more rounds: one of them has begun now. */
  async goesOn(): Promise<void> {
    const { done } = this;
    for (const name of Object.keys(this.#rounds)) {
      await waitFor(`rounds of ${name}`, () => (this.#done.get(name) ?? 0) >= (done[name] ?? 0) + 2);
    }
  }

  /** Resolves when no request is under way. None is sent until the returned function is called. */
  async hold(): Promise<() => void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#open = promise;
    await waitFor("the rounds under way to end", () => this.#underWay === 0);
    return resolve;
  }

  /** Resolves when the rounds under way have ended. */
  async end(): Promise<void> {
    this.#ending.abort();
    await this.#running;
  }

  async #run(name: string): Promise<void> {
    for (let count = 1; !this.#ending.signal.aborted; count++) {
      await this.#open;
      this.#underWay++;
      await this.#rounds[name]!(count).catch((error: Error) => {
        this.failures.push(
          `${new Date().toISOString()} ${name}, round ${count}: ${error.stack} ${String(error.cause ?? "")}`,
        );
      });
      this.#underWay--;
      this.#done.set(name, count);
      await delay(restMs, undefined, { signal: this.#ending.signal }).catch(() => {});
    }
  }
}
