/** One schedule: hosts, their database, clients and faults, all by one seed. */
import { Random } from "../../conformance/random.ts";
import { SimulatedBucket } from "./bucket.ts";
import { Checks } from "./checks.ts";
import { Commands } from "./commands.ts";
import type { ScheduledDatabase } from "./database.ts";
import { Drains } from "./drains.ts";
import { bucketSeeds, type Faults, isDrainSeed, isPutBackSeed, none } from "./faults.ts";
import type { Folders } from "./folders.ts";
import { type Daemon, SimulatedHost } from "./host.ts";
import type { Life } from "./life.ts";
import { limits, Model } from "./model.ts";
import type { Mutant } from "./mutants.ts";
import { PutBack } from "./put-back.ts";
import { Lost } from "./routes.ts";
import { Scheduler } from "./scheduler.ts";
import { kind, Statements } from "./statements.ts";
import { Violation } from "./violation.ts";

const [stepsMin, stepsMore, commandsAtOnce] = [60, 80, 5];
/** A capsule that leaves its host, comes to another one and runs there takes some 40. */
const [movedStepsMin, movedStepsMore] = [120, 160];
const [minuteMs, dayMs] = [61_000, 86_400_001];
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
  readonly bucket: SimulatedBucket;
  readonly putBack: PutBack;
  readonly drains: Drains;
  readonly mutant: Mutant | undefined;
  faults: Faults;
  readonly #lifeRandom: Random;
  /** Links that are cut one way: `a>b` is that from a to b. */
  readonly #cut = new Set<string>();
  readonly #asks = new Set<{ from: Life; to: Life; lose: (error: Error) => void }>();
  #violation: unknown;
  /** The next step is its end. */
  #dying: Life | undefined;
  /** Steps until the database, or a link between hosts, is there again. */
  #mending = 0;

  constructor(seed: number, database: ScheduledDatabase, folders: Folders, mutant?: Mutant) {
    this.scheduler = new Scheduler(new Random(seed));
    this.#lifeRandom = new Random(seed ^ 0x5eed);
    this.database = database;
    this.mutant = mutant;
    this.bucket = new SimulatedBucket(this, seed >= bucketSeeds);
    this.putBack = new PutBack(this, isPutBackSeed(seed));
    this.drains = new Drains(this, isDrainSeed(seed));
    this.faults = { ...this.#faults(), ...mutant?.faults };
    this.statements = new Statements(this.scheduler, database);
    this.statements.fates = this.faults.fates;
    if (this.bucket.isThere) this.statements.readsSafety = 4;
    this.checks = new Checks(this);
    this.commands = new Commands(this);
    this.statements.onCommitted = (statement, outcome) => {
      this.checks.isDirty ||= statement.call !== "heartbeat";
      if ("rows" in outcome) this.checks.committed(statement);
      const isMove = statement.call === "release_capsule" || statement.call === "acquire_capsule";
      if (isMove) this.putBack.moves += 1;
      if (statement.call === "end_move") this.model.leftPaused.add(String(statement.values[0]));
      if (isMove && "rows" in outcome && this.scheduler.chance(this.faults.move)) this.#dying = statement.life;
    };
    this.statements.isOld = (statement) => this.checks.isOld(statement);
    this.statements.onAnswered = ({ call, values }, outcome) => {
      const isAdmitted = call === "admit_resume" || call === "acquire_capsule";
      // A database that was put back sums without what it has forgotten.
      if (isAdmitted && "rows" in outcome && this.checks.isOwnPlace) this.model.unadmitted.delete(String(values[0]));
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
    await this.drains.open();
    for (const host of this.hosts) host.start();
    if (this.bucket.isThere) await this.#warmUp();
    const [min, more] = this.bucket.isThere ? [movedStepsMin, movedStepsMore] : [stepsMin, stepsMore];
    const steps = min + this.scheduler.random.below(more);
    for (let step = 0; step < steps; step++) {
      await this.#step();
      await this.#settled();
    }
    await this.#end();
    await this.checks.atEnd();
  }

  /** All hosts listen, and have some capsules, before the first fault. */
  async #warmUp(): Promise<void> {
    const { faults } = this;
    this.#setFaults(none);
    await this.#drained();
    for (let left = 1 + this.scheduler.random.below(limits.runningVcpus); left > 0; left--)
      this.commands.create(this.scheduler.pick(this.hosts).daemon!);
    await this.#drained();
    this.#setFaults(faults);
  }

  #setFaults(faults: Faults): void {
    this.faults = faults;
    this.statements.fates = faults.fates;
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
    const isCut = (way: string) => !host.isReachable || this.#cut.has(way);
    if (daemon === undefined || isCut(`${entry.life.host}>${name}`) || this.scheduler.chance(this.faults.peer))
      throw new Lost(to);
    const { promise: lost, reject } = Promise.withResolvers<never>();
    lost.catch(() => {});
    const ask = { from: entry.life, to: daemon.life, lose: reject };
    this.#asks.add(ask);
    try {
      const asked = daemon.life.run(() => work(daemon));
      const value = await Promise.race([asked, lost]);
      await this.scheduler.turn(`the answer of ${name}`);
      if (this.#cut.has(`${name}>${entry.life.host}`) || this.scheduler.chance(this.faults.peer)) throw new Lost(to);
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
    if (this.bucket.isThere) return this.#faultsOfMoves(some);
    const lossy = { held: some(0.6), unanswered: some(0.4), lost: some(0.3), late: some(0.5) };
    if (this.scheduler.chance(0.3)) return { ...none, fates: { ...kind, held: 0.7 } };
    if (this.scheduler.chance(0.4)) return { ...none, fates: lossy };
    return { ...none, fates: lossy, host: some(0.1), peer: some(0.2), step: some(0.08) };
  }

  #faultsOfMoves(some: (most: number) => number): Faults {
    const lossy = { held: some(0.4), unanswered: some(0.3), lost: some(0.2), late: some(0.3) };
    const bucket = some(0.3);
    const move = some(0.3);
    if (this.scheduler.chance(0.2)) return { ...none, bucket, move };
    if (this.scheduler.chance(0.3)) return { ...none, fates: lossy, bucket };
    return { fates: lossy, host: some(0.1), peer: some(0.2), step: some(0.08), bucket, move };
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
    this.bucket.countDown();
    this.#mend();
    const dying = this.hosts.find(({ life }) => life !== undefined && life === this.#dying);
    this.#dying = undefined;
    if (dying !== undefined) return scheduler.chance(0.5) ? dying.kill() : dying.cutPower();
    if (scheduler.chance(this.faults.step)) return this.#fault();
    const up = this.hosts.filter(({ daemon }) => daemon !== undefined);
    const down = this.hosts.filter(({ life }) => life === undefined);
    const isIdle = scheduler.waiting === 0;
    const weights: [number, () => unknown][] = [
      [isIdle ? 0 : 10, () => scheduler.goOn()],
      [1.5 * statements.held, () => statements.commitOne()],
      [isIdle ? 10 : 2, () => this.#pass()],
      [
        up.length > 0 && commands.underWay < commandsAtOnce ? (this.drains.isPlayed ? 1 : 6) : 0,
        () => commands.issue(scheduler.pick(up).daemon!),
      ],
      [down.length, () => scheduler.pick(down).start()],
      [this.bucket.isThere && up.length > 0 ? 0.15 : 0, () => this.#keepUp(scheduler.pick(up))],
      ...this.putBack.steps(),
      ...this.drains.steps(),
    ];
    let left = scheduler.random.next() * weights.reduce((sum, [weight]) => sum + weight, 0);
    for (const [weight, act] of weights) {
      left -= weight;
      if (left < 0) return void (await act());
    }
  }

  /** Time passes on one host, up to its next timer, and sometimes far beyond. */
  async #pass(): Promise<void> {
    const { scheduler } = this;
    const life = scheduler.pick(this.hosts).life;
    if (life?.nextMs === undefined) return;
    const ms = scheduler.chance(0.05) ? 20_000 : scheduler.chance(0.05) ? minuteMs : life.nextMs;
    scheduler.note(`${life.name}: ${Math.round(ms)} ms pass`);
    await this.drains.pass(ms / this.hosts.length);
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
      ...(this.bucket.isThere ? this.#faultsOfBucket(host) : []),
    ];
    await scheduler.pick(faults)();
  }

  #faultsOfBucket({ name }: SimulatedHost): (() => void)[] {
    const { scheduler, bucket } = this;
    const mended = () => {
      this.#mending = 5 + scheduler.random.below(40);
    };
    return [
      () => {
        scheduler.note("the bucket is away");
        bucket.isAway = true;
        mended();
      },
      () => {
        const [to] = this.hosts.filter((other) => other.name !== name);
        scheduler.note(`nothing comes from ${name} to ${to!.name}`);
        this.#cut.add(`${name}>${to!.name}`);
        mended();
      },
    ];
  }

  /** The periodic work of a host, before which a day may pass for the garbage. */
  async #keepUp({ daemon }: SimulatedHost): Promise<void> {
    if (this.scheduler.chance(0.5)) {
      this.scheduler.note("a day passes for the garbage");
      // A transaction that stands open between two steps may have locked some rows, and goes on only behind this one.
      const free = "SELECT prefix FROM garbage FOR UPDATE SKIP LOCKED";
      await this.database.ask(`UPDATE garbage SET at = at - ${dayMs}, tried_at = NULL WHERE prefix IN (${free})`);
      this.putBack.forget();
    }
    daemon?.life.run(async () => await daemon.upkeep?.pass()).catch((error: unknown) => this.broken(error));
  }

  #mend(): void {
    this.#mending -= 1;
    if (this.#mending === 0) this.#reachAll();
  }

  #reachAll(): void {
    this.statements.away.clear();
    this.#cut.clear();
    this.bucket.isAway = false;
    for (const host of this.hosts) host.isReachable = true;
  }

  #reconcile({ daemon }: SimulatedHost): void {
    daemon?.life.run(() => daemon.service.reconciler.reconcile()).catch((error: unknown) => this.broken(error));
  }

  /** Everything is up and reached, and some minutes pass. */
  async #end(): Promise<void> {
    this.scheduler.note("all faults end");
    this.faults = none;
    await this.statements.finish();
    this.#reachAll();
    this.bucket.countDown(true);
    await this.#drained();
    await this.putBack.atEnd(() => this.#second());
    await this.drains.atEnd(() => this.#second());
    await this.#unchanging();
    this.checks.copies();
    this.checks.streams();
    for (const ms of [minuteMs, 1_000, minuteMs, 1_000, 1_000]) {
      await this.drains.pass(10 * ms);
      for (const host of this.hosts) {
        host.life!.advance(ms);
        if (ms === minuteMs) this.#reconcile(host);
      }
      await this.#drained();
    }
    if (this.commands.underWay > 0) this.violated("a client waits for ever");
    if (this.drains.isPlayed) await this.checks.atEnd(); // before requests resume what a move has left paused
    if (this.bucket.isThere) await this.#resumed();
  }

  /** Each paused capsule is resumed, and paused again, by a request to any host. */
  async #resumed(): Promise<void> {
    for (const capsule of this.model.sure()) {
      if (this.checks.now.capsules.get(capsule.id)?.status !== "paused") continue;
      for (const verb of ["resume", "pause"] as const) {
        this.commands.change(this.scheduler.pick(this.hosts).daemon!, capsule, verb);
        await this.#drained();
      }
      for (const { life } of this.hosts) life!.advance(shortMs);
      await this.#drained();
    }
  }

  async #second(): Promise<void> {
    for (const { life } of this.hosts) life!.advance(1_000);
    await this.#drained();
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
