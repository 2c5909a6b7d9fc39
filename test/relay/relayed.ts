/** A relay in the test's process, with gateway peers of capsules, and dialler and resolver of the test's choice. */
import { setImmediate as tick } from "node:timers/promises";
import { RecentDecisions } from "../../src/network/recent-decisions.ts";
import type { Dialler } from "../../src/relay/dialler.ts";
import { TcpDialler } from "../../src/relay/dialler.ts";
import type { FromRelay, RelayLimits, RelayPolicy, RelaySettings } from "../../src/relay/messages.ts";
import type { Resolved, Resolver } from "../../src/relay/resolver.ts";
import { Runs } from "../../src/relay/runs.ts";
import type { NetworkDecision } from "../../src/wire/network.ts";
import { waitFor } from "../wait-for.ts";
import { GatewayPeer } from "./gateway-peer.ts";

export const testLimits: RelayLimits = {
  connectionsMax: 1_024,
  teamConnectionsMax: 8_192,
  connectionsPerSec: 200,
  connectionsBurst: 1_000,
  namesPerSec: 100,
  namesInFlightMax: 64,
  heldMaxBytes: 16 << 20,
};

/** Names of a test: their addresses, or what becomes of the question. */
export type Zone = Record<string, string[] | "failed">;

export class ZoneResolver implements Resolver {
  zone: Zone;
  readonly asked: string[] = [];

  constructor(zone: Zone) {
    this.zone = zone;
  }

  async addresses(name: string) {
    this.asked.push(name);
    await tick();
    const found = this.zone[name];
    if (found === undefined) return { failure: "no such name" } as const;
    if (found === "failed") return { failure: "failed" } as const;
    const number = (text: string) => text.split(".").reduce((sum, part) => sum * 256 + Number(part), 0);
    return { found: found.map((text) => ({ address: number(text), ttlSec: 30 })) };
  }

  async records(name: string, type: string): Promise<Resolved<never>> {
    this.asked.push(`${type} ${name}`);
    return { failure: "none" };
  }
}

export class Relayed implements AsyncDisposable {
  readonly runs: Runs;
  readonly resolver: ZoneResolver;
  readonly sent: FromRelay[] = [];
  readonly #decided = new Map<number, RecentDecisions>();
  readonly #peers: GatewayPeer[] = [];
  #run = 0;
  #seq = 0;
  readonly settings: RelaySettings;

  constructor(zone: Zone, settings: Partial<RelaySettings> = {}, dialler: Dialler = new TcpDialler()) {
    this.resolver = new ZoneResolver(zone);
    this.settings = { resolvers: [], reserved: [], grants: [], limits: testLimits, ...settings };
    this.runs = new Runs({
      dialler,
      ownAddresses: { ranges: () => [] },
      newResolver: () => this.resolver,
      send: (message) => {
        this.sent.push(message);
        if (message.kind === "decisions") for (const [run, decided] of message.runs) this.#keep(run, decided);
      },
    });
    this.runs.take({ kind: "settings", settings: this.settings });
  }

  /** A capsule whose gateway is in step. */
  async attach(policy: Partial<RelayPolicy>, team = "team"): Promise<{ peer: GatewayPeer; run: number }> {
    const { peer, socket } = await GatewayPeer.pair();
    const run = ++this.#run;
    this.#peers.push(peer);
    this.runs.take({ kind: "attach", run, capsule: `cl-${run}`, team, policy: policyOf(policy) }, socket);
    await peer.settled();
    return { peer, run };
  }

  setPolicy(run: number, policy: Partial<RelayPolicy>): void {
    this.runs.take({ kind: "policy", run, seq: ++this.#seq, policy: policyOf(policy) });
  }

  /** The decisions about a capsule, each as one line. */
  recent(run: number): string[] {
    this.runs.take({ kind: "state", run, seq: ++this.#seq });
    const recent = this.#decided.get(run)?.list() ?? [];
    return recent.map(({ verdict, reason, host, address, port, count }) =>
      [verdict, reason, host, address, port, count === 1 ? undefined : `×${count}`].filter((each) => each).join(" "),
    );
  }

  #keep(run: number, decided: NetworkDecision[]): void {
    const recent = this.#decided.get(run) ?? new RecentDecisions();
    this.#decided.set(run, recent);
    for (const decision of decided) recent.add(decision);
  }

  connectionsOpen(run: number): number {
    this.runs.take({ kind: "state", run, seq: ++this.#seq });
    return this.sent.findLast((each) => each.kind === "state")!.connectionsOpen;
  }

  async lost(run: number): Promise<string> {
    return await waitFor(`run ${run} is lost`, () => {
      const found = this.sent.find((each) => each.kind === "lost" && each.run === run);
      return found?.kind === "lost" && found.why;
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.runs.close();
    for (const peer of this.#peers) peer.socket.destroy();
  }
}

export function policyOf(policy: Partial<RelayPolicy>): RelayPolicy {
  return { egress: "allowlist", allow: [], deny: [], ...policy };
}
