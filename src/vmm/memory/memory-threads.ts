/**
 * Threads that copy large memories (memory-worker.ts), so that the event loop does not. One is started when a task comes and all
 * others are at work. They are kept, since starting one takes 70 ms, during which a guest would stand still.
 */
import { availableParallelism } from "node:os";
import { Worker } from "node:worker_threads";
import { CapsuleError } from "../../wire/errors.ts";
import type { Pieces, VmProcess } from "../vmm.ts";
import type { DiffState } from "./diff-writer.ts";
import type { Mapping } from "./pagemap.ts";

/** Each takes 12 MiB, and guests need CPUs too. */
const maxThreads = Math.min(4, availableParallelism());

export interface SaveTask {
  process: VmProcess;
  mappings: Mapping[];
  /** Null: it is all zeros. */
  base: string | null;
  path: string;
  /** The first page to be copied. */
  from: number;
  state: DiffState;
}

export interface LoadTask {
  process: VmProcess;
  mappings: Mapping[];
  memoryBytes: number;
  path: string;
  pieces: Pieces | undefined;
}

export type Task = { kind: "save"; task: SaveTask } | { kind: "load"; task: LoadTask };
export type Call = Task & { id: number };

/** An error as it is sent between threads, which keep neither its class nor its code. */
export interface SentError {
  isCapsuleError: boolean;
  code: string | undefined;
  message: string;
}

export type Reply = { id: number } & ({ state: DiffState | undefined } | { error: SentError });

class MemoryThread {
  readonly ended: Promise<void>;
  readonly #worker = new Worker(new URL("./memory-worker.ts", import.meta.url), { name: "memory" });
  readonly #calls = new Map<number, PromiseWithResolvers<DiffState | undefined>>();
  #lastId = 0;

  constructor() {
    this.#worker.unref();
    this.#worker.on("message", (reply: Reply) => this.#settle(reply));
    const { promise, resolve } = Promise.withResolvers<void>();
    this.ended = promise;
    const fail = (error: unknown) => {
      for (const call of this.#calls.values()) call.reject(error);
      this.#calls.clear();
      resolve();
    };
    this.#worker.on("error", fail);
    this.#worker.on("exit", (code) => fail(new Error(`the thread that copies memory has ended with ${code}`)));
  }

  get tasks(): number {
    return this.#calls.size;
  }

  run(task: Task): Promise<DiffState | undefined> {
    const call: Call = { ...task, id: ++this.#lastId };
    const settled = Promise.withResolvers<DiffState | undefined>();
    this.#calls.set(call.id, settled);
    this.#worker.ref();
    this.#worker.postMessage(call);
    return settled.promise;
  }

  #settle(reply: Reply): void {
    const call = this.#calls.get(reply.id);
    this.#calls.delete(reply.id);
    if (this.#calls.size === 0) this.#worker.unref();
    if ("error" in reply) call?.reject(revive(reply.error));
    else call?.resolve(reply.state);
  }
}

class MemoryThreads {
  readonly #threads = new Set<MemoryThread>();

  /** Copies pages as `copyPages` does. */
  async save(task: SaveTask): Promise<DiffState> {
    const state = await this.#idlest().run({ kind: "save", task });
    if (state === undefined) throw new Error("the thread that copies memory has answered without a state");
    return state;
  }

  /** Loads a diff as `loadPages` does. */
  async load(task: LoadTask): Promise<void> {
    await this.#idlest().run({ kind: "load", task });
  }

  #idlest(): MemoryThread {
    const [idlest] = [...this.#threads].sort((a, b) => a.tasks - b.tasks);
    if (idlest !== undefined && (idlest.tasks === 0 || this.#threads.size === maxThreads)) return idlest;
    const thread = new MemoryThread();
    this.#threads.add(thread);
    void thread.ended.then(() => this.#threads.delete(thread));
    return thread;
  }
}

/** The threads of this process. */
export const memoryThreads = new MemoryThreads();

function revive({ isCapsuleError, code, message }: SentError): Error {
  if (isCapsuleError) return new CapsuleError(code as CapsuleError["code"], message);
  return Object.assign(new Error(message), code === undefined ? {} : { code });
}
