/** A way to the bucket that a test disturbs: each request is passed on, unless its rule says what happens in its place. */
import { createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { CephBucket } from "./ceph-server.ts";

/** One of these; `body` and `headers` go with `status`. */
export interface Disturbance {
  /** This answer, and nothing is passed on. */
  status?: number;
  body?: string;
  headers?: Record<string, string>;
  /** Passed on, and the connection ends after so many bytes of the answer's body, or without an answer that has no more. */
  cutAfter?: number;
  /** No answer, and nothing is passed on. */
  isHeld?: true;
  /** The connection ends without an answer, and nothing is passed on. */
  isCut?: true;
  /** Passed on with another body. */
  change?: (body: Buffer) => Buffer;
  /** A body that has no end. */
  isEndless?: true;
}

export interface Asked {
  method: string;
  /** Path below the bucket, or the query of a list. */
  name: string;
}

export class BucketLink implements AsyncDisposable {
  /** Asked for each request, in the order in which they come. */
  rule: (asked: Asked) => Disturbance | undefined = () => undefined;
  readonly asked: Asked[] = [];
  readonly #server = createServer(
    (incoming, answer) => void this.#pass(incoming, answer).catch(() => answer.destroy()),
  );
  readonly #to: URL;

  private constructor(to: string) {
    this.#to = new URL(to);
  }

  /** `bucket` of the result: the same one by this way. */
  static async to(bucket: CephBucket): Promise<{ link: BucketLink; bucket: CephBucket }> {
    const link = new BucketLink(bucket.url);
    await new Promise<void>((resolve) => link.#server.listen(0, "127.0.0.1", resolve));
    const { port } = link.#server.address() as AddressInfo;
    return { link, bucket: { ...bucket, url: `http://127.0.0.1:${port}${link.#to.pathname}` } };
  }

  /** Ends the connections of the requests that are held. */
  drop(): void {
    this.#server.closeAllConnections();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.drop();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async #pass(incoming: IncomingMessage, answer: ServerResponse): Promise<void> {
    const { method = "", url = "" } = incoming;
    const asked = { method, name: decodeURIComponent(url.slice(this.#to.pathname.length + 1)) };
    this.asked.push(asked);
    const { status, body: said, headers: more, cutAfter, isHeld, isCut, change, isEndless } = this.rule(asked) ?? {};
    const body = Buffer.concat((await incoming.toArray()) as Buffer[]);
    if (isHeld) return;
    if (isCut) {
      answer.destroy();
      return;
    }
    if (status !== undefined) {
      answer.writeHead(status, more).end(said);
      return;
    }
    if (isEndless) {
      writeOn(answer.writeHead(200));
      return;
    }
    const { statusCode, headers, content } = await this.#ask(incoming, change?.(body) ?? body);
    // An answer without a body is whole with its head.
    if (cutAfter !== undefined && content.length <= cutAfter) {
      answer.destroy();
      return;
    }
    answer.writeHead(statusCode, headers);
    if (cutAfter === undefined) answer.end(content);
    else answer.write(content.subarray(0, cutAfter), () => answer.destroy());
  }

  async #ask({ method, url, headers }: IncomingMessage, body: Buffer) {
    const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
    const { hostname, port } = this.#to;
    const asking = request({ hostname, port, method, path: url, headers, agent: false }, resolve);
    asking.on("error", reject).end(body);
    const answered = await promise;
    const content = Buffer.concat((await answered.toArray()) as Buffer[]);
    const { "transfer-encoding": _, ...kept } = answered.headers;
    return { statusCode: answered.statusCode ?? 0, headers: kept, content };
  }
}

function writeOn(answer: ServerResponse): void {
  const part = Buffer.alloc(64 * 1024);
  const more = () => {
    while (!answer.destroyed && answer.write(part));
  };
  answer.on("drain", more);
  more();
}
