/**
 * This host among the others: it joins with the next number of its name, its epoch, and sends a heartbeat each second, whose answer
 * tells of the others. No clock is compared: a heartbeat's age is the time on this host since its counter was last seen to move.
 */
import type { Clock } from "../capsules/clock.ts";
import type { Log } from "../log.ts";
import { Refusal } from "./failures.ts";
import type { Postgres } from "./postgres.ts";

export interface HostRow {
  name: string;
  epoch: number;
  /** `up`, `draining`, `drained` or `gone`. */
  state: string;
  heartbeat: number;
  /** The address of its peer port. */
  address: string;
  port: number;
  version: string;
  load: Record<string, unknown>;
}

export interface Me {
  name: string;
  epoch: number;
  nonce: string;
}

export interface Beat {
  catalog: number;
  isBack: boolean;
  /** PostgreSQL's system and timeline, and the OIDs of the cluster's database and table. */
  place: string | undefined;
  /** This host, the last one, is to leave, and gets what no host holds. */
  isGathering: boolean;
}

export interface MembershipOptions {
  sql: Postgres;
  me: Me;
  clock: Clock;
  log: Log;
  load: () => Record<string, unknown>;
  /** The other hosts as this one last heard of them; the first answered heartbeat replaces them. */
  lastHeard?: readonly Pick<HostRow, "name" | "epoch" | "address" | "port">[] | undefined;
  /** A heartbeat is sent now. */
  onSend?: () => void;
  /** The database has answered; `isBack`: for the first time, or after this host had expired. */
  onBeat: (beat: Beat) => void;
  /** Another daemon has the name now: this one holds nothing any longer. Called once. */
  onRefused: (reason: string) => void;
}

const beatMs = 1_000;
/** Since the last answered heartbeat was sent. */
const ownExpiryMs = 8_000;
/** Since another host's counter moved, while this one could read it. */
const othersExpiryMs = 12_000;

/** Without the optional ones: of a database that was not brought up to this release yet. */
interface Answer {
  catalog: number;
  hosts: HostRow[];
  place?: string;
  isOwnPlace?: boolean;
  isGathering?: boolean;
}

interface Seen {
  row: HostRow;
  /** The clock's ticks when its counter moved last. */
  movedAt: number;
}

export class Membership {
  readonly #options: MembershipOptions;
  #hosts = new Map<string, Seen>();
  #answeredAt: number | undefined;
  #wasBack = false;
  #cancel = () => {};
  #beating: Promise<void> | undefined;
  #isStopped = false;
  #isPutBack = false;
  /** The peer port is open. */
  #isServing = false;
  #isRefused = false;

  constructor(options: MembershipOptions) {
    this.#options = options;
    const movedAt = options.clock.ticks();
    const unheard = { state: "up", heartbeat: 0, version: "", load: {} };
    for (const host of options.lastHeard ?? []) this.#hosts.set(host.name, { row: { ...unheard, ...host }, movedAt });
  }

  /** Resolves after the first heartbeat, answered or not. */
  start(): Promise<void> {
    return this.#beat();
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#cancel();
    await this.#beating;
  }

  /** Resolves when no heartbeat is under way. */
  async settled(): Promise<void> {
    await this.#beating;
  }

  /** Its peer port is open from now on. Other hosts hear of it with the next heartbeat. */
  serves(): void {
    this.#isServing = true;
  }

