/**
 * Statements of the hosts of a schedule, and their fates: answered, committed later, executed without an answer, lost, or executed long
 * after the host has given them up.
 */
import type { SentStatement, StatementPort } from "../../fakes/scheduled-pg.ts";
import type { Outcome, Running, ScheduledDatabase } from "./database.ts";
import { Life } from "./life.ts";
import type { Scheduler } from "./scheduler.ts";

export interface Fates {
  /** Probabilities of each fate of a statement. */
  held: number;
  unanswered: number;
  lost: number;
  late: number;
}

export const kind: Fates = { held: 0, unanswered: 0, lost: 0, late: 0 };

export interface Statement extends SentStatement {
  life: Life;
  /** The function that it calls; undefined: it reads. */
  call: string | undefined;
  /** It was executed when its host had another epoch. */
  isOld: boolean;
  answer: (outcome: Outcome) => void;
}

/** A host waits so long for an answer that does not come. */
const timeoutMs = 2_500;
/** Steps until a late statement is executed at the latest. */
const lateSteps = 80;

export class Statements {
  readonly #scheduler: Scheduler;
  readonly #database: ScheduledDatabase;
  fates: Fates = kind;
  /** By so much reads have a fate more seldom. */
  readsSafety = 1;
  /** Hosts that the database is away for. */
  readonly away = new Set<string>();
  /** Called when a host sends one. */
  /** Whether its host has another epoch now. */
  isOld: (statement: Statement) => boolean = () => false;
  /** Called when a statement that may change something is committed. */
  onCommitted: (statement: Statement, outcome: Outcome) => void = () => {};
  /** Called when a host is given an answer. */
  onAnswered: (statement: Statement, outcome: Outcome) => void = () => {};
  readonly #held: { statement: Statement; running: Running }[] = [];
  #blocked: { statement: Statement; running: Running }[] = [];
  #late: { statement: Statement; steps: number }[] = [];

  constructor(scheduler: Scheduler, database: ScheduledDatabase) {
    this.#scheduler = scheduler;
    this.#database = database;
  }

  /** For code that runs in a life. */
  port(): StatementPort {
    return {
      connect: async () => {
        const life = requireLife();
        if (!this.away.has(life.host)) return;
        await this.#scheduler.turn("no connection to the database");
        life.advance(timeoutMs);
        throw failure("ECONNREFUSED");
      },
      send: (sent) => this.#send(sent),
    };
  }

  get held(): number {
    return this.#held.length;
  }

  async commitOne(): Promise<void> {
    await this.#end(this.#scheduler.random.below(this.#held.length), "COMMIT");
  }

