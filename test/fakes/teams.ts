/** Two teams with a key each, and the keys they make. */
import type { TeamsService } from "../../src/http/services.ts";
import type { Identity, KeyView, Requester } from "../../src/teams/teams.ts";
import { CapsuleError } from "../../src/wire/errors.ts";

export const keys = { red: "capk_red", blue: "capk_blue" } as const;

interface FakeKey extends KeyView {
  team: string;
  key: string;
  isSession: boolean;
}

export class FakeTeams implements TeamsService {
  #keys: FakeKey[] = Object.entries(keys).map(([team, key]) => ({
    team,
    key,
    id: `key-${team}`,
    name: "first",
    prefix: null,
    createdAt: Date.UTC(2024, 0, 1),
    lastUsedAt: null,
    expiresAt: null,
    madeBy: null,
    isSession: false,
  }));

  #made = Object.keys(keys).length - 1;
  readonly #listeners = new Set<{ keyId: string; listener: () => void }>();

  authenticate(apiKey: string): Identity | undefined {
    const found = this.#keys.find((each) => each.key === apiKey);
    if (found === undefined) return undefined;
    return { teamId: `team-${found.team}`, keyId: found.id, keyName: found.name, team: found.team };
  }

  isLive(keyId: string): boolean {
    return this.#keys.some((each) => each.id === keyId);
  }

  onRevoked(keyId: string, listener: () => void): () => void {
    const entry = { keyId, listener };
    this.#listeners.add(entry);
    return () => this.#listeners.delete(entry);
  }

  get listeners(): number {
    return this.#listeners.size;
  }

  keysOf(teamId: string): KeyView[] {
    return this.#keys.filter((each) => `team-${each.team}` === teamId).map(viewOf);
  }

  issueKey(requester: Requester, name: string): KeyView & { key: string } {
    return this.#issue(requester, name);
  }

  issueSessionKey(requester: Requester, name: string, lifeMs: number): KeyView & { key: string } {
    return this.#issue(requester, name, lifeMs);
  }

  #issue({ teamId, keyId }: Requester, name: string, lifeMs?: number): KeyView & { key: string } {
    const maker = this.#keys.find((each) => each.id === keyId);
    const number = ++this.#made;
    const createdAt = Date.UTC(2024, 0, 2);
    const made: FakeKey = {
      team: teamId.replace("team-", ""),
      key: `capk_${number}`,
      id: `key-${number}`,
      name,
      prefix: "capk_",
      createdAt,
      lastUsedAt: null,
      expiresAt: lifeMs === undefined ? null : createdAt + lifeMs,
      madeBy: (maker?.isSession ? maker.madeBy : maker?.id) ?? null,
      isSession: lifeMs !== undefined,
    };
    this.#keys.push(made);
    return { ...viewOf(made), key: made.key };
  }

  revokeKeyOf(teamId: string, keyId: string): string[] {
    if (!this.keysOf(teamId).some((key) => key.id === keyId)) {
      throw new CapsuleError("not_found", `there is no live key ${JSON.stringify(keyId)}`);
    }
    const made = this.#keys.filter((key) => key.madeBy === keyId).map(({ id }) => id);
    this.#keys = this.#keys.filter((key) => key.id !== keyId);
    for (const each of [...this.#listeners]) if (each.keyId === keyId) each.listener();
    return [keyId, ...made.flatMap((id) => this.revokeKeyOf(teamId, id))];
  }
}

function viewOf({ team: _, key: __, isSession: ___, ...view }: FakeKey): KeyView {
  return view;
}
