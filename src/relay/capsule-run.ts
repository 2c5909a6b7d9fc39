/** One capsule while its port is in the relay's hands: policy, limits, connections, questions and what became of them. */
import type { Socket } from "node:net";
import { setImmediate as turn } from "node:timers/promises";
import type { SecureContext } from "node:tls";
import { type OperatorRules, type Rules, rulesOf } from "../network/decision.ts";
import { addressText } from "../network/destinations.ts";
import type { OpenInjectRule } from "../network/inject.ts";
import { type Noted, RecentDecisions } from "../network/recent-decisions.ts";
import type { NetworkDecision } from "../wire/network.ts";
import { AnsweredNames } from "./answered-names.ts";
import { ByteBudget } from "./byte-budget.ts";
import { Connection } from "./connection.ts";
import type { ConnectionShared } from "./connection-shared.ts";
import type { Dialler } from "./dialler.ts";
import { InjectConnection, type InjectConnectionShared, injectedPort } from "./inject-connection.ts";
import type { RelayLimits, RelayPolicy, RunCounts } from "./messages.ts";
import { Names } from "./names.ts";
import { Port, type PortOwner } from "./port.ts";
import type { PortStream } from "./port-stream.ts";
import { Rate } from "./rate.ts";
import type { Asked } from "./records.ts";
import type { Resolver } from "./resolver.ts";
import { Share, type Turns } from "./turns.ts";

/** Everything that all runs have in common. */
export interface RunShared {
  operator: () => OperatorRules;
  limits: () => RelayLimits;
  resolver: () => Resolver;
  dialler: Dialler;
  /** Trusts the roots of Node and those of the operator. */
  trust: () => SecureContext;
  turns: Turns;
  held: ByteBudget;
  windows: ByteBudget;
  unwritten: ByteBudget;
  /** Open connections of each team. */
  teamConnections: Map<string, number>;
  countName: (rcode: number) => void;
  /** There are decisions to be taken. */
  decided: (run: CapsuleRun) => void;
  lost: (run: CapsuleRun, why: string) => void;
}

/** Entries that open connections are compared with in one turn of the event loop, after a change of a policy. */
const comparedPerTurn = 16_384;

interface GivenRun {
  run: number;
  team: string;
  policy: RelayPolicy;
}

type RunConnection = Connection | InjectConnection;

const noCounts = (): RunCounts => ({ connections: 0, denied: 0, failed: 0, bytesOut: 0, bytesIn: 0 });

export class CapsuleRun implements PortOwner {
  /** As the service counts its hand-overs. */
  readonly number: number;
  readonly #team: string;
  readonly #shared: RunShared;
  #rules: Rules;
  #inject: readonly OpenInjectRule[];
  readonly #connections = new Set<RunConnection>();
  /** Decisions that the service has not been told of. */
  readonly #untold = new RecentDecisions();
  readonly #answered = new AnsweredNames();
  readonly #connectRate: Rate;
  readonly #nameRate: Rate;
  #namesInFlight = 0;
  #counts = noCounts();
  #hasCounted = false;
  readonly #share: Share;
  readonly #held: ByteBudget;
  readonly #windows: ByteBudget;
  #isHeldFull = false;
  readonly #names: Names;
  readonly #ofConnections: ConnectionShared<Connection> & InjectConnectionShared;
  readonly #port: Port;

  constructor(socket: Socket, { run, team, policy }: GivenRun, shared: RunShared) {
    this.number = run;
    this.#team = team;
    this.#shared = shared;
    this.#rules = rulesOf(policy);
    this.#inject = policy.inject ?? [];
    const { heldMaxBytes } = shared.limits();
    this.#held = new ByteBudget(heldMaxBytes, shared.held);
    this.#windows = new ByteBudget(heldMaxBytes, shared.windows);
    this.#share = new Share(shared.turns);
    this.#connectRate = new Rate(connectRateOf(shared.limits()));
    this.#nameRate = new Rate(nameRateOf(shared.limits()));
    this.#names = this.#newNames();
    this.#ofConnections = this.#sharedOfConnections();
    const { unwritten } = shared;
    this.#port = new Port(socket, { share: this.#share, owner: this, windows: this.#windows, unwritten });
  }

  get connectionsOpen(): number {
    return this.#connections.size;
  }

  /** The last 100 different decisions since the last call, oldest first. */
  takeDecisions(): NetworkDecision[] {
    return this.#untold.take();
  }

  /** New connections obey it at once. Resolves when the open ones that it forbids are reset. */
  async setPolicy(policy: RelayPolicy): Promise<void> {
    this.#rules = rulesOf(policy);
    this.#inject = policy.inject ?? [];
    await this.recheck();
  }

