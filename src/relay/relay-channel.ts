/** One life of the relay's process: what it is told, and what it answers within a deadline. */
import type { ChildProcess } from "node:child_process";
import type { Socket } from "node:net";
import type { ToRelay } from "./messages.ts";
import { type Reply, readReply } from "./replies.ts";

/** Calls back after `ms`; the returned function cancels. */
export type After = (ms: number, callback: () => void) => () => void;

export interface RelayChannelOptions {
  process: ChildProcess;
  after: After;
  /** Called with each message that answers no question. */
  onReply: (reply: Reply) => void;
  /** Called once, when the process is gone. */
  onEnd: (why: string) => void;
}

type Question = Extract<ToRelay, { seq: number }>;
type WithoutSeq<T> = T extends Question ? Omit<T, "seq"> : never;
type Answer = Extract<Reply, { seq: number }>;

interface Asked {
  run: number;
  answer: (reply: Answer | undefined) => void;
  cancel: () => void;
}

/** A relay that leaves a question open for so long is ended: nobody would know what it lets through. */
export const answerMs = 10_000;
const endMs = 2_000;

export class RelayChannel {
  readonly #options: RelayChannelOptions;
  readonly #asked = new Map<number, Asked>();
  /** Sockets on their way to the process. */
  readonly #sockets = new Set<Socket>();
  readonly #gone = Promise.withResolvers<void>();
  #seq = 0;
  #why: string | undefined;
  #isGone = false;

  constructor(options: RelayChannelOptions) {
    this.#options = options;
    const { process } = options;
    process.on("message", (message: unknown) => this.#read(message));
    process.once("error", (error) => {
      this.#why ??= error.message;
      if (process.pid === undefined) this.#end(error.message); // it was not started, and no exit follows
    });
    process.once("disconnect", () => process.kill("SIGKILL"));
    process.once("exit", (code, signal) => this.#end(signal === null ? `exit code ${code}` : `signal ${signal}`));
    // Nothing tells what happened before: the process was started a while ago.
    if (process.exitCode !== null || process.signalCode !== null)
      setImmediate(() => this.#end("it ended while it started"));
    else if (!process.connected) process.kill("SIGKILL");
  }

  get pid(): number | undefined {
    return this.#options.process.pid;
  }

  tell(message: ToRelay): void {
    this.#send(message, undefined, () => {});
  }

  /** The process gets a copy of `socket`, which is closed here. */
  hand(message: ToRelay, socket: Socket): void {
    this.#sockets.add(socket);
    this.#send(message, socket, () => {
      this.#sockets.delete(socket);
      socket.destroy();
    });
  }

  /** Undefined: the run is lost, or the process is gone; one that does not answer is ended. */
  ask(question: WithoutSeq<Question>): Promise<Answer | undefined> {
    if (this.#isGone) return Promise.resolve(undefined);
    const seq = ++this.#seq;
    const { promise, resolve: answer } = Promise.withResolvers<Answer | undefined>();
    const cancel = this.#options.after(answerMs, () => this.kill("it does not answer"));
    this.#asked.set(seq, { run: question.run, answer, cancel });
    this.tell({ ...question, seq } as Question);
    return promise;
  }

  /** Ends the questions about a run, which the process answers no more. */
  abandon(run: number): void {
    for (const [seq, asked] of this.#asked) if (asked.run === run) this.#answered(seq, undefined);
  }

  kill(why: string): void {
    if (this.#isGone) return;
    this.#why ??= why;
    this.#options.process.kill("SIGKILL");
  }

  /** Resolves when the process is gone. It ends by itself when its channel closes. */
  async close(): Promise<void> {
    const { process, after } = this.#options;
    process.removeAllListeners("disconnect");
    if (process.connected) process.disconnect();
    const cancel = after(endMs, () => this.kill("it did not end"));
    await this.#gone.promise;
    cancel();
  }

  #send(message: ToRelay, socket: Socket | undefined, done: () => void): void {
    const { process } = this.#options;
    // A copy that Node closed itself would stay open where the process ends before it has taken it.
    if (!this.#isGone && process.connected) process.send(message, socket, { keepOpen: true }, done);
    else done();
  }

  #read(message: unknown): void {
    if (this.#isGone) return;
    const reply = readReply(message);
    if (reply === undefined) this.kill("it sent a message that is none");
    else if ("seq" in reply) this.#answered(reply.seq, reply);
    else this.#options.onReply(reply);
  }

  #answered(seq: number, reply: Answer | undefined): void {
    const asked = this.#asked.get(seq);
    this.#asked.delete(seq);
    asked?.cancel();
    asked?.answer(reply);
  }

  #end(how: string): void {
    if (this.#isGone) return;
    this.#isGone = true;
    for (const socket of this.#sockets) socket.destroy();
    this.#sockets.clear();
    for (const seq of [...this.#asked.keys()]) this.#answered(seq, undefined);
    this.#gone.resolve();
    this.#options.onEnd(this.#why ?? how);
  }
}
