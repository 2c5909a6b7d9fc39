/**
 * Teams and their API keys. A key is shown once, when it is made; only its SHA-256 is stored. Keys are looked up by hash, so
 * a client cannot choose the bytes that are compared, and timing reveals nothing.
 */
import { randomBytes } from "node:crypto";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import type { KeyRow, NewKeyRow, TeamRow, TeamRows, TeamUse } from "../db/team-rows.ts";
import { UnwrittenTimes } from "../db/unwritten-times.ts";
import { keysMax } from "../wire/credentials.ts";
import { CapsuleError } from "../wire/errors.ts";
import { KeyEnds } from "./key-ends.ts";
import { hashOf, hasKeyLength, newKeyText, shownPart } from "./key-text.ts";

export interface Identity {
  teamId: string;
  keyId: string;
  keyName: string;
  /** The team's name. */
  team: string;
}

const defaultTeam = "default";
const teamPattern = /^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$/;
const labelMaxLength = 100;
/** How long a revoked key is still listed to the operator. */
export const revokedKeepMs = 30 * 24 * 3_600_000;

/** The key that a request came with. */
export type Requester = Pick<Identity, "teamId" | "keyId">;

/** A live key as its team sees it; times are epoch milliseconds. */
export interface KeyView {
  id: string;
  name: string;
  prefix: string | null;
  createdAt: number;
  lastUsedAt: number | null;
  expiresAt: number | null;
  /** Id of the key that made it; null: the operator made it, or an earlier release. */
  madeBy: string | null;
}

/** A key that is not inserted yet, and what its holder is shown. */
export interface DraftKey {
  row: NewKeyRow;
  made: KeyView & { key: string };
}

/** Both in milliseconds: since the epoch, and monotonic. */
export interface Clocks {
  now(): number;
  ticks(): number;
}

const systemClocks: Clocks = { now: () => Date.now(), ticks: () => performance.now() };

/** The wall clock. Set back, it goes on from its latest time, so no expired key is valid again and no life gets longer. */
function neverSetBack(clocks: Clocks): () => number {
  const read = () => ({ nowMs: clocks.now(), ticks: clocks.ticks() });
  let latest = read();
  return () => {
    const current = read();
    const expectedMs = Math.floor(latest.nowMs + current.ticks - latest.ticks);
    if (current.nowMs >= expectedMs) latest = current;
    return Math.max(current.nowMs, expectedMs);
  };
}

export class Teams {
  readonly #rows: TeamRows;
  readonly #now: () => number;
  /** Time of last use by key id, until the next flush. */
  readonly #used = new UnwrittenTimes((times) => this.#rows.noteUsed(times));
  readonly #keyEnds = new KeyEnds((keyId) => this.isLive(keyId));
  #isVouched = (_keyId: string) => false;

  constructor(rows: TeamRows, clocks = systemClocks) {
    this.#rows = rows;
    this.#now = neverSetBack(clocks);
  }

  /** The key's holder; undefined when it is malformed, unknown, revoked (by any process) or expired. */
  authenticate(apiKey: string): Identity | undefined {
    if (!hasKeyLength(apiKey)) return undefined;
    const now = this.#now();
    const row = this.#rows.liveKey(hashOf(apiKey), now);
    if (row === undefined) return undefined;
    this.#used.set(row.id, now);
    return { teamId: row.teamId, keyId: row.id, keyName: row.label, team: row.team };
  }

  /** Returns the team of this name, made if it is new. Throws CapsuleError("invalid_request") for a bad name. */
  ensure(name: string): TeamRow {
    return this.#rows.ensure(this.draftTeam(name));
  }

