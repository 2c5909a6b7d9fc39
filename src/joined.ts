/** A host that CAPSULE_CLUSTER makes a part of a cluster: loaded by no other one. */
import { hostname } from "node:os";
import { openBucket } from "./bucket/opening.ts";
import type { SealedBucket } from "./bucket/sealed-bucket.ts";
import { requireUsable } from "./bucket/trial.ts";
import { systemClock } from "./capsules/clock.ts";
import { type ArtifactFolders, Artifacts } from "./cluster/artifacts.ts";
import { BucketUploads, type BucketUploadsOptions } from "./cluster/checkpoint-uploads.ts";
import { Cluster } from "./cluster/cluster.ts";
import { type ClusterFile, readClusterFile } from "./cluster/cluster-file.ts";
import type { ClusterReport } from "./cluster/cluster-options.ts";
import { freshnessOf, hostsKeptIn } from "./cluster/host-file.ts";
import { type Holdings, joinCluster } from "./cluster/joining.ts";
import { signInKey, ticketKey } from "./cluster/peer-keys.ts";
import { PeerLinks } from "./cluster/peer-links.ts";
import { PeerPlaces } from "./cluster/peer-places.ts";
import { PeerServer } from "./cluster/peer-server.ts";
import { PeerWatch, type SeenState } from "./cluster/peer-watch.ts";
import { Postgres } from "./cluster/postgres.ts";
import { FetchedFiles, type FetchedFilesOptions } from "./cluster/released-files.ts";
import { overdueMs, Releases, type ReleasesOptions } from "./cluster/releases.ts";
import { SharedLimits } from "./cluster/shared-limits.ts";
import { Upkeep, type UpkeepOptions } from "./cluster/upkeep.ts";
import { clusteredServices, type Service, startCluster } from "./clustered.ts";
import type { Config } from "./config.ts";
import { CatalogRows } from "./db/catalog-rows.ts";
import { HoldingRows } from "./db/holding-rows.ts";
import type { MovedFolders } from "./host/moves/moved-folders.ts";
import { stepWithFault } from "./host/steps.ts";
import { Forwarder, type ForwarderOptions } from "./http/forwarding/forwarder.ts";
import { SharedLinks } from "./http/forwarding/shared-links.ts";
import { SharedTickets } from "./http/forwarding/shared-tickets.ts";
import type { Forwarding } from "./http/forwarding.ts";
import type { Services } from "./http/services.ts";
import type { Log } from "./log.ts";
import { SecretKey } from "./secret.ts";
import type { Records } from "./service.ts";
import { auditOfService } from "./teams/service-audit.ts";
import { revokedKeepMs } from "./teams/teams.ts";
import { version } from "./version.ts";
import type { Limits } from "./wire/limits.ts";

/** Folders of this host that leave it, and that come to it. */
export interface OwnFolders {
  shared: ArtifactFolders;
  moved: MovedFolders;
  fetches: FetchedFilesOptions["fetches"];
}

export type Report = ClusterReport & {
  forwarded: Readonly<Record<string, number>>;
  /** The other hosts, by their state. */
  hosts: Readonly<Record<SeenState, number>>;
  /** Undefined: the cluster has no bucket. */
  bucket: { isUp: boolean; unreleased: number; unreleasedSec: number } | undefined;
};

export interface Joined {
  cluster: Cluster;
  /** The cluster's, but for those of one machine. */
  limits: Readonly<Limits>;
  servicesOf(service: Service, alone: Services): Services;
  forwarding: Forwarding;
  /** For the metrics of this host. */
  report(): Report;
  /** Call it before the service recovers. `folders`: those of this host. */
  start(service: Service, folders: OwnFolders): Promise<void>;
  /** Opens the peer port, when the HTTP server is built. `ready`: it knows its routes, which requests of other hosts need at once. */
  listen(ready: () => PromiseLike<unknown>): Promise<number>;
  /** Call it when the HTTP server is closed. */
  stop(): Promise<void>;
}

const dayMs = 86_400_000;
/** A start goes on without a bucket that does not answer. */
const firstTrial = { attempts: 1, attemptMs: 5_000 };

/** Reads the cluster's file, and opens no connection yet. Throws an Error of one sentence. */
export function openCluster(path: string) {
  const file = readClusterFile(path);
  return {
    secret: new SecretKey(file.valuesKey),
    join: (config: Config, records: Records, log: Log) => join(file, config, records, log),
  };
}

