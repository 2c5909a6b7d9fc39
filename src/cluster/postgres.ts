/**
 * The connections to PostgreSQL: four for statements, and one for the heartbeat, which must not wait for them. No state is kept in a
 * session. A statement without an answer ends its connection and is sent again with the same arguments, until its time is over.
 */
import type { Client, Pool, PoolClient, PoolConfig, QueryResultRow } from "pg";
import { isAnswer, isUsable, Unanswered, withoutValues } from "./failures.ts";

export interface StatementOptions {
  /** Completes "cannot …" in the error. */
  what: string;
  /** For each time that it is sent; default 2.5 s. */
  onceMs?: number;
  /** For all of them; default 5 s. */
  allMs?: number;
}

export interface PostgresOptions {
  url: string;
  /** Monotonic milliseconds. */
  ticks: () => number;
  /** All limits of time are so many times as long; default 1. */
  slowness?: () => number;
  /** Limits of a transaction; default: those below. */
  transactMs?: Partial<typeof transactLimits>;
}

/** The statements of a transaction. */
export interface Transaction {
  /** Given up after 15 s. */
  query(text: string, values?: unknown[]): Promise<{ rows: Record<string, unknown>[] }>;
  /** Statements that change tables, which takes as long as these are large. */
  alter(text: string): Promise<unknown>;
}

type Module = typeof import("pg").default;

const connectionsMax = 4;
const [onceMs, allMs] = [2_500, 5_000];
const heartbeatMs = 1_500;
const transactLimits = {
  /** For a lock that another transaction has. */
  lock: 10_000,
  /** For an answer, but for that of `alter`. */
  query: 15_000,
  /** The server ends a transaction in which it gets no statement for so long: the locks of a host that has died are free then. */
  silent: 30_000,
};
/** Silence of a connection until the server's machine is asked whether it is there. */
const probeMs = 10_000;
const lockNotAvailable = "55P03";
/** Between two attempts: a server that refuses at once is asked ten times a second. */
const pauseMs = 100;
const idleMs = 60_000;
/** The statement that failed with the connection gets the error. */
const ignore = () => {};

/** A value of PostgreSQL's bigint is a number here: times and counters stay below 2^53. */
const int8 = 20;

export class Postgres {
  readonly #options: PostgresOptions;
  readonly #pg: Module;
  readonly #pool: Pool;
  #beating: Client | undefined;
  #isAway = false;
  #isClosed = false;
  #statements = 0;
  readonly #outcomes = { answered: 0, refused: 0, unanswered: 0 };

  private constructor(pg: Module, options: PostgresOptions) {
    this.#pg = pg;
    this.#options = options;
    const connectionTimeoutMillis = this.#slowed(onceMs);
    const config = { ...configOf(options.url, pg), connectionTimeoutMillis };
    this.#pool = new pg.Pool({ ...config, max: connectionsMax, idleTimeoutMillis: idleMs });
    this.#pool.on("error", () => {}); // an idle connection that ended: the next statement opens another
  }

  /** Opens no connection. The package is loaded here, and by a service of a cluster only. */
  static async open(options: PostgresOptions): Promise<Postgres> {
    return new Postgres((await import("pg")).default, options);
  }

