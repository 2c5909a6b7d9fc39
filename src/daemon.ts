/**
 * The composition root: makes the services from the configuration, joins them, and stops them in reverse order.
 */
import { chmodSync, existsSync, mkdirSync, rmSync } from "node:fs";
import type { AddressInfo } from "node:net";
import { totalmem } from "node:os";
import { join } from "node:path";
import { getCACertificates } from "node:tls";
import pino from "pino";
import { systemClock } from "./capsules/clock.ts";
import type { QuotaLimits } from "./capsules/quotas.ts";
import type { Config } from "./config.ts";
import { databasePath, openDatabase } from "./db/database.ts";
import { type DataLock, lockData } from "./host/disk/lock.ts";
import { requireDatabase, requireNoSaved } from "./host/disk/lost-database.ts";
import { buildServer, type ServerOptions } from "./http/app.ts";
import { listen, passedSockets, requireFreePort } from "./http/listening.ts";
import { describeError, StandardOutput } from "./http/log.ts";
import type { App } from "./http/route.ts";
import type { Services } from "./http/services.ts";
import { TerminalLog } from "./http/terminal-log.ts";
import { type Certificates, readCertificates, renewCertificate, requireSafeBinding, useForPorts } from "./http/tls.ts";
import type { Joined } from "./joined.ts";
import type { Log } from "./log.ts";
import { type OpenHost, openHost, stateOf } from "./machine.ts";
import { startMaintenance } from "./maintenance.ts";
import { OwnAddresses } from "./relay/own-addresses.ts";
import { Relay } from "./relay/relay.ts";
import { relaySettings } from "./relay/relay-settings.ts";
import { startRelay } from "./relay/start.ts";
import { SecretKey } from "./secret.ts";
import { buildService, type Observers, openRecords, type Records, type ServiceOptions } from "./service.ts";
import { ownMemoryMb } from "./settings.ts";
import { ensureFirstKey } from "./teams/teams.ts";
import type { NetworkMetrics } from "./telemetry/network-metrics.ts";
import { Telemetry } from "./telemetry/telemetry.ts";
import { version } from "./version.ts";
import type { ServiceState } from "./wire/health.ts";

const dayMs = 86_400_000;
const traceGraceMs = 3_000;

export interface Daemon {
  /** Where it listens, as a URL. */
  url: string;
  /** The first key of team `default`, only when it was made by this start. */
  newKey: string | undefined;
  engine: Pick<ServiceState, "accelerator" | "accelerator_reason" | "jail">;
  /** Reads the TLS files again, if there are any. Throws when they cannot be used; the old ones then stay in use. */
  renewCertificate(): void;
  /** Stops listening, waits for requests and changes within the drain time, and detaches from the VMs, which run on. */
  stop(): Promise<void>;
}

/** Starts the service. `progress` is called with each step that can take long. Throws when the data folder is in use. */
export async function startDaemon(config: Config, progress: (step: string) => void): Promise<Daemon> {
  const certificates = readCertificates(config);
  const { certificate } = certificates;
  requireSafeBinding(config.host, certificate !== undefined, config.plainHttp);
  process.umask(0o077); // files made from here on are readable by this user only
  mkdirSync(config.dataDir, { recursive: true, mode: 0o700 });
  chmodSync(config.dataDir, 0o700);
  const lock = lockData(config.dataDir);
  try {
    // Before the work of a start, which takes seconds.
    const host = passedSockets() > 0 ? config.host : await requireFreePort(config);
    return await startLocked({ ...config, host }, certificates, lock, progress);
  } catch (error) {
    lock.release();
    throw error;
  }
}

async function startLocked(
  config: Config,
  certificates: Certificates,
  lock: DataLock,
  progress: (step: string) => void,
): Promise<Daemon> {
  const log = openLog(config);
  if (certificates.doubt !== undefined) log.warn(certificates.doubt);
  if (config.cluster === undefined && existsSync(join(config.dataDir, "host.json")))
    throw new Error(
      `the data folder ${config.dataDir} belongs to a cluster: set CAPSULE_CLUSTER to the cluster's file`,
    );
  // A folder that has left a cluster serves alone from here on, and joins again like any other.
  if (config.cluster === undefined) rmSync(join(config.dataDir, "left.json"), { force: true });
  const joining = config.cluster === undefined ? undefined : (await import("./joined.ts")).openCluster(config.cluster);
  const records = recordsOf(config, log, joining?.secret ?? SecretKey.ofFolder(config.dataDir));
  const joined = await joining?.join(config, records, log);
  const { limits } = joined ?? config;
  return await startService({ config: { ...config, limits }, log, records, joined, certificates, lock }, progress);
}