  /** The operator's rules may have changed, or the capsule's. Resolves as setPolicy. */
  async recheck(): Promise<void> {
    const limits = this.#shared.limits();
    this.#held.maxBytes = limits.heldMaxBytes;
    this.#windows.maxBytes = limits.heldMaxBytes;
    this.#connectRate.change(connectRateOf(limits));
    this.#nameRate.change(nameRateOf(limits));
    const { reserved, grants } = this.#shared.operator();
    const lists = [this.#rules.allow, this.#rules.deny, reserved, grants];
    const entries = lists.reduce((sum, { length }) => sum + length, 1);
    const perTurn = Math.ceil(comparedPerTurn / entries);
    for (const [index, connection] of [...this.#connections].entries()) {
      if (index > 0 && index % perTurn === 0) await turn();
      if (this.#connections.has(connection)) this.#check(connection);
    }
  }

  #check(connection: RunConnection): void {
    connection.recheck();
    // Requests to a rule's host would leave unencrypted on a connection that was made when there was no rule.
    const isUnread = connection instanceof Connection && connection.port === injectedPort;
    if (isUnread && this.#inject.length > 0) connection.cut();
  }

  /** Counts since the last call, which is made once a second; undefined: none. */
  takeCounts(): RunCounts | undefined {
    this.#port.countUnwritten();
    if (!this.#hasCounted) return undefined;
    const counts = this.#counts;
    this.#counts = noCounts();
    this.#hasCounted = false;
    return counts;
  }

  /** Closes the port and resets every connection. */
  close(): void {
    this.#port.close();
    for (const connection of this.#connections) connection.drop();
    this.#share.end();
  }

  // ---- What the gateway asks for

  asked(stream: PortStream, asked: Asked): void {
    if (asked.kind === "resolve") void this.#resolve(stream, asked.name, asked.type);
    else if (this.#hasPlace()) {
      const connection = this.#newConnection(stream, asked);
      this.#connections.add(connection);
      this.#countOfTeam(1);
      connection.begin();
    } else {
      this.#note({ verdict: "denied", reason: "limit", address: addressText(asked.address), port: asked.port });
      stream.fail("denied", "limit");
    }
  }

  #newConnection(stream: PortStream, asked: { address: number; port: number }): RunConnection {
    const isRead = asked.port === injectedPort && this.#inject.length > 0;
    return new (isRead ? InjectConnection : Connection)(stream, asked, this.#ofConnections);
  }

  lost(why: string): void {
    this.#share.end();
    this.#shared.lost(this, why);
  }

  #hasPlace(): boolean {
    const { connectionsMax, teamConnectionsMax } = this.#shared.limits();
    const ofTeam = this.#shared.teamConnections.get(this.#team) ?? 0;
    return this.#connectRate.take() && this.#connections.size < connectionsMax && ofTeam < teamConnectionsMax;
  }

  async #resolve(stream: PortStream, name: string, type: number): Promise<void> {
    const answer = await this.#names.answer(name, type);
    this.#shared.countName(answer.rcode);
    stream.result(answer);
  }

  #newNames(): Names {
    const { operator, resolver, limits } = this.#shared;
    return new Names({
      rules: () => this.#rules,
      operator,
      resolver,
      answered: this.#answered,
      note: (noted) => this.#note(noted),
      begin: () => {
        if (this.#namesInFlight >= limits().namesInFlightMax || !this.#nameRate.take()) return false;
        this.#namesInFlight++;
        return true;
      },
      end: () => {
        this.#namesInFlight--;
      },
    });
  }

  // ---- Its connections

  #sharedOfConnections(): ConnectionShared<Connection> & InjectConnectionShared {
    const { operator, dialler, trust } = this.#shared;
    return {
      rules: () => this.#rules,
      inject: () => this.#inject,
      trust,
      mayConnect: () => this.#connectRate.take(),
      operator,
      dialler,
      names: this.#names,
      answered: this.#answered,
      share: this.#share,
      held: this.#held,
      heldChanged: () => this.#heldChanged(),
      windows: this.#windows,
      note: (noted) => this.#note(noted),
      countBytes: (direction, bytes) => {
        this.#hasCounted = true;
        if (direction === "in") this.#counts.bytesIn += bytes;
        else this.#counts.bytesOut += bytes;
      },
      released: (connection: RunConnection) => {
        if (this.#connections.delete(connection)) this.#countOfTeam(-1);
      },
    };
  }

  /** At the limit nothing is read for the capsule; half of it must be taken before that begins again. */
  #heldChanged(): void {
    if (!this.#isHeldFull && this.#held.isFull) {
      this.#isHeldFull = true;
      for (const connection of this.#connections) connection.pause();
    } else if (this.#isHeldFull && this.#held.bytes <= this.#held.maxBytes / 2 && !this.#held.isFull) {
      this.#isHeldFull = false;
      for (const connection of this.#connections) connection.resume();
    }
  }

  #countOfTeam(more: number): void {
    const { teamConnections } = this.#shared;
    const count = (teamConnections.get(this.#team) ?? 0) + more;
    if (count === 0) teamConnections.delete(this.#team);
    else teamConnections.set(this.#team, count);
  }

  #note(noted: Noted): void {
    this.#untold.add({ at: new Date().toISOString(), ...noted, count: 1 });
    this.#shared.decided(this);
    if (noted.port === undefined) return;
    this.#hasCounted = true;
    if (noted.verdict === "allowed") this.#counts.connections++;
    else if (noted.verdict === "denied") this.#counts.denied++;
    else this.#counts.failed++;
  }
}

function connectRateOf({ connectionsPerSec, connectionsBurst }: RelayLimits): { perSec: number; burst: number } {
  return { perSec: connectionsPerSec, burst: connectionsBurst };
}

function nameRateOf({ namesPerSec }: RelayLimits): { perSec: number; burst: number } {
  return { perSec: namesPerSec, burst: namesPerSec };
}
