/**
 * Bounds the entries of each team. Each kind of entries has a share of the team's maximum. Beyond the maximum the oldest entries of a
 * kind that has more than its share are removed, so entries within the share of their kind are never displaced by other kinds.
 */
import type { AuditKind, AuditRows, KindCount } from "../db/audit-rows.ts";

/** Parts of a team's maximum; together 1. */
const shares: Record<AuditKind, number> = { other: 1 / 2, lifecycle: 1 / 4, keys: 1 / 8, templates: 1 / 8 };
/** Rows beyond a team's maximum before some are removed. */
const excessMax = 1_000;
/** Rows of one team that are removed, or counted by kind, in one call: some 10 ms of the event loop. */
const batch = 5_000;

interface TeamEntries {
  total: number;
  /** The rows up to `counted`, by kind. Filled when the team first has too many: a start would read all rows of all teams. */
  kinds: Map<AuditKind, Pick<KindCount, "kind" | "count" | "first">>;
  counted: number;
  isCounted: boolean;
}

export class AuditShares {
  readonly #rows: AuditRows;
  readonly #max: number;
  readonly #teams: Map<string, TeamEntries>;

  constructor(rows: AuditRows, max: number) {
    this.#rows = rows;
    this.#max = max;
    this.#teams = new Map([...rows.counts()].map(([teamId, total]) => [teamId, uncounted(total)]));
  }

  /** To be called for each row that was appended. */
  add(teamId: string, kind: AuditKind): void {
    const team = this.#teams.get(teamId) ?? uncounted(0);
    this.#teams.set(teamId, team);
    team.total++;
    if (team.isCounted) this.#count(team, { kind, count: 1, first: 0 });
  }

  /** Removes a bounded number of rows, when the team has too many. */
  enforce(teamId: string): void {
    const team = this.#teams.get(teamId);
    const excess = (team?.total ?? 0) - this.#max;
    if (team === undefined || excess <= excessMax || !this.#hasCounted(teamId, team)) return;
    const excessOf = ({ kind, count }: { kind: AuditKind; count: number }) => count - shares[kind] * this.#max;
    // Entries of any number are made by reads and commands, so these pay first.
    const rank = (of: { kind: AuditKind; count: number }) => (of.kind === "other" ? this.#max : 0) + excessOf(of);
    const [payer] = [...team.kinds.values()].filter((of) => excessOf(of) > 0).sort((a, b) => rank(b) - rank(a));
    const count = payer === undefined ? 0 : Math.min(excess, Math.ceil(excessOf(payer)), batch);
    const through = payer && this.#rows.removeOldest(teamId, payer, count);
    if (payer === undefined || through === undefined) {
      this.#teams.set(teamId, uncounted(team.total)); // rows were removed by another process
      return;
    }
    payer.first = through + 1;
    payer.count -= count;
    team.total -= count;
  }

  /** Removes a bounded number of rows older than `at` of each team. */
  removeBefore(at: number): void {
    for (const [teamId, { total }] of this.#teams) {
      const removed = this.#rows.removeBefore(teamId, at, batch);
      if (removed > 0) this.#teams.set(teamId, uncounted(total - removed));
    }
  }

  /** Counts the next rows by kind; true when all are counted. */
  #hasCounted(teamId: string, team: TeamEntries): boolean {
    if (team.isCounted) return true;
    const counts = this.#rows.kinds(teamId, team.counted, batch);
    for (const of of counts) {
      this.#count(team, of);
      team.counted = Math.max(team.counted, of.last);
    }
    team.isCounted = counts.reduce((sum, { count }) => sum + count, 0) < batch;
    return team.isCounted;
  }

  #count({ kinds }: TeamEntries, { kind, count, first }: Pick<KindCount, "kind" | "count" | "first">): void {
    const known = kinds.get(kind);
    if (known === undefined) kinds.set(kind, { kind, count, first });
    else known.count += count;
  }
}

function uncounted(total: number): TeamEntries {
  return { total, kinds: new Map(), counted: 0, isCounted: false };
}
