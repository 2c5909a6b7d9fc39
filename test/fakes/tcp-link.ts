/** A TCP link between two hosts that a test cuts, blocks in one direction or both, leaves half open, or lets refuse. */
import { once } from "node:events";
import { connect, createServer, type Server, type Socket } from "node:net";
import { lastingPort } from "../lasting-port.ts";

interface Pair {
  client: Socket;
  server: Socket;
}

export class TcpLink implements AsyncDisposable {
  readonly port: number;
  readonly #to: number;
  readonly #pairs = new Set<Pair>();
  #server: Server | undefined;
  /** Connections that were made through it. */
  connections = 0;
  /** Bytes towards the server are kept back. */
  isDeafUp = false;
  /** Bytes from the server are kept back. */
  isDeafDown = false;

  static async to(port: number): Promise<TcpLink> {
    const link = new TcpLink(port, Number(await lastingPort()));
    await link.open();
    return link;
  }

  private constructor(to: number, port: number) {
    this.#to = to;
    this.port = port;
  }

  /** Takes connections, on the port that it had. */
  async open(): Promise<void> {
    const server = createServer({ allowHalfOpen: true }, (client) => this.#join(client));
    server.listen({ host: "127.0.0.1", port: this.port });
    await once(server, "listening");
    this.#server = server;
  }

  /** Refuses new connections, and resets the open ones. */
  async refuse(): Promise<void> {
    this.#server?.close();
    this.cut();
    if (this.#server?.listening === true) await once(this.#server, "close");
    this.#server = undefined;
  }

  /** Resets the open connections. */
  cut(): void {
    for (const { client, server } of this.#pairs) {
      reset(client);
      reset(server);
    }
    this.#pairs.clear();
  }

  /** The servers have ended their side, as a process that stops does. */
  end(): void {
    for (const { client } of this.#pairs) client.end();
  }

  /** Keeps all bytes back from now on; connections are still taken. */
  swallow(): void {
    this.isDeafUp = true;
    this.isDeafDown = true;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.refuse();
  }

  #join(client: Socket): void {
    this.connections++;
    const server = connect({ host: "127.0.0.1", port: this.#to, allowHalfOpen: true });
    const pair = { client, server };
    this.#pairs.add(pair);
    client.on("error", () => {}).on("close", () => this.#pairs.delete(pair));
    server.on("error", () => reset(client));
    client.on("data", (chunk) => {
      if (!this.isDeafUp) server.write(chunk);
    });
    server.on("data", (chunk) => {
      if (!this.isDeafDown) client.write(chunk);
    });
    client.on("end", () => server.end());
    client.on("close", () => server.destroy());
    server.on("end", () => {
      if (!this.isDeafDown) client.end();
    });
  }
}

/** A connection whose end is being sent cannot be reset: Node would keep it open. */
function reset(socket: Socket): void {
  if (socket.writableEnded) socket.destroy();
  else socket.resetAndDestroy();
}
