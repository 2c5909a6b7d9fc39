/** The service on a fake host, a manual clock and a database in memory. */
import { noOutbound, type Outbound } from "../../src/capsules/outbound.ts";
import { type Ownership, singleHost } from "../../src/capsules/ownership.ts";
import type { QuotaLimits } from "../../src/capsules/quotas.ts";
import type { PolicyChange } from "../../src/capsules/settings.ts";
import { type Database, openDatabase } from "../../src/db/database.ts";
import { TeamRows } from "../../src/db/team-rows.ts";
import type { Services } from "../../src/http/services.ts";
import type { Log } from "../../src/log.ts";
import { type NetworkRules, strictRules } from "../../src/network/grants.ts";
import { SecretKey } from "../../src/secret.ts";
import { buildService, type Observers, openRecords, type Records } from "../../src/service.ts";
import { FakeClock } from "./fake-clock.ts";
import { FakeHost } from "./fake-host.ts";
import { slowOwnership } from "./fake-ownership.ts";

const unobserved: Observers = {
  observe: (_operation, _id, work) => work(),
  observeExec: () => () => {},
  onStatus() {},
  onCreateBegan() {},
  onCreated() {},
  onMemoryPause() {},
};
const silent: Log = { info() {}, warn() {}, error() {} };
const roomy: QuotaLimits = {
  capsules: 1_000,
  starts: 1_000,
  runningVcpus: 1_000,
  runningMemoryMb: 1_000_000,
  diskBytes: 2 ** 40,
  templates: 1_000,
  hostMemoryMb: 1_000_000,
};

export interface FakeServiceOptions {
  host?: FakeHost;
  /** A second one on the database and host of the first is the daemon's next life. */
  database?: Database;
  secret?: SecretKey;
  clock?: FakeClock;
  log?: Log;
  quotas?: Partial<QuotaLimits>;
  rules?: Partial<NetworkRules>;
  outbound?: Outbound;
  capacityBytes?: number;
  auditEntriesMax?: number;
  observers?: Partial<Observers>;
  /** Default: a single host's, or a slow one by the seed CAPSULE_TEST_OWNERSHIP (slow-ownership.test.ts). */
  ownership?: Ownership;
  /** In place of `ownership`: made from the records of the service. */
  ownershipOf?: (records: Records) => Ownership;
}

export function fakeService(options: FakeServiceOptions = {}) {
  const { host = new FakeHost(), database = openDatabase(":memory:"), clock = new FakeClock(), log = silent } = options;
  const { auditEntriesMax = 1_000_000, secret = new SecretKey(Buffer.alloc(32, 7)) } = options;
  const records = openRecords({ database, secret, clock, log, auditEntriesMax, auditKeepMs: 1e9 });
  const service = buildService({
    ...{ records, host, clock, log },
    step() {},
    quotas: { ...roomy, ...options.quotas },
    rules: { ...strictRules, ...options.rules },
    outbound: options.outbound ?? noOutbound,
    capacityBytes: options.capacityBytes ?? 2 ** 40,
    observers: { ...unobserved, ...options.observers },
    ownership: options.ownershipOf?.(records) ?? options.ownership ?? defaultOwnership(),
  });
  const health: Services["health"] & { shortages: string[]; relay: "up" | "down" } = {
    shortages: [],
    relay: "up",
    state: () => ({
      version: "0.0.0",
      accelerator: "tcg",
      accelerator_reason: "a fake",
      jail: { mode: "off", cgroup: "none", missing: ["a fake"] },
      pid: process.pid,
      capsules: service.store.counts(),
      pool: host.pool(),
      warm_processes: host.pool(),
    }),
    network: () => ({ relay: health.relay, egress: "none" }),
    reasons: async () => health.shortages,
  };
  const addTeam = (name: string) =>
    new TeamRows(database).ensure({ id: `team-${name}`, name, createdAt: clock.now() }).id;
  return {
    ...service,
    ...{ host, clock, health },
    /** Resolves when no change is under way. */
    settled: async () => {
      await service.decisions.ended(); // which begin changes
      await service.locks.released();
    },
    team: addTeam("blue"),
    other: addTeam("red"),
  };
}

function defaultOwnership(): Ownership {
  const { CAPSULE_TEST_OWNERSHIP: seed } = process.env;
  return seed === undefined ? singleHost : slowOwnership(Number(seed));
}

export type FakeService = ReturnType<typeof fakeService>;

/** A running capsule of `service.team`. */
export async function running(service: FakeService, timeoutSec = 0, policies: PolicyChange = {}): Promise<string> {
  const { id } = await service.capsules.create(service.team, {
    template: "minimal",
    vcpus: 1,
    memoryMb: 512,
    timeoutSec,
    ...policies,
  });
  await service.settled();
  return id;
}

/** Starts a command in a capsule of `service.team`; the returned function ends its use. */
export function beginExec(service: FakeService, id: string): () => Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const used = service.capsules.use(service.team, id, "exec", (agent) => {
    agent.run({ cmd: "hang", args: [] }, { output() {}, exited() {}, failed() {} });
    return promise;
  });
  return async () => {
    resolve();
    await used;
  };
}
