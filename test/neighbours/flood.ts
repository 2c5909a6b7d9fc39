/** A thread that sends one team's requests as fast as they are answered, each on one of many connections. */
import { once } from "node:events";
import http from "node:http";
import { isMainThread, parentPort, Worker, workerData } from "node:worker_threads";

/** Requests that each connection sends in turn. In a later path, `{id}` is the id of the last answer with one. */
export type Round = readonly { method: string; path: string; body?: string }[];

export interface FloodOptions {
  url: string;
  key: string;
  connections: number;
  round: Round;
}

export class Flood implements AsyncDisposable {
  readonly #worker: Worker;
  readonly #answers: Promise<unknown>;

  /** Resolves when each connection has had an answer. */
  static async begin(options: FloodOptions): Promise<Flood> {
    const worker = new Worker(new URL(import.meta.url), { workerData: options });
    await once(worker, "message");
    return new Flood(worker);
  }

  private constructor(worker: Worker) {
    this.#worker = worker;
    this.#answers = once(worker, "message").then(([answers]) => answers);
  }

  /** Ends it; the number of answers by status. */
  async end(): Promise<Record<number, number>> {
    this.#worker.postMessage("end");
    return (await this.#answers) as Record<number, number>;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#worker.terminate();
  }
}

async function send({ url, key, connections, round }: FloodOptions): Promise<void> {
  const agent = new http.Agent({ keepAlive: true, maxSockets: connections });
  const answers: Record<number, number> = {};
  let isOver = false;
  parentPort!.once("message", () => {
    isOver = true;
  });
  const ask = async (method: string, path: string, body?: string) => {
    const request = http.request(new URL(path, url), { method, agent, headers: headersOf(key, body) });
    request.end(body);
    const [response] = (await once(request, "response")) as [http.IncomingMessage];
    const text = (await response.setEncoding("utf8").toArray()).join("");
    answers[response.statusCode!] = (answers[response.statusCode!] ?? 0) + 1;
    return text;
  };
  const talk = async (first: () => void) => {
    for (let id = ""; !isOver; ) {
      for (const { method, path, body } of round) {
        const text = await ask(method, path.replace("{id}", id), body);
        first();
        if (path !== path.replace("{id}", "")) continue;
        id = (/"id":"([^"]+)"/.exec(text) ?? [])[1] ?? id;
      }
    }
  };
  let heard = 0;
  const talks = Array.from({ length: connections }, () => {
    let isFirst = true;
    return talk(() => {
      if (isFirst && ++heard === connections) parentPort!.postMessage("all are answered");
      isFirst = false;
    });
  });
  await Promise.all(talks);
  agent.destroy();
  parentPort!.postMessage(answers);
}

function headersOf(key: string, body: string | undefined): http.OutgoingHttpHeaders {
  return { "x-api-key": key, ...(body === undefined ? {} : { "content-type": "application/json" }) };
}

if (!isMainThread) await send(workerData as FloodOptions);
