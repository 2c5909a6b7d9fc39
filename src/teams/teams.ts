/**
 * Teams and their API keys. A key is shown once, at its making; what is kept is its SHA-256. Looking a key up by its
 * hash gives an attacker nothing to time: the bytes compared are not the bytes he chose.
 */
import { hash, randomBytes } from "node:crypto";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import type { KeyRow, TeamRow, TeamRows } from "../db/team-rows.ts";
import { CapsuleError } from "../wire/errors.ts";

export interface Identity {
  teamId: string;
  keyId: string;
  keyName: string;
  /** The team's name. */
  team: string;
}

const defaultTeam = "default";
const keyPrefix = "capk_";
const keyRandomBytes = 24; // 192 bits
const keyLength = keyPrefix.length + 2 * keyRandomBytes;
const teamPattern = /^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$/;
const labelMaxLength = 100;
/** What is kept of a key to recognize it by: 16 of its 192 random bits. */
const shownLength = keyPrefix.length + 4;
/** Live keys of one team. */
const keysMax = 1_000;
/** How long a revoked key is still listed to the operator. */
const rememberMs = 30 * 24 * 3_600_000;

/** A live key as its team sees it; times are epoch milliseconds. */
export interface KeyView {
  id: string;
  name: string;
  prefix: string | null;
  createdAt: number;
  lastUsedAt: number | null;
  expiresAt: number | null;
}

export class Teams {
  readonly #rows: TeamRows;
  readonly #now: () => number;
  /** Uses not yet written: last use is recorded in batches, not with a write per request. */
  readonly #used = new Map<string, number>();
  /** Who wants to know when a key ends, by key id: what a key has opened must not outlive it. */
  readonly #onRevoked = new Map<string, Set<() => void>>();

  constructor(rows: TeamRows, now: () => number = Date.now) {
    this.#rows = rows;
    this.#now = now;
  }

  /** Who holds this key; undefined when it is malformed, unknown, revoked or expired. Sees other processes' changes at once. */
  authenticate(apiKey: string): Identity | undefined {
    if (apiKey.length !== keyLength) return undefined;
    const now = this.#now();
    const row = this.#rows.liveKey(hashOf(apiKey), now);
    if (row === undefined) return undefined;
    this.#used.set(row.id, now);
    return { teamId: row.teamId, keyId: row.id, keyName: row.label, team: row.team };
  }

  /** Makes the team if it is new. Throws CapsuleError("invalid_request") for a bad name. */
  ensure(name: string): TeamRow {
    if (!teamPattern.test(name)) {
      throw new CapsuleError(
        "invalid_request",
        `a team's name is 1 to 64 letters, digits, dots, dashes and underscores and begins with a letter or digit; got ${JSON.stringify(name)}`,
      );
    }
    return this.#rows.ensure({ id: `team-${randomBytes(8).toString("hex")}`, name, createdAt: this.#now() });
  }

  /** A new key of the team; the only time its text exists. `keep` sees it before it is valid. */
  createKey(
    teamId: string,
    label: string,
    keep: (key: string) => void = () => {},
    lifeMs: number | null = null,
  ): KeyView & { key: string } {
    if (label.length > labelMaxLength) {
      throw new CapsuleError("invalid_request", `a key's label has at most ${labelMaxLength} characters`);
    }
    const key = keyPrefix + randomBytes(keyRandomBytes).toString("hex");
    const id = `key-${randomBytes(6).toString("hex")}`;
    keep(key);
    const createdAt = this.#now();
    const expiresAt = lifeMs === null ? null : createdAt + lifeMs;
    const prefix = key.slice(0, shownLength);
    this.#rows.insertKey({ id, teamId, label, prefix, hash: hashOf(key), createdAt, expiresAt });
    return { key, id, name: label, prefix, createdAt, lastUsedAt: null, expiresAt };
  }

  /**
   * A new key that the team makes for itself, without end unless `lifeMs` is given. Throws CapsuleError:
   * "quota_exceeded", "invalid_request" for a name that is too long.
   */
  issueKey(teamId: string, name: string, lifeMs: number | null = null): KeyView & { key: string } {
    const now = this.#now();
    this.#rows.forgetKeys({ expired: now, revoked: now - rememberMs });
    if (this.#rows.liveKeys(teamId, now).length >= keysMax) {
      throw new CapsuleError("quota_exceeded", `cannot make a key: the team has ${keysMax} already`);
    }
    return this.createKey(teamId, name, undefined, lifeMs);
  }

  /** The team's live keys, oldest first. */
  keysOf(teamId: string): KeyView[] {
    return this.#rows.liveKeys(teamId, this.#now()).map(({ id, label, prefix, createdAt, lastUsedAt, expiresAt }) => {
      return { id, name: label, prefix, createdAt, lastUsedAt: this.#used.get(id) ?? lastUsedAt, expiresAt };
    });
  }

  /** Throws CapsuleError("not_found") for another team's key exactly as for one that never was. */
  revokeKeyOf(teamId: string, keyId: string): void {
    if (!this.keysOf(teamId).some((key) => key.id === keyId)) throw missingKey(keyId);
    this.revokeKey(keyId);
  }

  keys(): KeyRow[] {
    return this.#rows.keys();
  }

  /** Throws CapsuleError("not_found") when no live key has this id. */
  revokeKey(keyId: string): void {
    if (!this.#rows.revoke(keyId, this.#now())) throw missingKey(keyId);
    this.#tellRevoked(keyId);
  }

  /** Neither revoked, be it by another process a moment ago, nor expired. */
  isLive(keyId: string): boolean {
    return this.#rows.isLive(keyId, this.#now());
  }

  /**
   * Calls `listener` once when the key has ended: at once when this process revokes it, at the next `noticeRevoked`
   * when another does or its time is over. The returned function takes it back.
   */
  onRevoked(keyId: string, listener: () => void): () => void {
    const listeners = this.#onRevoked.get(keyId) ?? new Set();
    this.#onRevoked.set(keyId, listeners.add(listener));
    return () => {
      listeners.delete(listener);
      if (listeners.size === 0 && this.#onRevoked.get(keyId) === listeners) this.#onRevoked.delete(keyId);
    };
  }

  /** Looks again at each key that somebody listens for: one read of a row per key, however many listen. */
  noticeRevoked(): void {
    for (const keyId of [...this.#onRevoked.keys()]) if (!this.isLive(keyId)) this.#tellRevoked(keyId);
  }

  /** Writes the uses noted since the last call. */
  flush(): void {
    if (this.#used.size === 0) return;
    this.#rows.noteUsed(this.#used);
    this.#used.clear();
  }

  #tellRevoked(keyId: string): void {
    const listeners = this.#onRevoked.get(keyId) ?? [];
    this.#onRevoked.delete(keyId);
    for (const listener of listeners) listener();
  }
}

/**
 * On the first start, makes the default team and its first key, and writes the key to `api-key` in the data folder before
 * the key is valid. Returns undefined when the team has keys already.
 */
export function ensureFirstKey(dataDir: string, teams: Teams): string | undefined {
  if (teams.keys().some(({ team }) => team === defaultTeam)) return undefined;
  const path = join(dataDir, "api-key");
  const save = (key: string) => writeFileSync(path, `${key}\n`, { mode: 0o600 });
  return teams.createKey(teams.ensure(defaultTeam).id, "first", save).key;
}

/** SHA-256 in hexadecimal digits. */
function hashOf(key: string): string {
  return hash("sha256", key, "hex");
}

function missingKey(keyId: string): CapsuleError {
  return new CapsuleError("not_found", `there is no live key ${JSON.stringify(keyId)}`);
}
