/**
 * Keys that another host has made, before this one has read of them: one query asks for each. A key that the database does not have is not
 * asked for again for some seconds. The other host vouches for a key whose request it has passed on, while the database is away.
 */
import type { CatalogKey, CatalogRows } from "../db/catalog-rows.ts";
import type { TeamRow } from "../db/team-rows.ts";
import type { Credential, UnheardKeys } from "../http/services.ts";
import { hashOf, isKey } from "../teams/key-text.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Catalog } from "./catalog.ts";
import type { Postgres } from "./postgres.ts";

export interface NewKeysOptions {
  sql: Pick<Postgres, "query" | "isAway">;
  rows: Pick<CatalogRows, "has">;
  catalog: () => Pick<Catalog, "put" | "generation">;
  /** Monotonic milliseconds. */
  ticks: () => number;
}

type Found = CatalogKey & { team: string; teamCreatedAt: number; isDeleted: boolean };

/** Queries under way; a client whose key would be one more is asked to come again. */
const queriesMax = 16;
/** A lookup is given up after that time: its client may come again. */
const [onceMs, allMs] = [1_500, 2_000];
/** Times that a key is looked for while teams and keys change. */
const askedMax = 3;
const absentMs = 10_000;
const absentMax = 10_000;
const vouchedMax = 10_000;

export class NewKeys implements UnheardKeys {
  readonly #options: NewKeysOptions;
  readonly #queries = new Map<string, Promise<boolean>>();
  /** Hashes and ids that the database does not have, with the ticks until which that is remembered; the oldest first. */
  readonly #absent = new Map<string, number>();
  /** Ids of keys of which only another host knows. */
  readonly #vouched = new Set<string>();

  constructor(options: NewKeysOptions) {
    this.#options = options;
  }

  isUnheard(credential: Credential): boolean {
    if ("key" in credential && !isKey(credential.key)) return false;
    const name = nameOf(credential);
    return !this.#options.rows.has(name) && (this.#absent.get(name) ?? 0) <= this.#options.ticks();
  }

  async learn(credential: Credential): Promise<boolean> {
    const name = nameOf(credential);
    const asked = this.#queries.get(name);
    if (asked !== undefined) return await asked;
    if (this.#queries.size >= queriesMax || this.#options.sql.isAway) throw unknownNow();
    const query = this.#ask(name).finally(() => this.#queries.delete(name));
    this.#queries.set(name, query);
    return await query;
  }

  /** Resolves when this host knows the key, or takes the other one's word for it. */
  async vouch(keyId: string): Promise<void> {
    try {
      await this.learn({ keyId });
    } catch {
      if (this.#vouched.size < vouchedMax) this.#vouched.add(keyId);
    }
  }

  isVouched(keyId: string): boolean {
    return this.#vouched.has(keyId);
  }

  /** Call it before the catalog's number is asked for, and the returned function when all keys of the cluster have been read: what is not among them is none. */
  beginReading(): () => void {
    const before = [...this.#vouched];
    return () => {
      for (const keyId of before) this.#vouched.delete(keyId);
    };
  }

  /** An answer from before a change that was applied meanwhile may bring back what that one has ended. */
  async #ask(name: string): Promise<boolean> {
    const catalog = this.#options.catalog();
    for (let asked = 0; asked < askedMax; asked++) {
      const { generation } = catalog;
      const found = await this.#find(name);
      if (catalog.generation === generation) return this.#put(name, found);
    }
    throw unknownNow();
  }

  async #find(name: string): Promise<Found | undefined> {
    const column = isId(name) ? "id" : "hash";
    const [found] = await this.#options.sql.query<Found>(
      `SELECT k.id, k.team_id AS "teamId", k.label, k.prefix, k.hash, k.created_at AS "createdAt", k.revoked_at AS "revokedAt",
         k.expires_at AS "expiresAt", k.made_by AS "madeBy", k.is_session AS "isSession",
         t.name AS team, t.created_at AS "teamCreatedAt", t.deleted_at IS NOT NULL AS "isDeleted"
       FROM keys k JOIN teams t ON t.id = k.team_id WHERE k.${column} = $1`,
      [name],
      { what: "look for a key", onceMs, allMs },
    );
    return found;
  }

  #put(name: string, found: Found | undefined): boolean {
    if (found === undefined || found.isDeleted) {
      this.#noteAbsent(name);
      return false;
    }
    const { team, teamCreatedAt, isDeleted: _, ...key } = found;
    const owner: TeamRow = { id: key.teamId, name: team, createdAt: teamCreatedAt };
    this.#options.catalog().put([key], [owner]);
    if (!this.#options.rows.has(name)) this.#noteAbsent(name); // it has expired
    return key.revokedAt === null && this.#options.rows.has(name);
  }

  #noteAbsent(name: string): void {
    const now = this.#options.ticks();
    for (const [each, untilTicks] of this.#absent) {
      if (untilTicks > now && this.#absent.size < absentMax) break;
      this.#absent.delete(each);
    }
    this.#absent.delete(name);
    this.#absent.set(name, now + absentMs);
  }
}

/** The id of a key, or the SHA-256 of its text in hexadecimal digits; no id looks like one. */
function nameOf(credential: Credential): string {
  return "keyId" in credential ? credential.keyId : hashOf(credential.key);
}

function isId(name: string): boolean {
  return name.startsWith("key-");
}

function unknownNow(): CapsuleError {
  const message = "it cannot be told now whether the key is valid: the cluster's database is away or busy";
  return new CapsuleError("unavailable", message, { retryAfterSec: 1 });
}
