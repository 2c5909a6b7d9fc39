/**
 * The service's end of the relay: one process per server that is started with it and again whenever it ends, and is handed the
 * port of each running capsule.
 */
import type { ChildProcess } from "node:child_process";
import { readFileSync } from "node:fs";
import type { Log } from "../log.ts";
import { messageOf } from "../wire/errors.ts";
import type { NetworkDecision } from "../wire/network.ts";
import { HandOvers, type RelayedRun } from "./hand-overs.ts";
import type { RelayPolicy, RelaySettings, RunCounts } from "./messages.ts";
import { type After, RelayChannel } from "./relay-channel.ts";
import type { Reply } from "./replies.ts";
import { type ResolvConf, watchResolvers } from "./resolv-conf.ts";

export interface RelayOptions {
  /** Starts the process. Rejects where it cannot be started here. */
  start: () => Promise<ChildProcess>;
  settings: Omit<RelaySettings, "resolvers">;
  /** As `watchResolvers`, which is the default. */
  watch?: (onChange: (resolvers: string[]) => void) => ResolvConf;
  /** Called with what a capsule's connections have added. */
  onCounts: (id: string, added: RunCounts) => void;
  /** Called with what was decided about a running capsule's connections and names, oldest first. */
  onDecisions: (id: string, decided: NetworkDecision[]) => void;
  /** Called with the results of all capsules' questions to DNS. */
  onNames: (results: Record<string, number>) => void;
  log: Log;
  after?: After;
}

const realAfter: After = (ms, callback) => {
  const timer = setTimeout(callback, ms);
  timer.unref();
  return () => clearTimeout(timer);
};

/** Far longer than the start of its program, which yields to the service, takes on a busy machine. */
const readyMs = 120_000;
const restartMs = [0, 1_000, 2_000, 4_000, 8_000];
/** A life that lasted so long starts the delays anew. */
const lastingMs = 60_000;

export class Relay {
  readonly #options: RelayOptions;
  readonly #after: After;
  readonly #handOvers: HandOvers;
  readonly #resolvConf: ResolvConf;
  #settings: RelaySettings;
  #channel: RelayChannel | undefined;
  #isUp = false;
  #upAt = 0;
  #failures = 0;
  #starts = 0;
  #connectionsOpen = 0;
  #cancel = () => {};
  #starting: Promise<void> | undefined;
  #isClosed = false;

  constructor(options: RelayOptions) {
    this.#options = options;
    this.#after = options.after ?? realAfter;
    this.#resolvConf = (options.watch ?? watchResolvers)((resolvers) => this.#useResolvers(resolvers));
    this.#settings = { ...options.settings, resolvers: this.#resolvConf.resolvers };
    this.#handOvers = new HandOvers({ ...options, after: this.#after });
  }

  /** Returns at once; capsules wait for the process. */
  open(): void {
    this.#starting = this.#start().catch((error: unknown) => this.#ended(messageOf(error)));
  }

  /** The capsule runs: its port is handed over after this. */
  began(run: RelayedRun): void {
    this.#handOvers.began(run);
  }

  /** As HandOvers.changed. */
  changed(id: string, policy: RelayPolicy): Promise<void> {
    return this.#handOvers.changed(id, policy);
  }

  /** As HandOvers.state. */
  state(id: string): Promise<{ connectionsOpen: number }> {
    return this.#handOvers.state(id);
  }

  /** Its run has ended: everything that was opened for it is closed. */
  ended(id: string): void {
    this.#handOvers.ended(id);
  }

  get isUp(): boolean {
    return this.#isUp;
  }

  /** Restarts, connections that are open, and the process's memory; 0 while it is down. */
  report(): { isUp: boolean; restarts: number; connectionsOpen: number; memoryBytes: number } {
    const { pid } = this.#channel ?? {};
    return {
      isUp: this.#isUp,
      restarts: Math.max(0, this.#starts - 1),
      connectionsOpen: this.#connectionsOpen,
      memoryBytes: pid === undefined ? 0 : residentBytes(pid),
    };
  }

  /** Connections to ports that are open in this process. */
  get openSockets(): number {
    return this.#handOvers.openSockets;
  }

  /** Resolves when the process is gone, and has told what it knew. Capsules run on, without connections. */
  async close(): Promise<void> {
    this.#isClosed = true;
    this.#cancel();
    this.#resolvConf.close();
    await this.#handOvers.flush();
    this.#handOvers.close();
    await this.#starting;
    await this.#channel?.close();
  }

  #useResolvers(resolvers: string[]): void {
    this.#settings = { ...this.#settings, resolvers };
    this.#channel?.tell({ kind: "settings", settings: this.#settings });
  }

  async #start(): Promise<void> {
    this.#starts++;
    const process = await this.#options.start();
    const channel: RelayChannel = new RelayChannel({
      ...{ process, after: this.#after },
      onReply: (reply) => this.#read(channel, reply),
      onEnd: (why) => this.#ended(why),
    });
    this.#channel = channel;
    if (this.#isClosed) return;
    channel.tell({ kind: "settings", settings: this.#settings });
    this.#cancel = this.#after(readyMs, () => channel.kill("it did not become ready"));
  }

  #read(channel: RelayChannel, reply: Reply): void {
    if (reply.kind === "ready") this.#ready(channel);
    else if (reply.kind === "counts") {
      this.#connectionsOpen = reply.connectionsOpen;
      this.#options.onNames(reply.names);
      this.#handOvers.count(reply);
    } else if (reply.kind === "decisions") this.#handOvers.decided(reply);
    else if (reply.kind === "lost") this.#handOvers.lost(reply);
  }

  #ready(channel: RelayChannel): void {
    if (this.#isUp || this.#isClosed) return;
    this.#cancel();
    this.#isUp = true;
    this.#upAt = performance.now();
    this.#options.log.info({ pid: channel.pid }, "the relay is up");
    this.#handOvers.use(channel);
  }

  #ended(why: string): void {
    this.#cancel();
    const wasUp = this.#isUp;
    this.#isUp = false;
    this.#channel = undefined;
    this.#connectionsOpen = 0;
    this.#handOvers.use(undefined);
    if (this.#isClosed) return;
    if (wasUp && performance.now() - this.#upAt > lastingMs) this.#failures = 0;
    if (wasUp || this.#failures === 0)
      this.#options.log.error({ why }, "the relay has ended: connections of capsules are reset, and new ones wait");
    const ms = restartMs[Math.min(this.#failures, restartMs.length - 1)]!;
    this.#failures++;
    this.#cancel = this.#after(ms, () => this.open());
  }
}

function residentBytes(pid: number): number {
  try {
    const [, kib = "0"] = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8")) ?? [];
    return Number(kib) * 1_024;
  } catch {
    return 0; // it has just ended
  }
}