async function join(file: ClusterFile, config: Config, records: Records, log: Log): Promise<Joined> {
  const { dataDir, hostName, peerUrl } = config;
  const [clock, startedAt] = [systemClock, systemClock.now()];
  if (file.bucket !== undefined) await requireUsable(await openBucket(file.bucket, firstTrial));
  const sql = await Postgres.open({ url: file.postgres, ticks: () => clock.ticks() });
  const catalog = new CatalogRows(records.database);
  const joined = await joinCluster({
    ...{ sql, file, dataDir, name: hostName, machineName: hostname(), version, log },
    peer: { address: peerUrl?.address, port: peerUrl?.port ?? config.peerPort },
    holdings: () => holdingsOf(records, catalog),
  }).catch(async (error: unknown) => {
    await sql.close();
    throw error;
  });
  const { me, limits: shared, hosts } = joined;
  const holding = new HoldingRows(records.database);
  const sealed = file.bucket === undefined ? undefined : await openBucket(file.bucket);
  const artifacts =
    sealed === undefined ? undefined : new Artifacts({ sql, bucket: sealed, rows: records.templateRows, clock });
  const step = stepWithFault(config.crashAt);
  let upkeep: Upkeep | undefined;
  const limits = new SharedLimits({ own: config.limits, shared, set: limitsSet(), log });
  const cluster: Cluster = new Cluster({
    ...{ sql, me, store: records.store, clock, log, revokedKeepMs, auditKeepMs: config.auditKeepDays * dayMs },
    ...{ artifacts, largest: config.limits, hostLostSec: config.hostLostSec },
    onLimits: (read) => limits.follow(read),
    ...{ lastHeard: hosts, onHosts: hostsKeptIn(dataDir, log) },
    rows: { audit: records.auditRows, catalog, templates: records.templateRows, holding },
    ...{ step, freshness: freshnessOf(dataDir) },
    onRefused: (reason) => {
      log.error({ host: me.name }, `${reason}: this one ends, and its VMs run on`);
      process.kill(process.pid, "SIGTERM");
    },
  });
  const { forwarder, watch, counts, open, close } = peerPort(cluster, records, file.secret, log);
  return {
    ...{ cluster, forwarding: forwarder },
    report: () => ({ ...cluster.report(), ...counts(), bucket: bucketReport(sealed, holding, config, startedAt) }),
    limits: limits.limits,
    servicesOf: (service, { health }) =>
      clusteredServices({ service, cluster, health, bucket: sealed?.bucket, keysStaleMs: config.keysStaleSec * 1_000 }),
    async start(service, { shared: folders, moved, fetches }) {
      artifacts?.begin({ folders, hold: (storage) => service.promised.folder(storage) });
      const files = sealed && artifacts && new FetchedFiles({ bucket: sealed, artifacts, moved, fetches });
      if (sealed !== undefined) {
        await repair(moved, { store: records.store, holding, log });
        const own = { ...{ sql, host: me.name, clock, log }, cacheBytes: config.cacheMb * 2 ** 20 };
        const isPutBack = () => cluster.membership.isPutBack;
        upkeep = upkeepOf({ ...own, isPutBack, bucket: sealed.bucket, holding, folders: moved }, records);
      }
      await startCluster(cluster, service, { folders: moved, files });
      if (sealed && artifacts) {
        const to = { bucket: sealed, folders: moved, artifacts, step };
        cluster.releases = releasesOf(cluster, to, { store: records.store, holding, config, log });
      }
      cluster.catalog.onStale(config.keysStaleSec * 1_000, () => service.teams.endOpened());
    },
    listen: async (ready) => {
      await ready();
      upkeep?.start();
      watch.start();
      return await open(config.peerPort);
    },
    async stop() {
      await Promise.all([close(), upkeep?.stop()]);
      await cluster.stop();
    },
  };
}

function upkeepOf(
  options: Omit<UpkeepOptions, "onEnded" | "store">,
  { audit, store }: Pick<Records, "audit" | "store">,
): Upkeep {
  const { onDestroyed } = auditOfService(audit);
  return new Upkeep({ ...options, store, onEnded: (teamId, id) => onDestroyed(teamId, id, "retention") });
}

