/** Hosts of one process, each with its own HTTP server, peer port and rows, and a map of who holds what in place of a database. */
import type { CapsuleStore } from "../../src/capsules/store.ts";
import type { Holder, Holders } from "../../src/cluster/holders.ts";
import { PeerLinks } from "../../src/cluster/peer-links.ts";
import { PeerPlaces } from "../../src/cluster/peer-places.ts";
import { type PeerHandler, PeerServer } from "../../src/cluster/peer-server.ts";
import { Forwarder, type ForwarderOptions } from "../../src/http/forwarding/forwarder.ts";
import { SharedTickets } from "../../src/http/forwarding/shared-tickets.ts";

type Rows = Pick<CapsuleStore, "get" | "idNamed">;

export interface FakeMember {
  forwarder: Forwarder;
  holders: FakeHolders;
  links: PeerLinks;
  /** Opens the peer port. Call when the HTTP server is built. */
  open(): Promise<void>;
  server(): PeerServer;
}

export class FakeCluster {
  readonly secret = Buffer.alloc(32, 5);
  readonly rows = new Map<string, () => Rows>();
  /** Peer ports, or those of links in front of them. */
  readonly ports = new Map<string, number>();
  /** Settled when the peer port of a host listens. */
  readonly opened = new Map<string, Promise<void>>();
  readonly expired = new Set<string>();
  /** Hosts whose peer port is closed by their own word. */
  readonly absent = new Set<string>();
  readonly warnings: string[] = [];

  join(
    name: string,
    rows: () => Rows,
    { secret = this.secret, ...options }: { secret?: Uint8Array } & Pick<ForwarderOptions, "onStopping" | "times"> = {},
  ): FakeMember {
    const holders = new FakeHolders(this, name);
    const links = new PeerLinks({ holders, hostName: name, secret });
    const places = new PeerPlaces(holders, {
      get: (...of) => rows().get(...of),
      idNamed: (...of) => rows().idNamed(...of),
      leaving: new Set(),
    });
    const forwarder = new Forwarder({ places, links, tickets: new SharedTickets(this.secret), ...options });
    this.rows.set(name, rows);
    let server: PeerServer | undefined;
    const listen = async () => {
      const log = {
        info() {},
        warn: (_about: object, message: string) => void this.warnings.push(message),
        error() {},
      };
      const { peers } = forwarder;
      const handler: PeerHandler = {
        asksForUpgrade: (request) => peers.asksForUpgrade(request),
        serve: (http, hostOf) => peers.serve(http.unref(), hostOf), // a test that closes no server ends all the same
      };
      server = new PeerServer({ hostName: name, secret, handler, log });
      this.ports.set(name, await server.listen({ host: "127.0.0.1", port: 0 }));
    };
    const open = () => {
      const opened = listen();
      this.opened.set(name, opened);
      return opened;
    };
    return { forwarder, holders, links, open, server: () => server as PeerServer };
  }
}

/** The map of one host. */
export class FakeHolders implements Holders {
  /** Lookups, of which each would be a statement. */
  statements = 0;
  /** Capsules that the map has at another host than their own, until they are forgotten. */
  readonly stale = new Map<string, string>();
  /** Attempts to reach another host ask for its address. */
  addressesAsked = 0;
  isAway = false;
  /** No lookup would be a statement. */
  isKnowing = false;
  readonly #cluster: FakeCluster;
  readonly #name: string;

  constructor(cluster: FakeCluster, name: string) {
    this.#cluster = cluster;
    this.#name = name;
  }

  async find(team: string | undefined, key: string): Promise<Holder> {
    const stale = this.stale.get(key);
    if (stale !== undefined) return { at: "host", host: stale };
    this.statements++;
    if (this.isAway) return { at: "unavailable" };
    for (const [host, rows] of this.#cluster.rows) {
      const id = team === undefined || key.startsWith("cl-") ? key : rows().idNamed(team, key);
      const row = id === undefined ? undefined : rows().get(id);
      if (row === undefined || (team !== undefined && row.teamId !== team)) continue;
      if (host === this.#name) return { at: "here" };
      await this.#cluster.opened.get(host);
      return this.peer(host) === undefined ? { at: "unavailable", host } : { at: "host", host };
    }
    return { at: "nowhere" };
  }

  knows(_team: string | undefined, key: string): boolean {
    return this.stale.has(key) || this.isKnowing;
  }

  forget(_team: string | undefined, key: string): void {
    this.stale.delete(key);
  }

  peers(): string[] {
    return [...this.#cluster.ports.keys()].filter((host) => host !== this.#name && !this.#cluster.expired.has(host));
  }

  isAbsent(host: string): boolean {
    return !this.#cluster.expired.has(host) && this.#cluster.absent.has(host);
  }

  peer(host: string) {
    this.addressesAsked++;
    if (this.#cluster.expired.has(host)) return undefined;
    const port = this.#cluster.ports.get(host);
    return port === undefined ? undefined : { host, address: "127.0.0.1", port };
  }
}
