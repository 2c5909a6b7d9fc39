/**
 * The ports of running capsules on their way to the relay. Each is connected to, and the connection handed over; where the relay
 * has lost it, again after a delay that doubles.
 */

import { Socket } from "node:net";
import type { Log } from "../log.ts";
import type { NetworkDecision } from "../wire/network.ts";
import type { RelayPolicy, RunCounts } from "./messages.ts";
import type { After, RelayChannel } from "./relay-channel.ts";
import type { Reply } from "./replies.ts";

/** The run of a capsule whose guest has a gateway. */
export interface RelayedRun {
  id: string;
  teamId: string;
  /** The path of the port's socket. */
  socket: string;
  policy: RelayPolicy;
}

export interface HandOversOptions {
  after: After;
  log: Log;
  onCounts: (id: string, added: RunCounts) => void;
  onDecisions: (id: string, decided: NetworkDecision[]) => void;
}

interface HandOver extends RelayedRun {
  /** Counted up by each hand-over; undefined: the relay does not have it. */
  number: number | undefined;
  socketOpen: Socket | undefined;
  cancel: () => void;
  failures: number;
  attachedAt: number;
}

const connectsMax = 32;
const retryMs = 250;
const retryMaxMs = 64_000;
/** A connection that lasted so long starts the delays anew. */
const lastingMs = 60_000;
/** Counts of a hand-over may come for so long after its end. */
const countsMs = 10_000;
/** The wait for what only the relay knows. */
const stateMs = 1_000;

export class HandOvers {
  readonly #options: HandOversOptions;
  readonly #runs = new Map<string, HandOver>();
  readonly #capsules = new Map<number, string>();
  readonly #waiting = new Set<HandOver>();
  #connecting = 0;
  #number = 0;
  #channel: RelayChannel | undefined;

  constructor(options: HandOversOptions) {
    this.#options = options;
  }

  /** The relay takes hand-overs; undefined: it is gone, and with it what it had. */
  use(channel: RelayChannel | undefined): void {
    this.#channel = channel;
    this.#waiting.clear();
    for (const run of this.#runs.values()) {
      this.#reset(run);
      if (channel !== undefined) this.#open(run);
    }
  }

  began(run: RelayedRun): void {
    this.ended(run.id);
    const handOver = { ...run, number: undefined, socketOpen: undefined, cancel: () => {}, failures: 0, attachedAt: 0 };
    this.#runs.set(run.id, handOver);
    handOver.cancel = this.#options.after(0, () => this.#open(handOver));
  }

  ended(id: string): void {
    const run = this.#runs.get(id);
    if (run === undefined) return;
    this.#runs.delete(id);
    this.#waiting.delete(run);
    const { number } = run;
    this.#reset(run);
    if (number === undefined) return;
    this.#channel?.tell({ kind: "detach", run: number });
    this.#channel?.abandon(number);
  }

  /** Resolves when the relay obeys it, or is gone: then everything is denied until it has the new one. */
  async changed(id: string, policy: RelayPolicy): Promise<void> {
    const run = this.#runs.get(id);
    if (run === undefined) return;
    run.policy = policy;
    if (run.number !== undefined) await this.#channel?.ask({ kind: "policy", run: run.number, policy });
  }

