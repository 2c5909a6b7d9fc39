/** Where capsules are, for the HTTP server: those of this host by its own rows, all others as `Holders` says. */
import type { CapsuleStore } from "../capsules/store.ts";
import type { Place, Places } from "../http/forwarding.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Holders } from "./holders.ts";

type Held = Pick<Holders, "comingRow" | "find" | "forget" | "knows" | "left" | "leaving">;

export class PeerPlaces implements Places {
  readonly #holders: Held;
  readonly #store: Pick<CapsuleStore, "get" | "idNamed" | "leaving">;

  readonly #coming: NonNullable<Places["coming"]>;

  constructor(
    holders: Held,
    store: Pick<CapsuleStore, "get" | "idNamed" | "leaving">,
    coming: Places["coming"] = () => undefined,
  ) {
    this.#holders = holders;
    this.#store = store;
    this.#coming = coming;
  }

  /** A capsule of another team is not here: a foreign id costs what an unknown one does. `find` waits for one that is leaving. */
  isHere(team: string | undefined, key: string): boolean {
    const isId = team === undefined || key.startsWith("cl-");
    const id = isId ? key : this.#store.idNamed(team, key);
    const row = id === undefined ? undefined : this.#store.get(id);
    return row !== undefined && (team === undefined || row.teamId === team) && !this.#store.leaving.has(row.id);
  }

  knows(team: string | undefined, key: string): boolean {
    return this.#holders.knows(team, key);
  }

  coming(team: string | undefined, key: string): Promise<void> | undefined {
    return this.#coming(team, key);
  }

  async comingRow(team: string, key: string): ReturnType<NonNullable<Places["comingRow"]>> {
    return await this.#holders.comingRow?.(team, key);
  }

  leaving(team: string | undefined, key: string): Promise<unknown> | undefined {
    return this.#holders.leaving?.(team, key);
  }

  find(team: string | undefined, key: string): Promise<Place> {
    return this.#holders.find(team, key);
  }

  left(team: string, key: string, host: string): ReturnType<NonNullable<Places["left"]>> {
    const { left } = this.#holders;
    return left === undefined ? Promise.reject(unknownNow()) : left.call(this.#holders, team, key, host);
  }

  forget(team: string | undefined, key: string): void {
    this.#holders.forget(team, key);
  }
}

function unknownNow(): CapsuleError {
  return new CapsuleError("unavailable", "it cannot be told now which host holds the capsule");
}
