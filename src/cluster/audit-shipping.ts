/** The audit log of the cluster: each host's entries are written in its own database first, and sent to PostgreSQL behind that. */
import type { AuditQuery, AuditRow, AuditRows } from "../db/audit-rows.ts";
import type { Log } from "../log.ts";
import { Unanswered } from "./failures.ts";
import type { Postgres } from "./postgres.ts";
import { jsonOf } from "./rows.ts";

export interface AuditShippingOptions {
  sql: Postgres;
  host: string;
  rows: AuditRows;
  log: Log;
}

const rowsMax = 500;
/** Rows that got their exit code after they were sent, and are sent again. */
const againMax = 10_000;
const what = { what: "read the audit log" };

const fields = `seq AS id, at, team_id AS "teamId", key_id AS "keyId", key_name AS "keyName", address, action,
  capsule_id AS "capsuleId", subject, status, exit_code AS "exitCode"`;

/** Newest first, those that the hosts have sent so far. Throws "unavailable". */
export async function sentEntries(
  sql: Postgres,
  teamId: string,
  { limit, before, capsuleId }: AuditQuery,
): Promise<AuditRow[]> {
  return await sql.query<AuditRow>(
    `SELECT ${fields} FROM audit WHERE team_id = $1 AND seq < $2 AND ($3::text IS NULL OR capsule_id = $3)
     ORDER BY seq DESC LIMIT $4`,
    [teamId, before ?? Number.MAX_SAFE_INTEGER, capsuleId ?? null, limit],
    what,
  );
}

export class AuditShipping {
  readonly #options: AuditShippingOptions;
  /** The id of the last row that PostgreSQL has; undefined: not known yet. */
  #sent: number | undefined;
  /** The name under which PostgreSQL knows this host's rows. */
  #source = "";
  readonly #again = new Set<number>();
  #shipping: Promise<void> | undefined;

  constructor(options: AuditShippingOptions) {
    this.#options = options;
    options.rows.onExitCode = (id) => {
      if (id <= (this.#sent ?? 0) && this.#again.size < againMax) this.#again.add(id);
    };
  }

  /** Sends what was not sent yet. Throws "unavailable". */
  ship(): Promise<void> {
    this.#shipping ??= this.#shipAll().finally(() => {
      this.#shipping = undefined;
    });
    return this.#shipping;
  }

  /** The id of the last row that PostgreSQL has. */
  get sentThrough(): number {
    return this.#sent ?? 0;
  }

  /** As `ship`, where no request waits for it: the next call tries again. */
  async try(): Promise<void> {
    const { sql, log } = this.#options;
    try {
      await this.ship();
    } catch (error) {
      if (!sql.isAway)
        log.error({ err: error }, "audit entries could not be sent to the cluster; it will be tried again");
    }
  }

  /** Newest first, of all hosts. Throws "unavailable". */
  async list(teamId: string, query: AuditQuery): Promise<AuditRow[]> {
    await this.ship();
    return await sentEntries(this.#options.sql, teamId, query);
  }

  async #shipAll(): Promise<void> {
    const { sql, host, rows } = this.#options;
    if (this.#sent === undefined) {
      const [last] = await sql.query<{ source: string; seq: number }>(
        `SELECT s.source, (SELECT COALESCE(MAX(host_seq), 0) FROM audit WHERE host = s.source) AS seq
         FROM (SELECT audit_source($1) AS source) s`,
        [host],
        what,
      );
      this.#source = last?.source ?? host;
      this.#sent = Math.max(last?.seq ?? 0, rows.sentThrough());
    }
    for (;;) {
      const batch = rows.after(this.#sent, rowsMax);
      const again = [...this.#again]
        .slice(0, rowsMax)
        .map((id) => rows.get(id))
        .filter((row) => row !== undefined);
      if (batch.length === 0 && again.length === 0) return;
      await this.#sendAll([...batch, ...again]);
      for (const { id } of again) this.#again.delete(id);
      this.#sent = batch.at(-1)?.id ?? this.#sent;
    }
  }

  /** An entry that the database refuses is left out, and holds up no other one. */
  async #sendAll(rows: readonly AuditRow[]): Promise<void> {
    try {
      await this.#send(rows);
    } catch (error) {
      if (error instanceof Unanswered) throw error;
      const [first] = rows;
      if (rows.length > 1) for (const row of rows) await this.#sendAll([row]);
      else this.#options.log.error({ err: error, entry: first?.id }, "an audit entry was refused by the cluster");
    }
  }

  async #send(rows: readonly AuditRow[]): Promise<void> {
    const { sql } = this.#options;
    const values = rows.map((row) => ({
      ...{
        host: this.#source,
        host_seq: row.id,
        at: row.at,
        team_id: row.teamId,
        key_id: row.keyId,
        key_name: row.keyName,
      },
      ...{ address: row.address, action: row.action, capsule_id: row.capsuleId, subject: row.subject },
      ...{ status: row.status, exit_code: row.exitCode },
    }));
    const names = Object.keys(values[0]!).join(", ");
    await sql.query(
      `INSERT INTO audit (${names}) SELECT ${names} FROM jsonb_populate_recordset(NULL::audit, $1) ORDER BY host_seq
       ON CONFLICT (host, host_seq) DO UPDATE SET exit_code = excluded.exit_code WHERE audit.exit_code IS NULL`,
      [jsonOf(values)],
      { what: "send the audit log to the cluster" },
    );
  }
}