  /** Zero where the relay does not have the capsule, or does not answer in a second. Its decisions are told by then. */
  async state(id: string): Promise<{ connectionsOpen: number }> {
    const number = this.#runs.get(id)?.number;
    if (number === undefined || this.#channel === undefined) return { connectionsOpen: 0 };
    const answer = await this.#inTime(this.#channel.ask({ kind: "state", run: number }));
    return { connectionsOpen: answer?.kind === "state" ? answer.connectionsOpen : 0 };
  }

  /** Resolves when all counts and decisions of the relay are told, or it does not answer in a second. */
  async flush(): Promise<void> {
    if (this.#channel !== undefined) await this.#inTime(this.#channel.ask({ kind: "flush", run: 0 }));
  }

  count({ runs }: Extract<Reply, { kind: "counts" }>): void {
    for (const [number, added] of runs) {
      const id = this.#capsules.get(number);
      if (id !== undefined) this.#options.onCounts(id, added);
    }
  }

  /** Decisions of a run that has ended are dropped. */
  decided({ runs }: Extract<Reply, { kind: "decisions" }>): void {
    for (const [number, decided] of runs) {
      const run = this.#runs.get(this.#capsules.get(number) ?? "");
      if (run?.number === number) this.#options.onDecisions(run.id, decided);
    }
  }

  /** The relay has it no more, and it is handed over again later. */
  lost({ run: number, why }: Extract<Reply, { kind: "lost" }>): void {
    const run = this.#runs.get(this.#capsules.get(number) ?? "");
    if (run === undefined || run.number !== number) return;
    this.#channel?.abandon(number);
    this.#channel?.tell({ kind: "detach", run: number }); // nothing of it is left there
    if (performance.now() - run.attachedAt > lastingMs) run.failures = 0;
    if (run.failures === 0) this.#options.log.warn({ capsule: run.id, why }, "a capsule's connections were reset");
    this.#reset(run);
    this.#retry(run);
  }

  /** The number of connections to ports that are open here. */
  get openSockets(): number {
    return this.#connecting;
  }

  close(): void {
    this.use(undefined);
    this.#runs.clear();
  }

  #open(run: HandOver): void {
    if (this.#channel === undefined || this.#runs.get(run.id) !== run) return;
    if (run.number !== undefined || run.socketOpen !== undefined) return;
    if (this.#connecting >= connectsMax) {
      this.#waiting.add(run);
      return;
    }
    this.#connecting++;
    const socket = new Socket();
    run.socketOpen = socket;
    socket.pause(); // the relay reads it
    socket.on("error", () => {});
    socket.once("connect", () => this.#hand(run, socket));
    socket.once("close", () => this.#closed(run, socket));
    socket.connect({ path: run.socket });
  }

  #hand(run: HandOver, socket: Socket): void {
    const { id: capsule, teamId: team, policy } = run;
    if (run.socketOpen !== socket || this.#channel === undefined) {
      socket.destroy();
      return;
    }
    const number = ++this.#number;
    run.number = number;
    run.attachedAt = performance.now();
    this.#capsules.set(number, capsule);
    this.#channel.hand({ kind: "attach", run: number, capsule, team, policy }, socket);
    void this.#channel.ask({ kind: "state", run: number }); // finds a relay that takes nothing any more
  }

  /** Handed over, refused, or given up. */
  #closed(run: HandOver, socket: Socket): void {
    this.#connecting--;
    if (run.socketOpen === socket) {
      run.socketOpen = undefined;
      if (run.number === undefined) this.#retry(run);
    }
    const [next] = this.#waiting;
    if (next === undefined) return;
    this.#waiting.delete(next);
    this.#open(next);
  }

  #retry(run: HandOver): void {
    if (this.#runs.get(run.id) !== run || this.#channel === undefined) return;
    const ms = Math.min(retryMaxMs, retryMs * 2 ** run.failures++);
    run.cancel();
    run.cancel = this.#options.after(ms, () => this.#open(run));
  }

  #reset(run: HandOver): void {
    run.cancel();
    const { number, socketOpen } = run;
    run.number = undefined;
    run.socketOpen = undefined;
    if (number === undefined) socketOpen?.destroy();
    else this.#options.after(countsMs, () => this.#capsules.delete(number));
  }
  async #inTime<T>(asked: Promise<T>): Promise<T | undefined> {
    const late = Promise.withResolvers<undefined>();
    const cancel = this.#options.after(stateMs, () => late.resolve(undefined));
    const answer = await Promise.race([asked, late.promise]);
    cancel();
    return answer;
  }
}
