/**
 * A client of qtest, QEMU's socket for its own tests: commands are lines of text, answered in order by "OK". It is used to write
 * guest memory as the guest itself would, so that QEMU drops its translations of the written pages. As with the monitor, QEMU
 * is not trusted to answer.
 */
import { connect, type Socket } from "node:net";
import { pageBytes } from "../memory/pagemap.ts";

const deadlineMs = 10_000;
/** QEMU allocates as much memory as one command writes. */
const pagesPerCommand = 256;
const commandsAtOnce = 1_024;
const okay = "OK\n";

/** Consecutive pages of guest memory, by their number. */
export interface Pages {
  page: number;
  count: number;
}

export class Qtest {
  readonly #socket: Socket;
  #expected = 0;
  #got = "";
  #waiting: { resolve(): void; reject(error: Error): void } | undefined;
  #end: Error | undefined;

  /** Rejects when the socket is not there. */
  static async connect(path: string): Promise<Qtest> {
    const socket = connect(path);
    await new Promise<void>((resolve, reject) => socket.once("connect", resolve).once("error", reject));
    return new Qtest(socket);
  }

  private constructor(socket: Socket) {
    this.#socket = socket;
    socket.on("data", (chunk) => this.#take(chunk));
    socket.on("error", (error) => this.#fail(error));
    socket.on("close", () => this.#fail(new Error("qtest connection closed")));
  }

  /** Fills pages of guest memory with zeros. Their numbers must be physical ones: below the gap under 4 GiB. One call at a time. */
  async clear(runs: Iterable<Pages>): Promise<void> {
    let commands: string[] = [];
    for (const { page, count } of runs) {
      for (let done = 0; done < count; done += pagesPerCommand) {
        const bytes = Math.min(pagesPerCommand, count - done) * pageBytes;
        commands.push(`memset 0x${((page + done) * pageBytes).toString(16)} 0x${bytes.toString(16)} 0x00\n`);
        if (commands.length < commandsAtOnce) continue;
        await this.#send(commands);
        commands = [];
      }
    }
    if (commands.length > 0) await this.#send(commands);
  }

  /** Resolves when all commands are answered. */
  async #send(commands: string[]): Promise<void> {
    if (this.#end !== undefined) throw this.#end;
    this.#expected = commands.length;
    const timer = setTimeout(() => this.#fail(new Error(`qtest: no answer within ${deadlineMs} ms`)), deadlineMs);
    try {
      await new Promise<void>((resolve, reject) => {
        this.#waiting = { resolve, reject };
        this.#socket.write(commands.join(""));
      });
    } finally {
      clearTimeout(timer);
      this.#waiting = undefined;
    }
  }

  close(): void {
    this.#fail(new Error("qtest connection closed by the client"));
  }

  #take(chunk: Buffer): void {
    this.#got += chunk.toString("latin1");
    let at = 0;
    for (; this.#expected > 0 && this.#got.startsWith(okay, at); this.#expected--) at += okay.length;
    this.#got = this.#got.slice(at);
    const rest = this.#got.slice(0, 80);
    const isAwaited = this.#expected > 0 ? okay.startsWith(rest) : rest === "";
    if (!isAwaited) this.#fail(new Error(`qtest answered ${JSON.stringify(rest)}`));
    else if (this.#expected === 0) this.#waiting?.resolve();
  }

  #fail(error: Error): void {
    this.#end ??= error;
    this.#socket.destroy();
    this.#waiting?.reject(this.#end);
  }
}
