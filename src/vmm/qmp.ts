/**
 * A client of QMP, QEMU's control socket: one JSON object a line, answers matched to commands by id, events in between.
 * Behind the socket may sit a QEMU that its guest has taken over, so nothing it sends is trusted: lines are bounded, what
 * does not parse or does not fit ends the connection, and no command waits for ever.
 *
 * QEMU reads its monitor a byte at a time, some 4 µs each. So commands are kept short, and those that need not wait for each
 * other's answers are asked in one breath: QEMU takes them in order (docs/adr/0016).
 */
import { connect, type Socket } from "node:net";

const lineBytes = 1_048_576;
const pendingCommands = 64;
const commandDeadlineMs = 10_000;

export interface QmpEvent {
  name: string;
  data: Record<string, unknown>;
}

/** An error that QEMU answered a command with. */
export class QmpError extends Error {
  override name = "QmpError";
}

interface Pending {
  command: string;
  resolve(value: unknown): void;
  reject(error: Error): void;
  timer: NodeJS.Timeout;
}

type Message = Record<string, unknown>;

export class Qmp {
  /** Resolves when the connection is over, with the reason. Never rejects. */
  readonly closed: Promise<Error>;
  readonly #socket: Socket;
  readonly #onEvent: (event: QmpEvent) => void;
  readonly #pending = new Map<number, Pending>();
  readonly #greeted = Promise.withResolvers<void>();
  readonly #over = Promise.withResolvers<Error>();
  #parts: Buffer[] = [];
  #partBytes = 0;
  #lastId = 0;
  #isOver = false;

  /** Connects and negotiates. One client at a time: QEMU greets a second one only when the first has gone. */
  static async connect(path: string, onEvent: (event: QmpEvent) => void, deadlineMs: number): Promise<Qmp> {
    const qmp = new Qmp(connect(path), onEvent);
    const timer = setTimeout(() => qmp.#end(new Error(`No QMP greeting within ${deadlineMs} ms`)), deadlineMs);
    try {
      await qmp.#greeted.promise;
      await qmp.command("qmp_capabilities", {}, deadlineMs);
      return qmp;
    } catch (error) {
      qmp.close();
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  private constructor(socket: Socket, onEvent: (event: QmpEvent) => void) {
    this.#socket = socket;
    this.#onEvent = onEvent;
    this.closed = this.#over.promise;
    this.#greeted.promise.catch(() => {});
    socket.on("data", (chunk) => this.#take(chunk));
    socket.on("error", (error) => this.#end(error));
    socket.on("close", () => this.#end(new Error("QMP connection closed")));
  }

  /** Runs one command; its answer is whatever QEMU returned, and no more trustworthy than QEMU. */
  command(name: string, args: Record<string, unknown> = {}, deadlineMs = commandDeadlineMs): Promise<unknown> {
    if (this.#isOver) return Promise.reject(new Error(`QMP ${name}: the connection is closed`));
    if (this.#pending.size >= pendingCommands)
      return Promise.reject(new Error(`QMP ${name}: too many commands at once`));
    const id = ++this.#lastId;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#pending.delete(id);
        reject(new Error(`QMP ${name}: no answer within ${deadlineMs} ms`));
      }, deadlineMs);
      this.#pending.set(id, { command: name, resolve, reject, timer });
      this.#socket.write(`${JSON.stringify({ execute: name, arguments: isEmpty(args) ? undefined : args, id })}\n`);
    });
  }

  close(): void {
    this.#end(new Error("QMP connection closed by us"));
  }

  #take(chunk: Buffer): void {
    let rest = chunk;
    for (let end = rest.indexOf(10); end !== -1 && !this.#isOver; end = rest.indexOf(10)) {
      this.#keep(rest.subarray(0, end));
      const line = Buffer.concat(this.#parts, this.#partBytes);
      this.#parts = [];
      this.#partBytes = 0;
      rest = rest.subarray(end + 1);
      if (!this.#isOver && line.length > 1) this.#read(line);
    }
    if (!this.#isOver && rest.length > 0) this.#keep(rest);
  }

  #keep(part: Buffer): void {
    this.#partBytes += part.length;
    if (this.#partBytes > lineBytes) this.#end(new Error(`QMP sent a line of more than ${lineBytes} bytes`));
    else this.#parts.push(part);
  }

  #read(line: Buffer): void {
    const message = parse(line);
    if (message === null) this.#end(new Error("QMP sent something that is not a JSON object"));
    else if ("QMP" in message) this.#greeted.resolve();
    else if (typeof message.event === "string") {
      this.#onEvent({ name: message.event, data: isObject(message.data) ? message.data : {} });
    } else this.#answer(message);
  }

  #answer(message: Message): void {
    const pending = typeof message.id === "number" ? this.#pending.get(message.id) : undefined;
    if (pending === undefined) return; // given up on
    this.#pending.delete(message.id as number);
    clearTimeout(pending.timer);
    if ("return" in message) pending.resolve(message.return);
    else {
      const description = isObject(message.error) ? String(message.error.desc).slice(0, 1_000) : "no reason given";
      pending.reject(new QmpError(`QMP ${pending.command}: ${description}`));
    }
  }

  #end(reason: Error): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#socket.destroy();
    this.#parts = [];
    this.#greeted.reject(reason);
    for (const pending of this.#pending.values()) {
      clearTimeout(pending.timer);
      pending.reject(new Error(`QMP ${pending.command}: ${reason.message}`, { cause: reason }));
    }
    this.#pending.clear();
    this.#over.resolve(reason);
  }
}

function isEmpty(args: object): boolean {
  return Object.keys(args).length === 0;
}

function parse(line: Buffer): Message | null {
  try {
    const value: unknown = JSON.parse(line.toString("utf8"));
    return isObject(value) ? value : null;
  } catch {
    return null;
  }
}

export function isObject(value: unknown): value is Message {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
