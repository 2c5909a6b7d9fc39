/** The network port of a capsule's VM: as QEMU it takes one connection at a time, and the next one when that has ended. */
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { waitFor } from "../wait-for.ts";

export class GuestPort implements AsyncDisposable {
  readonly path: string;
  /** The messages of all connections, in order. */
  // biome-ignore lint/suspicious/noExplicitAny: tests read the fields that they expect
  readonly heard: any[] = [];
  /** How many connections there were, and how many are open. */
  connections = 0;
  open = 0;
  /** The most that were open at once. */
  openMost = 0;
  readonly #dir: string;
  readonly #server: net.Server;
  #socket: net.Socket | undefined;

  static async listen(): Promise<GuestPort> {
    const port = new GuestPort(await mkdtemp(path.join(tmpdir(), "guest-port-")));
    port.#server.listen(port.path);
    await once(port.#server, "listening");
    return port;
  }

  private constructor(dir: string) {
    this.#dir = dir;
    this.path = path.join(dir, "net.sock");
    this.#server = net.createServer((socket) => this.#serve(socket));
  }

  say(line: string): void {
    this.#socket?.write(`${line}\n`);
  }

  /** Resolves with the `count`th message of that kind. */
  // biome-ignore lint/suspicious/noExplicitAny: as above
  async message(kind: string, count = 1): Promise<any> {
    const found = () => this.heard.filter((each) => each.kind === kind)[count - 1];
    await waitFor(`message ${count} of kind ${kind}`, () => found() !== undefined);
    return found();
  }

  async closed(): Promise<void> {
    await waitFor("no connection is open", () => this.open === 0);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#socket?.destroy();
    this.#server.close();
    await rm(this.#dir, { recursive: true });
  }

  #serve(socket: net.Socket): void {
    this.connections++;
    this.openMost = Math.max(this.openMost, ++this.open);
    this.#socket = socket;
    socket.on("error", () => {});
    socket.on("close", () => this.open--);
    const lines = createInterface({ input: socket });
    lines.on("line", (line) => this.heard.push(JSON.parse(line)));
    lines.on("error", () => {}); // the relay was killed
  }
}
