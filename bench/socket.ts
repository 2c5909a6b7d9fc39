/** A WebSocket of a capsule that carries JSON messages. */
import { WebSocket } from "ws";
import type { Service } from "./service.ts";

export interface Message {
  type: string;
  data?: string;
  exit_code?: number;
}

export class BenchSocket {
  readonly #socket: WebSocket;

  static async open(service: Service, path: string): Promise<BenchSocket> {
    const url = `${service.url.replace("http", "ws")}${path}`;
    const socket = new WebSocket(url, { headers: { "x-api-key": service.key }, perMessageDeflate: false });
    await new Promise<void>((opened, failed) => {
      socket.once("open", opened);
      socket.once("error", failed);
    });
    return new BenchSocket(socket);
  }

  private constructor(socket: WebSocket) {
    this.#socket = socket;
  }

  say(message: object): void {
    this.#socket.send(JSON.stringify(message));
  }

  /** Resolves with the next message for which `holds` is true. Rejects when the server closes first. */
  until(holds: (message: Message) => boolean): Promise<Message> {
    return new Promise((resolve, reject) => {
      const hear = (data: { toString(): string }) => {
        const message = JSON.parse(data.toString()) as Message;
        if (!holds(message)) return;
        this.#socket.off("message", hear);
        this.#socket.off("close", closed);
        resolve(message);
      };
      const closed = (code: number, reason: Buffer) => reject(new Error(`the socket was closed: ${code} ${reason}`));
      this.#socket.on("message", hear);
      this.#socket.once("close", closed);
    });
  }

  close(): void {
    this.#socket.close();
  }
}
