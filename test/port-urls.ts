/** Requests at the URLs of ports, as bytes over a connection of its own, and servers in a capsule that keep what they are sent. */
import { once } from "node:events";
import { type AddressInfo, connect, type Socket } from "node:net";
import type { Duplex } from "node:stream";
import type { NetworkPolicy } from "../src/network/policy.ts";
import { noNetwork } from "../src/network/policy.ts";
import { signPortToken } from "../src/network/port-tokens.ts";
import { type Api, keys } from "./api.ts";
import { waitFor } from "./wait-for.ts";

export class PortUrls {
  readonly #api: Api;
  readonly #open = new Set<Socket>();

  constructor(api: Api) {
    this.#api = api;
  }

  async listen(): Promise<void> {
    await this.#api.app.listen({ host: "127.0.0.1", port: 0 });
  }

  async close(): Promise<void> {
    for (const socket of this.#open) socket.destroy();
    await this.#api.app.close();
  }

  get port(): number {
    return (this.#api.app.server.address() as AddressInfo).port;
  }

  async connection(): Promise<Socket> {
    const socket = connect({ port: this.port, host: "127.0.0.1", allowHalfOpen: true }).on("error", () => {});
    this.#open.add(socket);
    socket.once("close", () => this.#open.delete(socket));
    await once(socket, "connect");
    return socket;
  }

  /** All that the server sends after these bytes, until it closes. */
  async exchange(bytes: string | Buffer): Promise<string> {
    const socket = await this.connection();
    socket.write(typeof bytes === "string" ? Buffer.from(bytes, "latin1") : bytes);
    const received = await this.received(socket, () => socket.readableEnded || socket.destroyed);
    socket.destroy();
    return received;
  }

  /** The server's bytes from now on, until `isEnough`. */
  async received(socket: Socket, isEnough: (text: string) => boolean): Promise<string> {
    let text = "";
    const onData = (chunk: Buffer) => {
      text += chunk.toString("latin1");
    };
    socket.on("data", onData);
    try {
      await waitFor("the answer", () => isEnough(text));
    } finally {
      socket.off("data", onData);
    }
    return text;
  }

  setNetwork(id: string, network: Partial<NetworkPolicy>): void {
    const { capsules, store } = this.#api.service;
    capsules.update((store.get(id) as { teamId: string }).teamId, id, { network: { ...noNetwork, ...network } });
  }

  token(id: string, port: number, lifeMs = 60_000, now = this.#api.service.teams.now()): string {
    const { capsules, store } = this.#api.service;
    const secret = capsules.networks.secret((store.get(id) as { teamId: string }).teamId, id);
    return signPortToken(secret, { id, port, expiresAt: now + lifeMs });
  }
}

/** A request's bytes, which close the connection. */
export function bytesOf(
  host: string,
  target: string,
  headers: readonly string[] = [],
  key: string | null = keys.red,
): string {
  const shown = key === null ? headers : [...headers, `X-API-Key: ${key}`];
  return [`GET ${target} HTTP/1.1`, `Host: ${host}`, "Connection: close", ...shown, "", ""].join("\r\n");
}

export interface ParsedAnswer {
  status: number;
  headers: string[];
  body: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests read the fields that they expect
  error: any;
}

export function parsed(text: string): ParsedAnswer {
  const end = text.indexOf("\r\n\r\n");
  const [line = "", ...headers] = text.slice(0, end).split("\r\n");
  const body = text.slice(end + 4);
  const isJson = headers.some((header) => /^content-type: application\/json/i.test(header));
  return { status: Number(line.split(" ")[1]), headers, body, error: isJson ? JSON.parse(body).error : undefined };
}

/** A server in a capsule. */
export class GuestServer {
  readonly connections: Duplex[] = [];
  readonly heard: string[] = [];

  /** `onBytes` is called with all that a connection has sent until now, after each chunk. */
  constructor(api: Api, id: string, port: number, onBytes: (connection: Duplex, text: string) => void) {
    api.agent(id).servers.set(port, (connection) => {
      const at = this.connections.push(connection) - 1;
      this.heard[at] = "";
      connection.on("data", (chunk: Buffer) => {
        this.heard[at] += chunk.toString("latin1");
        onBytes(connection, this.heard[at] as string);
      });
      connection.once("end", () => connection.end());
    });
  }

  /** Answers each request, once its head has come, and closes. */
  static answering(api: Api, id: string, port: number, answer: string): GuestServer {
    const answered = new WeakSet<Duplex>();
    return new GuestServer(api, id, port, (connection, text) => {
      if (!text.includes("\r\n\r\n") || answered.has(connection)) return;
      answered.add(connection);
      connection.end(Buffer.from(answer, "latin1"));
    });
  }
}

export const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
