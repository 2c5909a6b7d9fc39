/** One schedule: hosts, their database, clients and faults, all by one seed. */
import { Random } from "../../conformance/random.ts";
import { Checks, Violation } from "./checks.ts";
import { Commands, Lost } from "./commands.ts";
import type { ScheduledDatabase } from "./database.ts";
import type { Folders } from "./folders.ts";
import { type Daemon, SimulatedHost } from "./host.ts";
import type { Life } from "./life.ts";
import { Model } from "./model.ts";
import type { Mutant } from "./mutants.ts";
import { Scheduler } from "./scheduler.ts";
import { type Fates, kind, Statements } from "./statements.ts";

export interface Faults {
  fates: Fates;
  /** Probabilities, for each action of a host, for each request to a peer, and for each step. */
  host: number;
  peer: number;
  step: number;
}

const [stepsMin, stepsMore, commandsAtOnce] = [60, 80, 5];
const minuteMs = 61_000;
/** Timers of less are waited for at the end. */
const shortMs = 300;

export class World {
  readonly scheduler: Scheduler;
  readonly database: ScheduledDatabase;
  readonly statements: Statements;
  readonly model = new Model();
  readonly checks: Checks;
  readonly commands: Commands;
  readonly hosts: SimulatedHost[];
  readonly mutant: Mutant | undefined;
  faults: Faults;
  readonly #lifeRandom: Random;
  readonly #asks = new Set<{ from: Life; to: Life; lose: (error: Error) => void }>();
  #violation: unknown;
  /** Steps until the database, or a link between hosts, is there again. */
  #mending = 0;

  constructor(seed: number, database: ScheduledDatabase, folders: Folders, mutant?: Mutant) {
    this.scheduler = new Scheduler(new Random(seed));
    this.#lifeRandom = new Random(seed ^ 0x5eed);
    this.database = database;
    this.mutant = mutant;
    this.faults = { ...this.#faults(), ...mutant?.faults };
    this.statements = new Statements(this.scheduler, database);
    this.statements.fates = this.faults.fates;
    this.checks = new Checks(this);
    this.commands = new Commands(this);
    this.statements.onCommitted = (statement, outcome) => {
      this.checks.isDirty ||= statement.call !== "heartbeat";
      if ("rows" in outcome) this.checks.committed(statement);
    };
    this.statements.isOld = (statement) => this.checks.isOld(statement);
    this.statements.onSent = ({ call, values }) => {
      if (call === "admit_resume") this.model.unadmitted.add(String(values[0]));
    };
    this.statements.onAnswered = ({ call, values }, outcome) => {
      if (call === "admit_resume" && "rows" in outcome) this.model.unadmitted.delete(String(values[0]));
    };
    const count = this.scheduler.chance(0.3) ? 3 : 2;
    this.hosts = ["a", "b", "c"].slice(0, count).map((name) => new SimulatedHost(this, name, folders.empty(name)));
  }

  seedOfLife = () => this.#lifeRandom;

  violated = (what: string): never => {
    const violation = new Violation(what);
    this.broken(violation);
    throw violation;
  };

  /** Something was thrown where nobody awaits it. */
  broken = (error: unknown): void => {
    this.#violation ??= error;
  };

  /** Throws what does not hold. */
  async play(): Promise<void> {
    for (const host of this.hosts) host.start();
    const steps = stepsMin + this.scheduler.random.below(stepsMore);
    for (let step = 0; step < steps; step++) {
      await this.#step();
      await this.#settled();
    }
    await this.#end();
    await this.checks.atEnd();
  }

  onDeath(life: Life): void {
    this.commands.onDeath(life);
    for (const ask of [...this.#asks]) if (ask.to === life || ask.from === life) this.#lose(ask);
  }

  /** A request over the peer port: it or its answer may be lost, and either end may die. */
  async askPeer<T>(entry: Daemon, name: string, work: (holder: Daemon) => Promise<T>): Promise<T> {
    const to = `a request to ${name}`;
    await this.scheduler.turn(to);
    const host = this.hosts.find((each) => each.name === name)!;
    const { daemon } = host;
    if (daemon === undefined || !host.isReachable || this.scheduler.chance(this.faults.peer)) throw new Lost(to);
    const { promise: lost, reject } = Promise.withResolvers<never>();
    lost.catch(() => {});
    const ask = { from: entry.life, to: daemon.life, lose: reject };
    this.#asks.add(ask);
    try {
      const asked = daemon.life.run(() => work(daemon));
      const value = await Promise.race([asked, lost]);
      await this.scheduler.turn(`the answer of ${name}`);
      if (this.scheduler.chance(this.faults.peer)) throw new Lost(to);
      return value;
    } finally {
      this.#asks.delete(ask);
    }
  }

  /** Nothing of it goes on. */
  async close(): Promise<void> {
    await this.statements.finish();
    for (const { life } of this.hosts) if (life !== undefined) this.scheduler.drop(life);
  }

  #lose(ask: { lose: (error: Error) => void }): void {
    ask.lose(new Lost("the host has died"));
  }

  /** Most schedules have faults of some kinds alone, so that each of them shows. */
  #faults(): Faults {
    const some = (most: number) => (this.scheduler.chance(0.5) ? most * this.scheduler.random.next() : 0);
    const lossy = { held: some(0.6), unanswered: some(0.4), lost: some(0.3), late: some(0.5) };
    if (this.scheduler.chance(0.3)) return { fates: { ...kind, held: 0.7 }, host: 0, peer: 0, step: 0 };
    if (this.scheduler.chance(0.4)) return { fates: lossy, host: 0, peer: 0, step: 0 };
    return { fates: lossy, host: some(0.1), peer: some(0.2), step: some(0.08) };
  }

  async #settled(): Promise<void> {
    await this.scheduler.quiet();
    for (const host of this.hosts) if (host.mustEnd) host.kill();
    await this.checks.afterStep();
    if (this.#violation !== undefined) throw this.#violation;
  }

  async #step(): Promise<void> {
    const { scheduler, statements, commands } = this;
    if (await statements.countDown()) return;
    this.#mend();
    if (scheduler.chance(this.faults.step)) return this.#fault();
    const up = this.hosts.filter(({ daemon }) => daemon !== undefined);
    const down = this.hosts.filter(({ life }) => life === undefined);
    const isIdle = scheduler.waiting === 0;
    const weights: [number, () => unknown][] = [
      [isIdle ? 0 : 10, () => scheduler.goOn()],
      [1.5 * statements.held, () => statements.commitOne()],
      [isIdle ? 10 : 2, () => this.#pass()],
      [up.length > 0 && commands.underWay < commandsAtOnce ? 6 : 0, () => commands.issue(scheduler.pick(up).daemon!)],
      [down.length, () => scheduler.pick(down).start()],
    ];
    let left = scheduler.random.next() * weights.reduce((sum, [weight]) => sum + weight, 0);
    for (const [weight, act] of weights) {
      left -= weight;
      if (left < 0) return void (await act());
    }
  }

  /** Time passes on one host, up to its next timer, and sometimes far beyond. */
  #pass(): void {
    const { scheduler } = this;
    const life = scheduler.pick(this.hosts).life;
    if (life?.nextMs === undefined) return;
    const ms = scheduler.chance(0.05) ? 20_000 : scheduler.chance(0.05) ? minuteMs : life.nextMs;
    scheduler.note(`${life.name}: ${Math.round(ms)} ms pass`);
    life.advance(ms);
  }

