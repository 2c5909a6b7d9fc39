/** A way to the database that a test cuts: connections are forwarded, refused, or held without a byte. */

import type { AddressInfo } from "node:net";
import { createConnection, createServer, type Socket } from "node:net";
import type { PostgresServer } from "./postgres-server.ts";

export class Link implements AsyncDisposable {
  readonly #server = createServer((socket) => this.#connected(socket));
  readonly #to: string;
  readonly #sockets = new Set<Socket>();
  /** `held`: what is sent goes nowhere, as in a network that drops packets. */
  #state: "open" | "cut" | "held" = "open";

  private constructor(to: string) {
    this.#to = to;
  }

  static async to(server: PostgresServer): Promise<Link> {
    const link = new Link(server.socket);
    await new Promise<void>((resolve) => link.#server.listen(0, "127.0.0.1", resolve));
    return link;
  }

  /** The same database by this way. */
  urlOf(url: string): string {
    const { port } = this.#server.address() as AddressInfo;
    return `postgres://capsule@127.0.0.1:${port}${new URL(url).pathname}`;
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
    const upstream = createConnection(this.#to);
    for (const [from, to] of [
      [socket, upstream],
      [upstream, socket],
    ] as const) {
      this.#sockets.add(from);
      from.on("data", (bytes) => to.write(bytes));
      from.on("error", () => {});
      from.on("close", () => {
        this.#sockets.delete(from);
        to.destroy();
      });
      if (this.#state === "held") from.pause();
    }
  }
}
