/** A way to the database, or to a port, that a test cuts: connections are forwarded, refused, or held without a byte. */

import type { AddressInfo } from "node:net";
import { createConnection, createServer, type Socket } from "node:net";
import type { PostgresServer } from "./postgres-server.ts";

export class Link implements AsyncDisposable {
  readonly #server = createServer({ allowHalfOpen: true }, (socket) => this.#connected(socket));
  readonly #to: { path: string } | { host: string; port: number };
  readonly #sockets = new Set<Socket>();
  /** `held`: what is sent goes nowhere, as in a network that drops packets. */
  #state: "open" | "cut" | "held" = "open";

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
    return this.#state === "open";
  }

  /** Ends the connections that there are. */
  cut(): void {
    this.#state = "cut";
    for (const socket of this.#sockets) socket.destroy();
  }

  hold(): void {
    this.#state = "held";
    for (const socket of this.#sockets) socket.pause();
  }

  open(): void {
    this.#state = "open";
    for (const socket of this.#sockets) socket.resume();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.cut();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  #connected(socket: Socket): void {
    if (this.#state === "cut") {
      socket.destroy();
      return;
    }
    const upstream = createConnection({ ...this.#to, allowHalfOpen: true });
    for (const [from, to] of [
      [socket, upstream],
      [upstream, socket],
    ] as const) {
      this.#sockets.add(from);
      from.on("data", (bytes) => {
        if (!to.write(bytes)) from.pause();
      });
      to.on("drain", () => {
        if (this.#state === "open") from.resume();
      });
      from.on("end", () => to.end());
      from.on("error", () => {});
      from.on("close", () => {
        this.#sockets.delete(from);
        to.destroy();
      });
      if (this.#state === "held") from.pause();
    }
  }
}