  /** The last statement had no answer. */
  get isAway(): boolean {
    return this.#isAway;
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** Statements sent so far. */
  get statements(): number {
    return this.#statements;
  }

  /** `query`, `call` and `beat` so far: each time that one was to be sent. */
  get outcomes(): Readonly<Record<"answered" | "refused" | "unanswered", number>> {
    return this.#outcomes;
  }

  /** Throws a Refusal of a function of the schema, Unanswered, or the error of a wrong statement. */
  async query<Row extends QueryResultRow>(text: string, values: unknown[], options: StatementOptions): Promise<Row[]> {
    const { ticks } = this.#options;
    const began = ticks();
    const leftMs = () => began + this.#slowed(options.allMs ?? allMs) - ticks();
    let mayHaveRun = false;
    for (;;) {
      let isSent = false;
      const onSent = () => {
        isSent = true;
      };
      try {
        const limitMs = Math.min(this.#slowed(options.onceMs ?? onceMs), leftMs());
        const rows = await this.#once<Row>(text, values, limitMs, onSent);
        this.#isAway = false;
        this.#outcomes.answered += 1;
        return rows;
      } catch (error) {
        this.#outcomes[isAnswer(error) ? "refused" : "unanswered"] += 1;
        if (isAnswer(error)) {
          this.#isAway = false;
          throw withoutValues(error);
        }
        this.#isAway = !isUsable(error);
        mayHaveRun ||= isSent && !isUsable(error);
        if (this.#isClosed || leftMs() <= pauseMs) throw new Unanswered(options.what, withoutValues(error), mayHaveRun);
        await new Promise((resolve) => setTimeout(resolve, pauseMs));
      }
    }
  }

  /** Calls a function of the schema, whose result is one value. */
  async call<T>(name: string, values: unknown[], options: StatementOptions): Promise<T> {
    const places = values.map((_, index) => `$${index + 1}`).join(", ");
    const [row] = await this.query<{ result: T }>(`SELECT ${name}(${places}) AS result`, values, options);
    return row!.result;
  }

  /** As `call`, once, on the connection of the heartbeat. */
  async beat<T>(name: string, values: unknown[]): Promise<T> {
    const places = values.map((_, index) => `$${index + 1}`).join(", ");
    this.#statements += 1;
    try {
      this.#beating ??= await this.#connect();
      const { rows } = await this.#beating.query<{ result: T }>(`SELECT ${name}(${places}) AS result`, values);
      this.#isAway = false;
      this.#outcomes.answered += 1;
      return rows[0]!.result;
    } catch (error) {
      this.#outcomes[isAnswer(error) ? "refused" : "unanswered"] += 1;
      if (!isUsable(error)) {
        this.#beating?.end().catch(() => {});
        this.#beating = undefined;
        this.#isAway = true;
      }
      throw isAnswer(error) ? withoutValues(error) : new Unanswered("reach the other hosts", withoutValues(error));
    }
  }

  /** Runs `work` in one transaction, which is not repeated. */
  async transact<T>(work: (sql: Transaction) => Promise<T>): Promise<T> {
    const client = await this.#connected();
    const limits = { ...transactLimits, ...this.#options.transactMs };
    const slowed = (ms: number) => Math.ceil(this.#slowed(ms));
    const query = (text: string, values?: unknown[]) =>
      client.query({ text, values, query_timeout: slowed(limits.query) } as { text: string });
    try {
      await query("BEGIN");
      await query(
        "SELECT set_config('lock_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $2, true)",
        [`${slowed(limits.lock)}ms`, `${slowed(limits.silent)}ms`],
      );
      const result = await work({ query, alter: (text) => client.query(text) });
      await query("COMMIT");
      client.release();
      return result;
    } catch (error) {
      client.release(true); // which rolls back
      throw (error as { code?: unknown }).code === lockNotAvailable ? areLocked(error) : withoutValues(error);
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await Promise.all([this.#pool.end(), this.#beating?.end()].map((ended) => ended?.catch(() => {})));
  }

  async #once<Row extends QueryResultRow>(
    text: string,
    values: unknown[],
    timeoutMs: number,
    onSent: () => void,
  ): Promise<Row[]> {
    const client = await this.#connected();
    onSent();
    this.#statements += 1;
    let isBroken = true;
    try {
      const { rows } = await client.query<Row>({ text, values, query_timeout: Math.max(1, timeoutMs) } as {
        text: string;
      });
      isBroken = false;
      return rows;
    } catch (error) {
      isBroken = !isUsable(error);
      throw error;
    } finally {
      client.release(isBroken);
    }
  }

  /** The pool listens to idle connections alone: one that ends during a statement would end the process. */
  async #connected(): Promise<PoolClient> {
    const client = await this.#pool.connect();
    if (!client.listeners("error").includes(ignore)) client.on("error", ignore);
    return client;
  }

  async #connect(): Promise<Client> {
    this.#requireOpen();
    const { Client: Made } = this.#pg;
    const limitMs = this.#slowed(heartbeatMs);
    const client = new Made({
      ...configOf(this.#options.url, this.#pg),
      ...{ connectionTimeoutMillis: limitMs, query_timeout: limitMs },
    });
    client.on("error", () => {
      if (this.#beating === client) this.#beating = undefined;
    });
    try {
      await client.connect();
      this.#requireOpen();
    } catch (error) {
      client.end().catch(() => {});
      throw error;
    }
    return client;
  }

  /** `close` ends the connections that there are. The pool refuses later ones itself. */
  #requireOpen(): void {
    if (this.#isClosed) throw new Error("the connections to the database are closed");
  }

  #slowed(ms: number): number {
    return ms * (this.#options.slowness?.() ?? 1);
  }
}

function areLocked(error: unknown): Error {
  return new Error(
    "the cluster's tables are locked: another host or a command changes them, or has died in it; try again in a minute",
    { cause: withoutValues(error) },
  );
}

function configOf(url: string, pg: Module): PoolConfig {
  const getTypeParser = (type: number, format?: string) =>
    type === int8 ? Number : pg.types.getTypeParser(type, format as "text");
  return {
    connectionString: url,
    keepAlive: true,
    keepAliveInitialDelayMillis: probeMs,
    application_name: "capsule",
    types: { getTypeParser } as NonNullable<PoolConfig["types"]>,
  };
}