interface StartOptions {
  config: Config;
  log: ReturnType<typeof openLog>;
  records: Records;
  /** This host's part in its cluster; undefined: it is alone. */
  joined: Joined | undefined;
  certificates: Certificates;
  lock: DataLock;
}

async function startService(options: StartOptions, progress: (step: string) => void): Promise<Daemon> {
  const { config, log, records, joined, lock } = options;
  const { certificate, ofPorts } = options.certificates;
  // The keys of a cluster are made in its database.
  const newKey = joined === undefined ? ensureFirstKey(config.dataDir, records.teams) : undefined;
  const machine = await openHost(config, log, progress);
  const { host, accelerator, step } = machine;
  const state = stateOf(machine, records.store);
  const relay: Relay = relayOf(config, log, { ...records, ...machine }, () => telemetry.metrics.network);
  const telemetry: Telemetry = await Telemetry.start({
    version,
    tracesEndpoint: config.tracesEndpoint,
    state,
    spareBytes: () => host.memory.spareBytes(),
    diskSpareBytes: () => host.space.freeBytes - host.space.reserveBytes,
    lostFolders: () => host.lostFound.size,
    adopting: () => service.adoptions.count,
    relay: () => relay.report(),
    cluster: joined === undefined ? undefined : () => joined.report(),
    findVms: () => machine.vmm.findBelow(config.dataDir),
  });
  const service = buildService({
    ...{ records, host, clock: systemClock, log, step, observers: observersOf(telemetry) },
    ...{ ...boundsOf(config), outbound: relay, ownership: joined?.cluster.decided },
  });
  const { teams, audit, capsules, templates, idempotency } = service;
  const alone = { teams, capsules, templates, idempotency, health: healthOf(config, machine, state, relay), audit };
  const app = buildServer(joined?.servicesOf(service, alone) ?? alone, {
    ...{ ...serverOptions(config, telemetry), logger: log, certificate, hostName: joined?.cluster.host },
    forwarding: joined?.forwarding,
  });
  if (ofPorts !== undefined) useForPorts(app, config.portDomain.host, ofPorts);
  relay.open();
  await joined?.start(service, host);
  await service.recover();
  joined?.cluster.recovered();
  await service.retired.collect();
  const stopMaintenance = startMaintenance({ ...service, log });
  await joined?.listen(() => app.ready());
  const url = await listenSafely(app, config, certificate !== undefined, log);
  host.openWarmPools();
  host.hashMissing();
  log.info({ url, accelerator: accelerator.kind }, "listening");
  return {
    url,
    newKey,
    engine: state(),
    renewCertificate: () => {
      const renewed = readCertificates(config);
      if (renewed.certificate !== undefined) renewCertificate(app, renewed.certificate);
      if (renewed.ofPorts !== undefined) useForPorts(app, config.portDomain.host, renewed.ofPorts);
    },
    async stop() {
      stopMaintenance();
      await app.close(); // within the drain time
      await capsules.close(config.drainMs);
      await Promise.all([host.close(), relay.close(), joined?.stop()]);
      records.networkCounters.flush();
      records.networkDecisions.flush();
      await telemetry.close(traceGraceMs);
      teams.flush();
      audit.close();
      records.database.close();
      lock.release();
      log.info("stopped; capsules run on");
    },
  };
}

/** JSON lines; on a terminal short lines of text. */
function openLog({ logLevel }: Config) {
  const output = new StandardOutput();
  const options = { level: logLevel, base: null, serializers: { err: describeError } };
  return pino(
    { ...options, timestamp: pino.stdTimeFunctions.isoTime },
    process.stdout.isTTY ? new TerminalLog(output) : output,
  );
}

