/**
 * The database of a schedule: statements run in it one at a time, and some stay uncommitted while others run beside them. A statement
 * that waits for a lock of an uncommitted one is told from one that takes long, or waits for an autovacuum, by asking PostgreSQL which
 * processes block it.
 */
import pg from "pg";
import type { SentStatement } from "../../fakes/scheduled-pg.ts";

/** Lives have times of their own. */
const systemTimeout = setTimeout;
const blocked = "SELECT pg_blocking_pids($1) && $2::integer[] AS blocked";

export type Outcome = { rows: Record<string, unknown>[] } | { error: Error };

interface Lane {
  client: pg.Client;
  pid: number;
  isFree: boolean;
}

export class Running {
  readonly sent: SentStatement;
  readonly lane: Lane;
  /** Its transaction is committed by `commit`. */
  readonly isHeld: boolean;
  outcome: Outcome | undefined;
  done: Promise<void> = Promise.resolve();

  constructor(sent: SentStatement, lane: Lane, isHeld: boolean) {
    this.sent = sent;
    this.lane = lane;
    this.isHeld = isHeld;
  }
}

export class ScheduledDatabase implements AsyncDisposable {
  readonly #url: string;
  readonly #control: pg.Client;
  readonly #lanes: Lane[] = [];
  readonly #running = new Set<Running>();

  private constructor(url: string, control: pg.Client) {
    this.#url = url;
    this.#control = control;
  }

  static async open(url: string): Promise<ScheduledDatabase> {
    const control = new pg.Client({ connectionString: url });
    await control.connect();
    return new ScheduledDatabase(url, control);
  }

  /** Statements of the test itself. */
  async ask<Row extends pg.QueryResultRow>(text: string, values: unknown[] = []): Promise<Row[]> {
    if (values.length === 0) return (await this.#control.query(text)).rows;
    return (await this.#control.query({ name: nameOf(text), text, values })).rows;
  }

  /** Runs a statement until it has an outcome or waits for a lock. With `isHeld` it is not committed then. */
  async begin(sent: SentStatement, isHeld: boolean): Promise<Running> {
    if (!isHeld && this.#running.size === 0) return await this.#alone(sent);
    const running = new Running(sent, await this.#lane(), isHeld);
    running.lane.isFree = false;
    this.#running.add(running);
    running.done = this.#run(running);
    await this.#untilKnown(running);
    return running;
  }

  /** Commits or rolls back what was held. Statements that waited for its locks have outcomes then, unless they wait for another. */
  async end(running: Running, how: "COMMIT" | "ROLLBACK"): Promise<void> {
    await running.lane.client.query(how);
    this.#free(running);
    // A statement that has its outcome may be the last that another one waits for.
    const waiting = () => [...this.#running].filter(({ outcome }) => outcome === undefined);
    for (let before = -1, left = waiting(); left.length !== before; left = waiting()) {
      before = left.length;
      for (const other of left) await this.#untilKnown(other);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const { client } of [...this.#lanes, { client: this.#control }]) await client.end();
  }

  async #alone(sent: SentStatement): Promise<Running> {
    const running = new Running(sent, { client: this.#control, pid: 0, isFree: true }, false);
    running.outcome = await outcomeOf(this.#control, sent);
    return running;
  }

  async #run(running: Running): Promise<void> {
    const { lane, sent, isHeld } = running;
    if (isHeld) await lane.client.query("BEGIN");
    const outcome = await outcomeOf(lane.client, sent);
    if (isHeld && "error" in outcome) await lane.client.query("ROLLBACK");
    running.outcome = outcome;
    if (!isHeld || "error" in outcome) this.#free(running);
  }

  #free(running: Running): void {
    running.lane.isFree = true;
    this.#running.delete(running);
  }

  async #untilKnown(running: Running): Promise<void> {
    for (;;) {
      // Most have an outcome by then, and to ask would take longer.
      await Promise.race([running.done, new Promise<void>((resolve) => systemTimeout(resolve, 1))]);
      if (running.outcome !== undefined) return;
      const pids = this.#lanes.map(({ pid }) => pid);
      const [found] = await this.ask<{ blocked: boolean }>(blocked, [running.lane.pid, pids]);
      if (running.outcome !== undefined || found?.blocked === true) return;
    }
  }

  async #lane(): Promise<Lane> {
    const free = this.#lanes.find(({ isFree }) => isFree);
    if (free !== undefined) return free;
    const client = new pg.Client({ connectionString: this.#url });
    await client.connect();
    const { rows } = await client.query("SELECT pg_backend_pid() AS pid");
    const lane = { client, pid: rows[0].pid as number, isFree: true };
    this.#lanes.push(lane);
    return lane;
  }
}

async function outcomeOf(client: pg.Client, { text, values, types }: SentStatement): Promise<Outcome> {
  try {
    const { rows } = await client.query({
      name: nameOf(text),
      text,
      values,
      ...(types === undefined ? {} : { types }),
    });
    return { rows };
  } catch (error) {
    return { error: error as Error };
  }
}

const names = new Map<string, string>();

/** Each text is parsed once by each connection: the program does not name its statements, which change nothing but the time. */
function nameOf(text: string): string {
  const name = names.get(text) ?? `s${names.size}`;
  names.set(text, name);
  return name;
}
