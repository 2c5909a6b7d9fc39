/** A way to the database, or to a port, that a test cuts: connections are forwarded, refused, or held without a byte, both ways or one. */

import type { AddressInfo } from "node:net";
import { createConnection, createServer, type Socket } from "node:net";
import type { PostgresServer } from "./postgres-server.ts";

/** Bytes to the server, or bytes from it. */
export type Way = "requests" | "answers";

export class Link implements AsyncDisposable {
  readonly #server = createServer({ allowHalfOpen: true }, (socket) => this.#connected(socket));
  readonly #to: { path: string } | { host: string; port: number };
  readonly #sockets = new Map<Socket, Way>();
  #isCut = false;
  #held: readonly Way[] = [];

  private constructor(to: { path: string } | { host: string; port: number }) {
    this.#to = to;
  }

  static to(server: PostgresServer): Promise<Link> {
    return Link.#listening({ path: server.socket });
  }

  static toPort(port: number): Promise<Link> {
    return Link.#listening({ host: "127.0.0.1", port });
  }

  static async #listening(to: { path: string } | { host: string; port: number }): Promise<Link> {
    const link = new Link(to);
    await new Promise<void>((resolve) => link.#server.listen(0, "127.0.0.1", resolve));
    return link;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** The same database by this way. */
  urlOf(url: string): string {
    return `postgres://capsule@127.0.0.1:${this.port}${new URL(url).pathname}`;
  }

  get isOpen(): boolean {
    return !this.#isCut && this.#held.length === 0;
  }

  /** Ends the connections that there are. */
  cut(): void {
    this.#isCut = true;
    for (const socket of this.#sockets.keys()) socket.destroy();
  }

  /** Bytes stay in the link, as in a network that drops packets; default: both ways. Connections are made all the same. */
  hold(...ways: Way[]): void {
    this.#isCut = false;
    this.#held = ways.length === 0 ? ["requests", "answers"] : ways;
    for (const [socket, way] of this.#sockets) if (this.#held.includes(way)) socket.pause();
  }

  /** Bytes that were held go on their way. */
  open(): void {
    this.#isCut = false;
    this.#held = [];
    for (const socket of this.#sockets.keys()) socket.resume();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.cut();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  #connected(socket: Socket): void {
    if (this.#isCut) {
      socket.destroy();
      return;
    }
    const upstream = createConnection({ ...this.#to, allowHalfOpen: true });
    for (const [from, to, way] of [
      [socket, upstream, "requests"],
      [upstream, socket, "answers"],
    ] as const) {
      this.#sockets.set(from, way);
      from.on("data", (bytes) => {
        if (!to.write(bytes)) from.pause();
      });
      to.on("drain", () => {
        if (!this.#isCut && !this.#held.includes(way)) from.resume();
      });
      from.on("end", () => to.end());
      from.on("error", () => {});
      from.on("close", () => {
        this.#sockets.delete(from);
        to.destroy();
      });
      if (this.#held.includes(way)) from.pause();
    }
  }
}