  /** A new team, which is not inserted. Throws as `ensure`. */
  draftTeam(name: string): TeamRow {
    if (!teamPattern.test(name)) {
      throw new CapsuleError(
        "invalid_request",
        `a team's name is 1 to 64 letters, digits, dots, dashes and underscores and begins with a letter or digit; got ${JSON.stringify(name)}`,
      );
    }
    return { id: `team-${randomBytes(8).toString("hex")}`, name, createdAt: this.#now() };
  }

  named(name: string): TeamRow | undefined {
    return this.#rows.named(name);
  }

  /** By name, with the numbers of their capsules and templates. */
  list(): TeamUse[] {
    return this.#rows.list();
  }

  /** With all its keys. Throws CapsuleError("conflict") while it has capsules or templates. */
  delete({ id, name }: TeamRow): void {
    if (this.#rows.delete(id)) return;
    const reason = "it has capsules, or templates, or files of deleted templates that are being removed";
    throw new CapsuleError("conflict", `team ${name} is not deleted: ${reason}`);
  }

  /** As `delete`, of a team that was deleted elsewhere. False: what it still has here keeps it. */
  forget({ id }: Pick<TeamRow, "id">): boolean {
    return this.#rows.delete(id);
  }

  /** Makes a key of the team for the operator. `save` is called with its text before it is valid. */
  createKey(
    teamId: string,
    label: string,
    save: (key: string) => void = () => {},
    lifeMs: number | null = null,
  ): KeyView & { key: string } {
    const expiresAt = lifeMs === null ? null : this.#now() + lifeMs;
    const { row, made } = this.draft({ teamId, label, expiresAt, madeBy: null, isSession: false });
    save(made.key);
    this.#rows.insertKey(row);
    return made;
  }

  /** A new key, which is not inserted. Throws CapsuleError("invalid_request") for a long label. */
  draft(
    { label, expiresAt, madeBy, ...row }: Omit<NewKeyRow, "id" | "prefix" | "hash" | "createdAt">,
    id = `key-${randomBytes(6).toString("hex")}`,
  ): DraftKey {
    if (label.length > labelMaxLength) {
      throw new CapsuleError("invalid_request", `a key's label has at most ${labelMaxLength} characters`);
    }
    const key = newKeyText();
    const createdAt = this.#now();
    const prefix = shownPart(key);
    return {
      row: { ...row, id, label, prefix, hash: hashOf(key), createdAt, expiresAt, madeBy },
      made: { key, id, name: label, prefix, createdAt, lastUsedAt: null, expiresAt, madeBy },
    };
  }

  /**
   * Makes a key with another one. It ends with its maker at the latest. A key made in a session of the dashboard counts as
   * made by the key that made the sign-in link, so it does not end with the session. Throws CapsuleError: "unauthorized" when
   * the other key has ended meanwhile, "quota_exceeded", "invalid_request" for a name that is too long.
   */
  issueKey(requester: Requester, name: string): KeyView & { key: string } {
    return this.#issue(requester, name, null);
  }

  /** Makes the key of a dashboard's session, which ends after `lifeMs`. Throws as `issueKey`. */
  issueSessionKey(requester: Requester, name: string, lifeMs: number): KeyView & { key: string } {
    return this.#issue(requester, name, lifeMs);
  }

  #issue(requester: Requester, label: string, sessionMs: number | null): KeyView & { key: string } {
    const now = this.#now();
    return this.#rows.transact(() => {
      const { row, made } = this.draftKey(requester, label, sessionMs);
      this.#rows.removeKeys({ expired: now, revoked: now - revokedKeepMs });
      if (this.#rows.liveKeys(requester.teamId, now).length >= keysMax) {
        throw new CapsuleError("quota_exceeded", `cannot make a key: the team has ${keysMax} already`);
      }
      this.#rows.insertKey(row);
      return made;
    });
  }

  /** A key as `issueKey` or `issueSessionKey` makes it, which is not inserted. Throws as they do, but for the quota. */
  draftKey({ teamId, keyId }: Requester, label: string, sessionMs: number | null, id?: string): DraftKey {
    const now = this.#now();
    const maker = this.#rows.maker(keyId, now);
    if (maker === undefined) throw new CapsuleError("unauthorized", "the API key is no longer valid");
    const ends = [maker.expiresAt, sessionMs === null ? null : now + sessionMs].filter((each) => each !== null);
    const expiresAt = ends.length === 0 ? null : Math.min(...ends);
    return this.draft({ teamId, label, expiresAt, madeBy: maker.id, isSession: sessionMs !== null }, id);
  }

  /** The live key with this id, of any team. */
  key(keyId: string): KeyView | undefined {
    const row = this.#rows.liveKeyById(keyId, this.#now());
    return row === undefined ? undefined : this.#viewOf(row);
  }

  /** The team's live keys, oldest first. */
  keysOf(teamId: string): KeyView[] {
    return this.#rows.liveKeys(teamId, this.#now()).map((row) => this.#viewOf(row));
  }

  #viewOf({ id, label, prefix, createdAt, lastUsedAt, expiresAt, madeBy }: KeyRow): KeyView {
    return { id, name: label, prefix, createdAt, lastUsedAt: this.#used.get(id) ?? lastUsedAt, expiresAt, madeBy };
  }

  /** Whether the team of this name has, or had lately, a key. */
  hasKeys(name: string): boolean {
    return this.#rows.hasKeys(name);
  }

  /**
   * Revokes a key of the requester's team and all keys made with it; returns their ids. A key that the operator made revokes any
   * key of its team; any other revokes itself and what it made, and a session what the key behind it made. Throws CapsuleError:
   * the same "not_found" for another team's key as for an unknown one, "forbidden".
   */
  revokeKeyOf(requester: Requester, keyId: string): string[] {
    this.requireRevocable(requester, keyId);
    return this.revokeKey(keyId);
  }

  /** Throws as `revokeKeyOf`, and revokes nothing. */
  requireRevocable({ teamId, keyId: requesterId }: Requester, keyId: string): void {
    const keys = this.keysOf(teamId);
    if (!keys.some((key) => key.id === keyId)) throw missingKey(keyId);
    const maker = this.#rows.maker(requesterId, this.#now());
    const isOperators = maker?.id === requesterId && keys.find(({ id }) => id === requesterId)?.madeBy === null;
    const isBelow = () => typeof maker?.id === "string" && this.#rows.isMadeWith(keyId, maker.id);
    if (keyId !== requesterId && !isOperators && !isBelow()) {
      throw new CapsuleError(
        "forbidden",
        `key ${JSON.stringify(keyId)} was not made with this one: revoke it with its maker, or let the operator revoke it`,
      );
    }
  }

  keys(): KeyRow[] {
    return this.#rows.keys();
  }

  /**
   * Revokes the key and all keys made with it, directly or indirectly; with `keepMade`, only the key. Returns the ids of the
   * revoked keys. Throws CapsuleError("not_found") when no live key has this id.
   */
  revokeKey(keyId: string, keepMade = false): string[] {
    const revoked = this.#rows.revoke(keyId, this.#now(), keepMade);
    if (revoked.length === 0) throw missingKey(keyId);
    this.#keyEnds.notify(revoked);
    return revoked;
  }

  /** The holder of a key with this id; undefined when it is unknown, revoked (by any process) or expired. */
  holderOf(keyId: string): Identity | undefined {
    const row = this.#rows.liveKeyById(keyId, this.#now());
    if (row === undefined) return undefined;
    return { teamId: row.teamId, keyId: row.id, keyName: row.label, team: row.team };
  }

  /** Epoch milliseconds, by a clock that is never set back: the times at which credentials end are compared with it. */
  now(): number {
    return this.#now();
  }

  /** Neither revoked, by any process, nor expired; or vouched for. */
  isLive(keyId: string): boolean {
    return this.#rows.isLive(keyId, this.#now()) || this.#isVouched(keyId);
  }

  /** From then on a key without a row is live while `isVouched` says so. */
  trust(isVouched: (keyId: string) => boolean): void {
    this.#isVouched = (keyId) => isVouched(keyId) && !this.hasEnded(keyId);
  }

  /** Revoked or expired. A key that another host has just made is neither live nor ended here. */
  hasEnded(keyId: string): boolean {
    return this.#rows.hasEnded(keyId, this.#now());
  }

  /**
   * Calls `listener` once when the key ends: at once when this process revokes it, but for further listeners than `listenersPerTurn`
   * of all keys, which follow in the next turns of the loop; at the next `checkRevoked` when another process does or it expires. The
   * returned function removes the listener.
   */
  onRevoked(keyId: string, listener: () => void): () => void {
    return this.#keyEnds.on(keyId, listener);
  }

  /** Calls the listeners of all keys, as though each key had ended. */
  endOpened(): void {
    this.#keyEnds.notifyAll();
  }

  /** As `KeyEnds.check`. */
  checkRevoked(): Promise<void> {
    return this.#keyEnds.check();
  }

  /** Writes the times of last use since the last call. */
  flush(): void {
    this.#used.flush();
  }

  /** As `UnwrittenTimes.flushInParts`. */
  flushInParts(): Promise<void> {
    return this.#used.flushInParts();
  }
}

/**
 * On the first start, makes the default team and its first key, and writes the key to `api-key` in the data folder before
 * the key is valid. Returns undefined when the team has keys already.
 */
export function ensureFirstKey(dataDir: string, teams: Teams): string | undefined {
  if (teams.hasKeys(defaultTeam)) return undefined;
  const path = join(dataDir, "api-key");
  const save = (key: string) => writeFileSync(path, `${key}\n`, { mode: 0o600, flush: true });
  return teams.createKey(teams.ensure(defaultTeam).id, "first", save).key;
}

function missingKey(keyId: string): CapsuleError {
  return new CapsuleError("not_found", `there is no live key ${JSON.stringify(keyId)}`);
}
