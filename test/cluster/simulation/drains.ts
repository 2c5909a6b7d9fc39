/**
 * Drains of hosts: their operator, which has a life of its own, begins and ends them. Deadlines are by the database's clock, which goes on
 * with the time of the hosts.
 */
import { drainHost, resumeHost } from "../../../src/cluster/host-list.ts";
import { CapsuleError } from "../../../src/wire/errors.ts";
import { openSql, type SimulatedHost } from "./host.ts";
import { beganMs, Life } from "./life.ts";
import type { World } from "./world.ts";

const deadlinesMs = [3_000, 60_000, 600_000, 600_000];

export class Drains {
  /** Hosts of other schedules are never drained. */
  readonly isPlayed: boolean;
  readonly #world: World;
  readonly #drained = new Set<SimulatedHost>();
  #operator: Life | undefined;
  #number = 0;

  constructor(world: World, isPlayed: boolean) {
    this.#world = world;
    this.isPlayed = isPlayed;
  }

  /** From here on the database has a clock of the schedule. */
  async open(): Promise<void> {
    if (this.isPlayed) await this.#world.database.ask("UPDATE simulated.place SET ms = $1", [beganMs]);
  }

  async pass(ms: number): Promise<void> {
    if (this.isPlayed) await this.#world.database.ask("UPDATE simulated.place SET ms = ms + $1", [Math.round(ms)]);
  }

  /** Acts of the operator in a step, with their weights. */
  steps(): [number, () => unknown][] {
    if (!this.isPlayed) return [];
    const { scheduler, hosts } = this.#world;
    const waiting = this.#operator;
    if (waiting !== undefined) return [[0.5, () => waiting.advance(1_000)]];
    const drained = [...this.#drained];
    return [
      [hosts.length > drained.length + 1 ? 0.5 : 0.05, () => this.#begin(scheduler.pick(hosts))],
      [drained.length > 0 ? 0.1 : 0, () => this.#end(scheduler.pick(drained))],
    ];
  }

  /** Some host takes capsules; `second`: a second passes for all hosts. */
  async atEnd(second: () => Promise<void>): Promise<void> {
    const { scheduler, hosts, violated } = this.#world;
    if (!this.isPlayed) return;
    for (const isKept of hosts.map((_, index) => index > 0 && scheduler.chance(0.5))) {
      const host = hosts[0]!;
      hosts.push(hosts.shift()!);
      if (isKept) continue;
      for (let rounds = 0; this.#operator !== undefined; rounds++) {
        if (rounds > 20) violated("the operator of a drain waits for ever");
        this.#operator.advance(1_000);
        await second();
      }
      this.#end(host);
      await second();
    }
  }

  #begin(host: SimulatedHost): void {
    const deadlineMs = this.#world.scheduler.pick(deadlinesMs);
    this.#drained.add(host);
    this.#ask(`drains ${host.name} within ${deadlineMs} ms`, (sql) => drainHost(sql, host.name, deadlineMs));
  }

  #end(host: SimulatedHost): void {
    this.#drained.delete(host);
    this.#ask(`lets ${host.name} take capsules`, (sql) => resumeHost(sql, host.name));
  }

  #ask(what: string, work: (sql: ReturnType<typeof openSql>) => Promise<unknown>): void {
    const { scheduler, seedOfLife, broken } = this.#world;
    const life = new Life("operator", ++this.#number, seedOfLife());
    this.#operator = life;
    scheduler.note(`operator: ${what}`);
    const sql = openSql(this.#world, life);
    life
      .run(() => work(sql))
      .catch((error: unknown) => {
        if (!(error instanceof CapsuleError) || error.code !== "unavailable") broken(error);
      })
      .finally(() => {
        this.#operator = undefined;
      });
  }
}