  async #fault(): Promise<void> {
    const { scheduler, statements } = this;
    const host = scheduler.pick(this.hosts);
    const away = (names: string[]) => {
      scheduler.note(`no database for ${names.join()}`);
      for (const name of names) statements.away.add(name);
      this.#mending = 5 + scheduler.random.below(40);
    };
    const faults = [
      ...[() => host.kill(), () => host.kill(), () => host.cutPower()],
      ...[() => away([host.name]), () => away(this.hosts.map(({ name }) => name))],
      () => statements.crash(),
      () => host.life?.step((scheduler.random.below(3) - 1) * 7_200_000),
      () => {
        host.isReachable = false;
        this.#mending = 5 + scheduler.random.below(40);
      },
      () => {
        const id = scheduler.pick([...host.machine.guests.keys()]);
        if (id !== undefined) host.loseGuest(id, "it was shot");
      },
      () => this.#reconcile(host),
      () => host.impersonate(),
    ];
    await scheduler.pick(faults)();
  }

  #mend(): void {
    this.#mending -= 1;
    if (this.#mending === 0) this.#reachAll();
  }

  #reachAll(): void {
    this.statements.away.clear();
    for (const host of this.hosts) host.isReachable = true;
  }

  #reconcile({ daemon }: SimulatedHost): void {
    daemon?.life.run(() => daemon.service.reconciler.reconcile()).catch((error: unknown) => this.broken(error));
  }

  /** Everything is up and reached, and some minutes pass. */
  async #end(): Promise<void> {
    this.scheduler.note("all faults end");
    this.faults = { fates: kind, host: 0, peer: 0, step: 0 };
    await this.statements.finish();
    this.#reachAll();
    await this.#drained();
    await this.#unchanging();
    this.checks.streams();
    for (const ms of [minuteMs, 1_000, minuteMs, 1_000, 1_000]) {
      for (const host of this.hosts) {
        host.life!.advance(ms);
        if (ms === minuteMs) this.#reconcile(host);
      }
      await this.#drained();
    }
    if (this.commands.underWay > 0) this.violated("a client waits for ever");
  }

  /** Hosts have read all that they ask for each second, and each half. */
  async #unchanging(): Promise<void> {
    for (let rounds = 0, version = -1; version !== this.checks.now.version; rounds++) {
      if (rounds > 20) this.violated("the database changes for ever");
      version = this.checks.now.version;
      for (let halves = 0; halves < 3; halves++) {
        for (const { life } of this.hosts) life!.advance(550);
        await this.#drained();
      }
    }
  }

  async #drained(): Promise<void> {
    do {
      await this.#settled();
      for (const host of this.hosts) {
        if (host.life === undefined) host.start();
        const { nextMs = shortMs } = host.life!;
        if (nextMs >= shortMs || this.scheduler.waiting > 0) continue;
        host.life!.advance(nextMs);
        await this.#settled();
      }
    } while (await this.scheduler.goOn(true));
  }
}