  /** Late statements whose time has come. True: one was executed. */
  async countDown(): Promise<boolean> {
    for (const each of this.#late) each.steps -= 1;
    const due = this.#late.find(({ steps }) => steps <= 0);
    if (due === undefined) return false;
    this.#late = this.#late.filter((each) => each !== due);
    this.#scheduler.note(`late: ${nameOf(due.statement)}`);
    await this.#execute({ ...due.statement, answer() {} }, false);
    return true;
  }

  /** The database's end: what is not committed is rolled back, and nobody is answered. */
  async crash(): Promise<void> {
    this.#scheduler.note("the database crashes");
    while (this.#held.length > 0) await this.#end(0, "ROLLBACK");
  }

  /** Late ones never come: their connections have ended. */
  dropLate(): void {
    this.#late = [];
  }

  /** No statement is under way any longer. */
  async finish(): Promise<void> {
    this.fates = kind;
    this.away.clear();
    for (const each of this.#late) each.steps = 0;
    while (this.#held.length > 0 || this.#late.length > 0) {
      while (this.#held.length > 0) await this.#end(0, "COMMIT");
      await this.countDown();
    }
  }

  #send(sent: SentStatement): Promise<{ rows: Record<string, unknown>[] }> {
    const life = requireLife();
    const { promise, resolve, reject } = Promise.withResolvers<{ rows: Record<string, unknown>[] }>();
    const answer = (outcome: Outcome) => {
      if (life.isOver) return;
      this.onAnswered(statement, outcome);
      if ("error" in outcome) reject(outcome.error);
      else resolve(outcome);
    };
    const call = /^SELECT (?:\* FROM )?([a-z_]+)\(\$/.exec(sent.text)?.[1] ?? callOf(sent.text);
    const statement: Statement = { ...sent, life, call, isOld: false, answer };
    this.#scheduler.add({ life, what: nameOf(statement), goOn: () => this.#meet(statement) });
    return promise;
  }

  async #meet(statement: Statement): Promise<void> {
    const { held, unanswered, lost, late } = this.fates;
    const fate = this.#scheduler.random.next() * (statement.call === undefined ? this.readsSafety : 1);
    const giveUp = (why: string) => {
      this.#scheduler.note(`  ${why}`);
      statement.life.advance(timeoutMs);
      statement.answer({ error: failure("ECONNRESET") });
    };
    if (this.away.has(statement.life.host) || fate < lost) return giveUp("lost");
    if (fate < lost + unanswered) {
      await this.#execute({ ...statement, answer() {} }, false);
      return giveUp("unanswered");
    }
    if (fate < lost + unanswered + late) {
      this.#late.push({ statement, steps: 1 + this.#scheduler.random.below(lateSteps) });
      return giveUp("to come late");
    }
    await this.#execute(statement, statement.call !== undefined && fate < lost + unanswered + late + held);
  }

  async #execute(statement: Statement, isHeld: boolean): Promise<void> {
    // PostgreSQL would let any of two that wait for one row go on first.
    while (statement.call !== undefined && this.#blocked.length > 0) await this.#end(0, "COMMIT");
    statement.isOld = this.isOld(statement);
    const running = await this.#database.begin(statement, isHeld);
    if (running.outcome === undefined) {
      this.#scheduler.note("  waits for a lock");
      this.#blocked.push({ statement, running });
    } else if (isHeld && "rows" in running.outcome) {
      this.#scheduler.note("  is not committed yet");
      this.#held.push({ statement, running });
    } else this.#committed(statement, running.outcome);
  }

  async #end(index: number, how: "COMMIT" | "ROLLBACK"): Promise<void> {
    const [{ statement, running }] = this.#held.splice(index, 1) as [{ statement: Statement; running: Running }];
    this.#scheduler.note(`${statement.life.name}: ${how} of ${nameOf(statement)}`);
    await this.#database.end(running, how);
    if (how === "COMMIT") this.#committed(statement, running.outcome!);
    else statement.answer({ error: failure("57P01") });
    const free = this.#blocked.filter((each) => each.running.outcome !== undefined);
    this.#blocked = this.#blocked.filter((each) => each.running.outcome === undefined);
    for (const each of free) {
      if (each.running.isHeld && "rows" in each.running.outcome!) this.#held.push(each);
      else this.#committed(each.statement, each.running.outcome!);
    }
  }

  #committed(statement: Statement, outcome: Outcome): void {
    if ("error" in outcome) this.#scheduler.note(`  ${outcome.error.message}`);
    if (statement.call !== undefined) this.onCommitted(statement, outcome);
    statement.answer(outcome);
  }
}

function requireLife(): Life {
  const life = Life.current;
  if (life === undefined) throw new Error("a statement comes from outside of every life");
  return life;
}

function failure(code: string): Error {
  return Object.assign(new Error(`the connection failed with ${code}`), { code });
}

function callOf(text: string): string | undefined {
  if (/ FROM ensure_team\(/.test(text)) return "ensure_team";
  if (text.startsWith("SELECT confirm_place()")) return "confirm_place";
  return /^\s*INSERT/.test(text) ? "INSERT" : undefined;
}

function nameOf({ call, text, values }: Statement): string {
  const first = typeof values[0] === "string" ? (/cl-[0-9a-z]{4}/.exec(values[0])?.[0] ?? "") : "";
  return `${call ?? text.replaceAll(/\s+/g, " ").slice(0, 50)} ${first}`.trimEnd();
}