  /** Its peer port is closed for the moment of a stop, and perhaps of a start. Resolves when PostgreSQL has heard of it, or has not in time. */
  async servesNoLonger(): Promise<void> {
    this.#isServing = false;
    await this.#beating;
    if (this.#isStopped) return;
    this.#cancel();
    await this.#beat();
  }

  /** A host that is up, whose peer port is closed by its own word. */
  isAbsent(name: string): boolean {
    return this.alive(name)?.load.serving === false;
  }

  get me(): Me {
    return this.#options.me;
  }

  /** This host's, as the last answered heartbeat had it. */
  get state(): string {
    return this.#hosts.get(this.#options.me.name)?.row.state ?? "up";
  }

  /** The database has not answered for so long that other hosts count this one as expired. */
  get isExpired(): boolean {
    return this.silentMs >= ownExpiryMs;
  }

  /** The database may have forgotten what it had committed, and its operator has not confirmed it: nothing is decided. */
  get isPutBack(): boolean {
    return this.#isPutBack;
  }

  /** Time since the last answered heartbeat was sent; infinite before the first. */
  get silentMs(): number {
    return this.#answeredAt === undefined ? Number.POSITIVE_INFINITY : this.#options.clock.ticks() - this.#answeredAt;
  }

  /** All hosts, this one included, with the seconds since each was seen alive. */
  hosts(): (HostRow & { isExpired: boolean; ageSec: number })[] {
    return [...this.#hosts.values()].map(({ row, movedAt }) => {
      const ageMs = this.#options.clock.ticks() - movedAt;
      return { ...row, isExpired: this.#hasExpired(row, ageMs), ageSec: Math.floor(ageMs / 1_000) };
    });
  }

  /** A host that can be asked; undefined: it is unknown, gone or expired. `orExpired`: the database has not heard of it for a while. */
  alive(name: string, orExpired = false): HostRow | undefined {
    const seen = this.#hosts.get(name);
    if (orExpired) return seen?.row.state === "gone" ? undefined : seen?.row;
    if (seen === undefined || this.#hasExpired(seen.row, this.#options.clock.ticks() - seen.movedAt)) return undefined;
    return seen.row;
  }

  #hasExpired({ name, state }: HostRow, ageMs: number): boolean {
    if (state === "gone") return true;
    return name !== this.#options.me.name && !this.isExpired && ageMs >= othersExpiryMs;
  }

  #beat(): Promise<void> {
    this.#beating = this.#ask().finally(() => {
      this.#beating = undefined;
      if (!this.#isStopped) this.#cancel = this.#options.clock.after(beatMs, () => void this.#beat());
    });
    return this.#beating;
  }

  async #ask(): Promise<void> {
    const { sql, me, clock, load, onBeat, onRefused, log } = this.#options;
    const sentAt = clock.ticks();
    this.#options.onSend?.();
    try {
      const told = JSON.stringify({ ...load(), serving: this.#isServing });
      const answer = await sql.beat<Answer>("heartbeat", [me.name, me.epoch, me.nonce, told]);
      const { catalog, hosts, place, isOwnPlace, isGathering = false } = answer;
      const isBack = this.isExpired || !this.#wasBack;
      if (this.#answeredAt !== undefined && isBack) log.info({ host: me.name }, "the cluster's database answers again");
      this.#see(hosts, isBack);
      this.#answeredAt = sentAt;
      this.#wasBack = true;
      this.#isPutBack = isOwnPlace === false;
      onBeat({ catalog, isBack, place, isGathering });
    } catch (error) {
      if (error instanceof Refusal && error.raised === "CP004") {
        if (!this.#isRefused) onRefused(error.message);
        this.#isRefused = true;
      } else if (this.#wasBack && this.isExpired) {
        this.#wasBack = false;
        log.error(
          { err: error },
          "the cluster's database is away: capsules run on, and none is made or destroyed here",
        );
      }
    }
  }

  /** After an outage the time of every host begins anew: nobody could be seen to move. */
  #see(rows: readonly HostRow[], isBack: boolean): void {
    const now = this.#options.clock.ticks();
    const seen = rows.map((row): [string, Seen] => {
      const before = this.#hosts.get(row.name);
      const hasMoved = before === undefined || before.row.heartbeat !== row.heartbeat || before.row.epoch !== row.epoch;
      return [row.name, { row, movedAt: isBack || hasMoved ? now : before.movedAt }];
    });
    this.#hosts = new Map(seen);
  }
}
