/**
 * The HTTP server of connections that name a rule's host: it listens nowhere, and is given connections of guests. The requests of one
 * connection are answered one after the other.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import type { OpenInjectRule } from "../network/inject.ts";
import { firstBytesMax } from "./first-name.ts";
import { hostIn } from "./http-head.ts";
import { type ExchangeShared, InjectExchange, refuse } from "./inject-exchange.ts";
import { valuesOf } from "./inject-heads.ts";

/** Requests of one connection that wait for the answers before; more end it. */
const waitingMax = 16;

export interface InjectShared extends ExchangeShared {
  /** As they are at the time of a request. */
  inject: () => readonly OpenInjectRule[];
  /** False: the capsule opens connections too fast. */
  mayConnect: () => boolean;
}

interface Waiting {
  request: IncomingMessage;
  response: ServerResponse;
}

/** The requests of one connection. */
export class InjectRequests {
  readonly #shared: InjectShared;
  readonly #waiting: Waiting[] = [];
  #exchange: InjectExchange | undefined;
  #isBusy = false;
  #count = 0;

  constructor(shared: InjectShared) {
    this.#shared = shared;
  }

  /** Whether rules and policy, as they are now, let the request under way go on. */
  get isPermitted(): boolean {
    const exchange = this.#exchange;
    if (exchange === undefined) return true;
    return exchange.isPermitted && this.#shared.inject().some(({ host }) => host === exchange.host);
  }

  add(request: IncomingMessage, response: ServerResponse): void {
    this.#waiting.push({ request, response });
    if (this.#waiting.length > waitingMax) request.socket.destroy();
    else if (!this.#isBusy) void this.#work();
  }

  /** The connection has brought bytes that are no request. */
  malformed(socket: Duplex): void {
    if (this.#isBusy || !socket.writable) socket.destroy();
    else socket.end("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
  }

  async #work(): Promise<void> {
    this.#isBusy = true;
    for (let next = this.#waiting.shift(); next !== undefined; next = this.#waiting.shift()) {
      if (!next.response.destroyed && !next.request.socket.destroyed) await this.#answer(next);
    }
    this.#isBusy = false;
  }

  async #answer({ request, response }: Waiting): Promise<void> {
    const isFirst = this.#count++ === 0;
    const { rawHeaders, url = "", headers } = request;
    const hosts = valuesOf(rawHeaders, "host");
    const found = hosts.length === 1 ? hostIn(hosts[0]!) : undefined;
    if (found === undefined || !("name" in found) || !/^(?:\/|\*$)/.test(url)) {
      return refuse(response, 400, "a request needs one Host and a path as its target");
    }
    const isHttp = found.port === undefined || found.port === 80;
    const rule = isHttp ? this.#shared.inject().find(({ host }) => host === found.name) : undefined;
    if (rule === undefined) {
      this.#shared.note({ verdict: "denied", reason: "not listed", host: found.name, port: 80 });
      return refuse(response, 403, `${hosts[0]} is the host of no rule of this capsule's network.inject`);
    }
    const protocol = headers.upgrade;
    if (protocol !== undefined && !/^h2c$/i.test(protocol)) {
      return refuse(response, 501, "requests with injected headers cannot change the protocol");
    }
    if (!isFirst && !this.#shared.mayConnect()) {
      this.#shared.note({ verdict: "denied", reason: "limit", host: rule.host, port: 443 });
      return refuse(response, 429, "too many requests");
    }
    this.#exchange = new InjectExchange(request, response, rule, this.#shared);
    await this.#exchange.run();
    this.#exchange = undefined;
  }
}

const connections = new WeakMap<Duplex, InjectRequests>();
let server: Server | undefined;

/** Serves the requests that the connection brings. */
export function serveInjected(socket: Duplex, requests: InjectRequests): void {
  server ??= newServer();
  connections.set(socket, requests);
  server.emit("connection", socket);
}

function newServer(): Server {
  const add = (request: IncomingMessage, response: ServerResponse) =>
    connections.get(request.socket)?.add(request, response);
  const made = createServer({ maxHeaderSize: firstBytesMax, requireHostHeader: false, insecureHTTPParser: false }, add);
  made.on("checkContinue", add);
  made.on("clientError", (_error, socket) => connections.get(socket)?.malformed(socket));
  return Object.assign(made, { httpAllowHalfOpen: true }); // a request whose guest has ended its bytes is answered
}
