/** All capsules in the relay's hands, by the service's messages. */
import type { Socket } from "node:net";
import { setImmediate as turn } from "node:timers/promises";
import { createSecureContext, rootCertificates, type SecureContext } from "node:tls";
import type { OperatorRules } from "../network/decision.ts";
import { rangeOf } from "../network/destinations.ts";
import { type Grant, parseGrants } from "../network/grants.ts";
import { ByteBudget } from "./byte-budget.ts";
import { CapsuleRun, type RunShared } from "./capsule-run.ts";
import type { Dialler } from "./dialler.ts";
import { countedMax, type FromRelay, type RelaySettings, type RunCounts, type ToRelay } from "./messages.ts";
import type { OwnAddresses } from "./own-addresses.ts";
import { HostResolver, type Resolver } from "./resolver.ts";
import { Turns } from "./turns.ts";
import { UntoldRuns } from "./untold-runs.ts";

/** Bytes that the relay holds for all capsules, in each direction. */
const heldOfAllBytes = 192 << 20;
/** Bytes for all gateways that have not been read. */
const unwrittenOfAllBytes = 128 << 20;
const toldEveryMs = 1_000;

/** Until the service has sent its settings, nothing is permitted. */
const noSettings: RelaySettings = {
  resolvers: [],
  reserved: ["0.0.0.0/0"],
  grants: [],
  limits: {
    connectionsMax: 0,
    teamConnectionsMax: 0,
    connectionsPerSec: 0,
    connectionsBurst: 0,
    namesPerSec: 0,
    namesInFlightMax: 0,
    heldMaxBytes: 0,
  },
};

const rcodeNames: Record<number, string> = { 0: "noerror", 2: "servfail", 3: "nxdomain", 5: "refused" };

export interface RunsOptions {
  dialler: Dialler;
  ownAddresses: Pick<OwnAddresses, "ranges">;
  /** Default: the host's resolvers. */
  newResolver?: (servers: readonly string[]) => Resolver;
  send: (message: FromRelay) => void;
}

export class Runs {
  readonly #options: RunsOptions;
  readonly #runs = new Map<number, CapsuleRun>();
  readonly #shared: RunShared;
  #settings = noSettings;
  #reserved = noSettings.reserved.map((text) => rangeOf(text)!);
  #grants: Grant[] = [];
  #resolver: Resolver;
  /** Made for the first request that needs it. */
  #trust: SecureContext | undefined;
  readonly #untold: UntoldRuns;
  #names: Record<string, number> = {};
  #connectionsTold = 0;
  readonly #timer: NodeJS.Timeout;

  constructor(options: RunsOptions) {
    this.#options = options;
    this.#resolver = this.#newResolver([]);
    this.#untold = new UntoldRuns(options.send);
    this.#shared = {
      operator: () => this.#operator(),
      limits: () => this.#settings.limits,
      resolver: () => this.#resolver,
      dialler: options.dialler,
      trust: () => {
        this.#trust ??= createSecureContext({ ca: [...rootCertificates, ...(this.#settings.roots ?? [])] });
        return this.#trust;
      },
      turns: new Turns(),
      held: new ByteBudget(heldOfAllBytes),
      windows: new ByteBudget(heldOfAllBytes),
      unwritten: new ByteBudget(unwrittenOfAllBytes),
      teamConnections: new Map(),
      countName: (rcode) => {
        const name = rcodeNames[rcode] ?? "other";
        this.#names[name] = (this.#names[name] ?? 0) + 1;
      },
      decided: (run) => this.#untold.add(run),
      lost: (run, why) => this.#lost(run, why),
    };
    this.#timer = setInterval(() => this.#tell(), toldEveryMs);
  }

  /** `socket`: of `attach`. */
  take(message: ToRelay, socket?: Socket): void {
    const { send } = this.#options;
    switch (message.kind) {
      case "settings":
        this.#set(message.settings);
        break;
      case "attach":
        this.#runs.get(message.run)?.close();
        if (socket === undefined) send({ kind: "lost", run: message.run, why: "its socket has ended" });
        else this.#runs.set(message.run, new CapsuleRun(socket, message, this.#shared));
        break;
      case "policy":
        void this.#setPolicy(message);
        break;
      case "detach":
        this.#detach(message.run);
        break;
      case "state": {
        const run = this.#runs.get(message.run);
        if (run !== undefined) this.#untold.tellOf(run);
        send({ kind: "state", seq: message.seq, connectionsOpen: run?.connectionsOpen ?? 0 });
        break;
      }
      case "flush":
        this.#tell();
        send({ kind: "applied", seq: message.seq });
    }
  }

  close(): void {
    clearInterval(this.#timer);
    for (const run of this.#runs.values()) run.close();
    this.#runs.clear();
  }

  #newResolver(servers: readonly string[]): Resolver {
    return this.#options.newResolver?.(servers) ?? new HostResolver(servers);
  }

  #operator(): OperatorRules {
    return { reserved: [...this.#reserved, ...this.#options.ownAddresses.ranges()], grants: this.#grants };
  }

  #set(settings: RelaySettings): void {
    this.#settings = settings;
    this.#trust = undefined;
    this.#reserved = settings.reserved.map(rangeOf).filter((range) => range !== undefined);
    this.#grants = parseGrants(settings.grants.join(","));
    this.#resolver = this.#newResolver(settings.resolvers);
    void this.#recheck();
  }

  async #setPolicy({ run, seq, policy }: Extract<ToRelay, { kind: "policy" }>): Promise<void> {
    await this.#runs.get(run)?.setPolicy(policy);
    this.#options.send({ kind: "applied", seq });
  }

  async #recheck(): Promise<void> {
    for (const run of [...this.#runs.values()]) {
      await run.recheck();
      await turn();
    }
  }

  /** Its counts are told at once, since nothing of it is left. */
  #detach(id: number): void {
    const run = this.#runs.get(id);
    if (run === undefined) return;
    run.close();
    this.#untold.forget(run);
    this.#sendCounts();
    this.#runs.delete(id);
  }

  #lost(lost: CapsuleRun, why: string): void {
    if (this.#runs.get(lost.number) !== lost) return;
    this.#untold.tellOf(lost);
    this.#options.send({ kind: "lost", run: lost.number, why });
  }

  #tell(): void {
    this.#sendCounts();
    this.#untold.tell();
  }

  #sendCounts(): void {
    const runs = [...this.#runs].flatMap(([id, run]): [number, RunCounts][] => {
      const added = run.takeCounts();
      return added === undefined ? [] : [[id, added]];
    });
    const names = this.#names;
    const connectionsOpen = [...this.#runs.values()].reduce((sum, run) => sum + run.connectionsOpen, 0);
    if (runs.length === 0 && Object.keys(names).length === 0 && connectionsOpen === this.#connectionsTold) return;
    this.#names = {};
    this.#connectionsTold = connectionsOpen;
    for (let from = 0; from === 0 || from < runs.length; from += countedMax) {
      const counted = runs.slice(from, from + countedMax);
      this.#options.send({ kind: "counts", runs: counted, names: from === 0 ? names : {}, connectionsOpen });
    }
  }
}
