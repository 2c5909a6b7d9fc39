/** Access to a port's URL: for anybody where the port is public, by a key of the capsule's team, or by a token of this port. */
import { checkPortToken } from "../../network/port-tokens.ts";
import type { Identity } from "../../teams/teams.ts";
import { CapsuleError } from "../../wire/errors.ts";
import type { Authentication } from "../access/authentication.ts";
import type { Services } from "../services.ts";
import type { Credentials } from "./port-credentials.ts";
import type { PortAddress } from "./port-hosts.ts";

/** As the service keeps it. */
export type PortAccess = NonNullable<ReturnType<Services["capsules"]["portAccess"]>>;

/** The client of a request, as the limits of the API know it. */
export interface Caller {
  ip: string;
  authenticated(identity: Identity): void;
}

export interface Grant {
  teamId: string;
  hostHeader: string | null;
  /** Undefined: neither a public port nor a token needs one. */
  identity: Identity | undefined;
  publicPorts: readonly number[];
  /** `Authorization` holds a valid key. */
  hidesAuthorization: boolean;
  /** The good token of the query that ends last; in epoch milliseconds. */
  queryToken: { token: string; expiresAt: number } | undefined;
  /** Good tokens. */
  tokens: readonly string[];
}

/** The same for a capsule that does not exist. */
const refused = "this URL needs a key or a token of its port, and the request has none that is valid";

export class PortDoor {
  readonly #teams: Pick<Services["teams"], "authenticate" | "isLive" | "now" | "onRevoked">;
  readonly #capsules: Pick<Services["capsules"], "portAccess" | "onPortsChanged">;
  readonly #authentication: Pick<Authentication, "refusal" | "admitKey">;

  constructor(
    { teams, capsules }: Pick<Services, "teams" | "capsules">,
    authentication: Pick<Authentication, "refusal" | "admitKey">,
  ) {
    this.#teams = teams;
    this.#capsules = capsules;
    this.#authentication = authentication;
  }

  /**
   * `access`: where this host does not hold the capsule. Throws "unauthorized", "not_found" for the key of another team,
   * "quota_exceeded".
   */
  open(
    address: PortAddress,
    credentials: Credentials,
    caller: Caller,
    access = this.#capsules.portAccess(address.id),
  ): Grant {
    const holders = credentials.keys.map((key) => this.#teams.authenticate(key)).filter((each) => each !== undefined);
    const identity = holders.find(({ teamId }) => teamId === access?.teamId);
    for (const each of identity === undefined ? holders.slice(0, 1) : [identity]) {
      caller.authenticated(each);
      this.#authentication.admitKey(each);
    }
    const isPublic = access?.publicPorts.includes(address.port) === true;
    const tokens =
      access === undefined
        ? []
        : credentials.tokens.filter((token) => this.#endOf(token, address, access) !== undefined);
    if (access !== undefined && (isPublic || identity !== undefined || tokens.length > 0)) {
      const { teamId, hostHeader, publicPorts } = access;
      return {
        ...{ teamId, hostHeader, identity, publicPorts, tokens },
        hidesAuthorization: credentials.authorizationKeys.some((key) => this.#teams.authenticate(key) !== undefined),
        queryToken: credentials.queryTokens
          .map((token) => ({ token, expiresAt: this.#endOf(token, address, access) ?? 0 }))
          .filter(({ expiresAt }) => expiresAt > 0)
          .sort((one, other) => other.expiresAt - one.expiresAt)[0],
      };
    }
    if (holders.length > 0) throw new CapsuleError("not_found", `there is no capsule ${address.id}`);
    throw this.#authentication.refusal(caller, refused);
  }

  now(): number {
    return this.#teams.now();
  }

  /**
   * Calls back when nothing of what opened the port does so any more; the returned function ends that. A token that has merely expired
   * still holds what it has opened.
   */
  onShut(address: PortAddress, grant: Grant, callback: () => void): () => void {
    const openedAt = this.#teams.now();
    let hasKeyEnded = false;
    const isOpen = () => {
      const access = this.#capsules.portAccess(address.id);
      if (access === undefined) return false;
      if (access.publicPorts.includes(address.port)) return true;
      if (grant.identity !== undefined && !hasKeyEnded && this.#teams.isLive(grant.identity.keyId)) return true;
      return grant.tokens.some((token) => this.#endOf(token, address, access, openedAt) !== undefined);
    };
    const look = () => {
      if (!isOpen()) callback();
    };
    const ends = [this.#capsules.onPortsChanged(address.id, look)];
    if (grant.identity !== undefined)
      ends.push(
        this.#teams.onRevoked(grant.identity.keyId, () => {
          hasKeyEnded = true;
          look();
        }),
      );
    look(); // the grant is older than the request's turn
    return () => {
      for (const end of ends) end();
    };
  }

  #endOf(
    token: string,
    { id, port }: PortAddress,
    { secret }: PortAccess,
    now = this.#teams.now(),
  ): number | undefined {
    return secret === null ? undefined : checkPortToken(secret, token, { id, port, now });
  }
}
