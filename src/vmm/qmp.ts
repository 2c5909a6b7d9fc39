/**
 * A client of QMP, QEMU's control socket: one JSON object per line, answers matched to commands by id, events in
 * between. The QEMU may be compromised, so its output is not trusted: lines have a maximum length, a line that does not
 * parse ends the connection, as do more than 1 000 lines or 256 KiB in a second that answer no command, and every command
 * has a deadline. Reads in one tick of the event loop have a bound of time.
 *
 * QEMU reads its monitor byte by byte, at about 4 µs each. So commands are short, and independent commands are sent
 * without waiting for each other's answers; QEMU runs them in order (docs/adr/0016).
 */
import { connect, type Socket } from "node:net";

const maxLineBytes = 1_048_576;
const maxPending = 64;
/** Events, and other lines that answer no command, in one window. QEMU sends a few per change of a VM's state. */
const maxUnsolicited = 1_000;
/** Parsing 1 MiB takes some 10 ms, so these lines are bounded in bytes too. */
const maxUnsolicitedBytes = 262_144;
const maxUnsolicitedLineBytes = 65_536;
const unsolicitedWindowMs = 1_000;
const commandDeadlineMs = 10_000;
/** Time for which one connection is read in one tick of the event loop; the last chunk may exceed it. */
const tickShareMs = 0.5;

export interface QmpEvent {
  name: string;
  data: Record<string, unknown>;
}

/** QEMU's error answer to a command. */
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
  /** Resolves with the reason when the connection has ended. Never rejects. */
  readonly closed: Promise<Error>;
  readonly #socket: Socket;
  readonly #onEvent: (event: QmpEvent) => void;
  readonly #pending = new Map<number, Pending>();
  readonly #greeted = Promise.withResolvers<void>();
  readonly #closed = Promise.withResolvers<Error>();
  #lineParts: Buffer[] = [];
  #lineBytes = 0;
  #lastId = 0;
  #isClosed = false;
  #unsolicited = 0;
  #unsolicitedBytes = 0;
  #windowStart = 0;
  /** Time spent on reading in this tick of the event loop. */
  #tickMs = 0;
  #isTickOpen = false;

  /**
   * Connects and negotiates. QEMU serves one client at a time, and sends its greeting to the next one after the first has
   * disconnected.
   */
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
    this.closed = this.#closed.promise;
    this.#greeted.promise.catch(() => {});
    socket.on("data", (chunk) => this.#receiveInTick(chunk));
    socket.on("error", (error) => this.#end(error));
    socket.on("close", () => this.#end(new Error("QMP connection closed")));
  }

  /** Runs one command. The answer is untrusted: the caller checks its type. */
  command(name: string, args: Record<string, unknown> = {}, deadlineMs = commandDeadlineMs): Promise<unknown> {
    if (this.#isClosed) return Promise.reject(new Error(`QMP ${name}: the connection is closed`));
    if (this.#pending.size >= maxPending) return Promise.reject(new Error(`QMP ${name}: too many commands at once`));
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
    this.#end(new Error("QMP connection closed by the daemon"));
  }

  /** Reads on in the next tick when this one's share is used up. */
  #receiveInTick(chunk: Buffer): void {
    const before = performance.now();
    this.#receive(chunk);
    if (!this.#isTickOpen) setImmediate(() => this.#endTick());
    this.#isTickOpen = true;
    this.#tickMs += performance.now() - before;
    if (this.#tickMs >= tickShareMs) this.#socket.pause();
  }

  #endTick(): void {
    const isPaused = this.#tickMs >= tickShareMs;
    this.#tickMs = 0;
    this.#isTickOpen = false;
    if (isPaused) this.#socket.resume();
  }

  #receive(chunk: Buffer): void {
    let rest = chunk;
    for (let end = rest.indexOf(10); end !== -1 && !this.#isClosed; end = rest.indexOf(10)) {
      this.#append(rest.subarray(0, end));
      const line = Buffer.concat(this.#lineParts, this.#lineBytes);
      this.#lineParts = [];
      this.#lineBytes = 0;
      rest = rest.subarray(end + 1);
      if (!this.#isClosed) this.#read(line);
    }
    if (!this.#isClosed && rest.length > 0) this.#append(rest);
  }

  #append(part: Buffer): void {
    this.#lineBytes += part.length;
    if (this.#lineBytes > maxLineBytes) this.#end(new Error(`QMP sent a line of more than ${maxLineBytes} bytes`));
    else this.#lineParts.push(part);
  }

  #read(line: Buffer): void {
    // While no command waits the line answers none, and is counted before it is parsed.
    const mayAnswer = this.#pending.size > 0;
    if (!mayAnswer && !this.#mayBeUnsolicited(line.length)) return;
    const message = line.length <= 1 ? {} : parse(line);
    if (message === null) {
      this.#end(new Error("QMP sent a line that is not a JSON object"));
      return;
    }
    if (mayAnswer && (this.#answer(message) || !this.#mayBeUnsolicited(line.length))) return;
    if ("QMP" in message) this.#greeted.resolve();
    else if (typeof message.event === "string") {
      this.#onEvent({ name: message.event, data: isObject(message.data) ? message.data : {} });
    }
  }

  /** Counts a line that answers no command. False: it is one too many, and the connection has ended. */
  #mayBeUnsolicited(bytes: number): boolean {
    const now = performance.now();
    if (now - this.#windowStart >= unsolicitedWindowMs) {
      this.#windowStart = now;
      this.#unsolicited = 0;
      this.#unsolicitedBytes = 0;
    }
    this.#unsolicited += 1;
    this.#unsolicitedBytes += bytes;
    let reason: string | undefined;
    if (bytes > maxUnsolicitedLineBytes) reason = `a line of more than ${maxUnsolicitedLineBytes} bytes that answers`;
    else if (this.#unsolicited > maxUnsolicited) reason = `more than ${maxUnsolicited} lines in a second that answer`;
    else if (this.#unsolicitedBytes > maxUnsolicitedBytes)
      reason = `more than ${maxUnsolicitedBytes} bytes in a second that answer`;
    if (reason !== undefined) this.#end(new Error(`QMP sent ${reason} no command`));
    return reason === undefined;
  }

  /** False when the message answers no command, or one whose deadline has passed. */
  #answer(message: Message): boolean {
    const pending = typeof message.id === "number" ? this.#pending.get(message.id) : undefined;
    if (pending === undefined) return false;
    this.#pending.delete(message.id as number);
    clearTimeout(pending.timer);
    if ("return" in message) pending.resolve(message.return);
    else {
      const description = isObject(message.error) ? String(message.error.desc).slice(0, 1_000) : "no reason given";
      pending.reject(new QmpError(`QMP ${pending.command}: ${description}`));
    }
    return true;
  }

  #end(reason: Error): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#socket.destroy();
    this.#lineParts = [];
    this.#greeted.reject(reason);
    for (const pending of this.#pending.values()) {
      clearTimeout(pending.timer);
      pending.reject(new Error(`QMP ${pending.command}: ${reason.message}`, { cause: reason }));
    }
    this.#pending.clear();
    this.#closed.resolve(reason);
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
