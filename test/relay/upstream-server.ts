/** An HTTPS server of a test, and a dialler that leads every address to it. */
import { once } from "node:events";
import type { IncomingMessage, ServerResponse } from "node:http";
import { createServer, type Server } from "node:https";
import type { AddressInfo } from "node:net";
import type { Duplex } from "node:stream";
import { rangeOf } from "../../src/network/destinations.ts";
import { type Dialled, type Dialler, type DialOptions, TcpDialler } from "../../src/relay/dialler.ts";
import type { ServerKey } from "./certificates.ts";

const loopback = rangeOf("127.0.0.1")!.first;

export interface Seen {
  method: string | undefined;
  url: string | undefined;
  raw: string[];
  body: string;
  trailers: string[];
}

export class UpstreamServer implements AsyncDisposable {
  readonly #server: Server;
  readonly #sockets = new Set<Duplex>();
  /** Requests whose body has come whole. */
  readonly seen: Seen[] = [];
  /** Bytes that came inside of TLS. */
  bytes = 0;
  /** Answers each request; its body was read before. */
  answer: (request: IncomingMessage, response: ServerResponse, body: string) => void = (_request, response, body) =>
    response.end(`answer to ${body.length} bytes`);
  /** Called at the head of each request instead of reading its body. */
  onHead: ((request: IncomingMessage, response: ServerResponse) => void) | undefined;

  constructor(key: ServerKey) {
    this.#server = createServer(key, (request, response) => void this.#serve(request, response));
    this.#server.on("secureConnection", (socket) => socket.on("data", (chunk: Buffer) => (this.bytes += chunk.length)));
    this.#server.on("connection", (socket) => this.#sockets.add(socket));
    this.#server.on("tlsClientError", () => {});
  }

  async listen(): Promise<this> {
    this.#server.listen(0, "127.0.0.1");
    await once(this.#server, "listening");
    return this;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (this.onHead !== undefined) return this.onHead(request, response);
    let body = "";
    for await (const chunk of request) body += (chunk as Buffer).toString("latin1");
    const { method, url, rawHeaders: raw, rawTrailers: trailers } = request;
    this.seen.push({ method, url, raw, body, trailers });
    this.answer(request, response, body);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
    await once(this.#server, "close");
  }
}

/** Notes what is dialled; port 443 of every address is the server, all other ports refuse. */
export class ServerDialler implements Dialler {
  readonly dialled: string[] = [];
  readonly #tcp = new TcpDialler();
  readonly #port: number;

  constructor(port: number) {
    this.#port = port;
  }

  async dial(addresses: readonly number[], port: number, options: DialOptions): Promise<Dialled> {
    this.dialled.push(
      `${addresses.map((each) => [24, 16, 8, 0].map((by) => (each >>> by) & 255).join(".")).join()}:${port}`,
    );
    if (port !== 443) return { failure: "refused" };
    return await this.#tcp.dial([loopback], this.#port, { ...options, isGranted: true });
  }
}