/** On the passed sockets, or by the settings. */
async function listenSafely(app: App, config: Config, hasTls: boolean, log: Log): Promise<string> {
  const passed = passedSockets();
  const check = (address: string) => requireSafeBinding(address, hasTls, config.plainHttp);
  const url = await listen(app, config, passed, check);
  const { port } = app.server.address() as AddressInfo;
  if (passed > 0 && config.port !== 0 && port !== config.port)
    log.warn(
      { url, port: config.port },
      "the socket unit has another port than CAPSULE_PORT: install the service again",
    );
  return url;
}

function serverOptions(config: Config, { metrics, traces }: Telemetry): Omit<ServerOptions, "logger" | "certificate"> {
  return {
    limits: config.limits,
    version,
    proxies: config.trustProxy,
    corsOrigins: config.corsOrigins,
    portDomain: config.portDomain,
    port: config.port,
    drainMs: config.drainMs,
    keepAliveMs: config.keepAliveSec * 1_000,
    web: config.web ?? join(config.dataDir, "web"),
    metrics:
      config.metrics === "off" ? undefined : { service: metrics, to: config.metrics, token: config.metricsToken },
    tracing: traces,
  };
}

function observersOf({ observe, observeExec, metrics }: Telemetry): Observers {
  return {
    ...{ observe, observeExec },
    onStatus: (status) => metrics.statusReached(status),
    onCreateBegan: (isWarm) => metrics.createBegan(isWarm),
    onCreated: (seconds) => metrics.created(seconds),
    onMemoryPause: (outcome) => metrics.pausedUnderPressure(outcome),
  };
}

/** A cluster's change while it runs. */
function quotaLimits({ limits, memoryOvercommit }: Config): QuotaLimits {
  return {
    get capsules() {
      return limits.capsules_max;
    },
    get starts() {
      return limits.starts_max;
    },
    get runningVcpus() {
      return limits.running_vcpus_max;
    },
    get runningMemoryMb() {
      return limits.running_memory_max_mb;
    },
    get templates() {
      return limits.templates_max;
    },
    diskBytes: limits.disk_max_bytes,
    hostMemoryMb: memoryOvercommit * Math.floor(totalmem() / 2 ** 20),
  };
}

/** Throws where the data folder has capsules that its database does not know. */
function recordsOf(config: Config, log: Log, secret: SecretKey): Records {
  const file = databasePath(config.dataDir);
  requireDatabase(config.dataDir, file);
  const records = openRecords({
    ...{ database: openDatabase(file), secret, clock: systemClock, log },
    ...{ auditEntriesMax: config.auditEntriesMax, auditKeepMs: config.auditKeepDays * dayMs },
  });
  const { capsuleRows, templateRows } = records;
  if (!capsuleRows.hasAny() && templateRows.all().length === 0)
    requireNoSaved(config.dataDir, file, (storage) => templateRows.isNoted(storage));
  return records;
}

/** The service's end of the relay, which is not started yet. */
function relayOf(
  config: Config,
  log: Log,
  {
    jail,
    networkCounters,
    networkDecisions,
  }: Pick<OpenHost, "jail"> & Pick<Records, "networkCounters" | "networkDecisions">,
  metrics: () => NetworkMetrics,
): Relay {
  return new Relay({
    start: () => startRelay({ jail }),
    // The file of NODE_EXTRA_CA_CERTS is out of reach for the relay.
    settings: relaySettings(boundsOf(config).rules, config.limits, getCACertificates("extra")),
    onCounts: (id, added) => {
      metrics().counted(added);
      networkCounters.add(id, added);
    },
    onDecisions: (id, decided) => networkDecisions.add(id, decided),
    onNames: (results) => metrics().named(results),
    log,
  });
}

function healthOf(
  { egress }: Config,
  { readiness }: OpenHost,
  state: () => ServiceState,
  relay: Relay,
): Services["health"] {
  return {
    state,
    reasons: () => readiness.reasons(),
    network: () => ({ relay: relay.isUp ? "up" : "down", egress }),
  };
}

function boundsOf(config: Config): Pick<ServiceOptions, "quotas" | "rules" | "capacityBytes"> {
  const { egress, egressCeiling: ceiling, egressDeny: deny, egressGrant: grants } = config;
  const ownAddresses = new OwnAddresses();
  return {
    quotas: quotaLimits(config),
    rules: { egress, ceiling, deny, grants, ownRanges: () => ownAddresses.ranges() },
    capacityBytes: (ownMemoryMb - config.memoryReserveMb) * 2 ** 20,
  };
}