function bucketReport(
  sealed: SealedBucket | undefined,
  holding: HoldingRows,
  { releaseAfterSec }: Config,
  startedAt: number,
): Report["bucket"] {
  if (sealed === undefined) return undefined;
  const { count, since } = holding.unreleased();
  const overdue = overdueMs(since, { startedAt, afterMs: releaseAfterSec * 1_000, now: systemClock.now() });
  return { isUp: sealed.bucket.isUp, unreleased: count, unreleasedSec: overdue / 1_000 };
}

interface Held extends Pick<Records, "store"> {
  holding: HoldingRows;
  log: Log;
}

/** Brings back folders of held capsules that an end in the middle of a move has left aside. */
async function repair(moved: MovedFolders, { store, holding, log }: Held): Promise<void> {
  const held = store.all().map(({ id }) => ({
    id,
    epoch: holding.epoch(id),
    isReleasing: holding.releasing(id) !== null,
  }));
  const capsules = await moved.repair(held);
  if (capsules.length > 0) log.warn({ capsules }, "folders of held capsules were brought back");
}

function releasesOf(
  { sql, leaving, membership, gathering }: Cluster,
  to: BucketUploadsOptions,
  { store, holding, config, log }: Pick<ReleasesOptions, "store" | "holding" | "log"> & { config: Config },
): Releases {
  return new Releases({
    ...{ store, holding, leaving, sql, clock: systemClock, log, uploads: new BucketUploads(to) },
    isAway: () => sql.isAway || membership.isExpired || membership.isPutBack || gathering.isOn,
    afterMs: config.releaseAfterSec * 1_000,
  });
}

/** The way of requests to the other hosts, and from them. */
export function peerPort(
  cluster: Cluster,
  { store }: Pick<Records, "store">,
  secret: Buffer,
  log: Log,
  times: ForwarderOptions["times"] = {},
) {
  const { locations: holders, host: hostName } = cluster;
  const links = new PeerLinks({ holders, hostName, secret });
  const forwarder = new Forwarder({
    places: new PeerPlaces(holders, store, (...of) => cluster.acquiring.coming(...of)),
    ...{ links, placements: cluster.placement, released: cluster.released, times },
    onStopping: () => cluster.membership.servesNoLonger(),
    tickets: new SharedTickets(ticketKey(secret)),
    signInLinks: new SharedLinks(signInKey(secret)),
  });
  cluster.locations.askBy((team, key) => forwarder.questions.ask(team, key));
  cluster.placeBy((capsule) => forwarder.move(capsule));
  cluster.lost.askBy((host) => links.probe(host));
  const { membership } = cluster;
  const watch = new PeerWatch({ membership, answers: (host) => links.reaches(host), clock: systemClock });
  let server: PeerServer | undefined;
  return {
    ...{ forwarder, watch },
    counts: () => ({ forwarded: forwarder.counts, hosts: watch.counts() }),
    /** Call it when the HTTP server is built. Resolves with the port. */
    async open(port: number): Promise<number> {
      server = new PeerServer({ hostName, secret, handler: forwarder.peers, log });
      const opened = await server.listen({ port }).catch((error: NodeJS.ErrnoException) => {
        throw new Error(`the peer port ${port} cannot be listened on (${error.code}): set another CAPSULE_PEER_PORT`);
      });
      cluster.membership.serves();
      return opened;
    },
    async close(): Promise<void> {
      links.close();
      await Promise.all([watch.stop(), server?.close()]);
    },
  };
}

function holdingsOf({ capsuleRows, templateRows }: Records, catalog: CatalogRows): Holdings {
  const teams = catalog.teams();
  const named = new Map(teams.map(({ id, name }) => [id, name]));
  return {
    capsules: capsuleRows.all().length,
    teams,
    keys: catalog.keys().map(({ id, teamId }) => ({ id, team: named.get(teamId) ?? teamId })),
    templates: templateRows.all(),
  };
}

/** Limits that this host's environment sets. */
function limitsSet(): ReadonlySet<string> {
  const names = Object.keys(process.env).filter((name) => name.startsWith("CAPSULE_") && process.env[name]);
  return new Set(names.map((name) => name.slice("CAPSULE_".length).toLowerCase()));
}
