/** Hosts of a cluster without VMs: the real service, cluster and HTTP server, on fake machines and a real PostgreSQL. */
import { hash } from "node:crypto";
import pino from "pino";
import type { SealedBucket } from "../../src/bucket/sealed-bucket.ts";
import type { ReleasedFiles } from "../../src/cluster/acquiring.ts";
import { type ArtifactFolders, Artifacts } from "../../src/cluster/artifacts.ts";
import type { Freshness } from "../../src/cluster/catalog.ts";
import { Cluster } from "../../src/cluster/cluster.ts";
import type { ClusterOptions } from "../../src/cluster/cluster-options.ts";
import type { ClusterStep } from "../../src/cluster/copies.ts";
import { Postgres } from "../../src/cluster/postgres.ts";
import { type CheckpointUploads, Releases } from "../../src/cluster/releases.ts";
import { clusteredServices, startCluster } from "../../src/clustered.ts";
import { loadConfig } from "../../src/config.ts";
import { CatalogRows } from "../../src/db/catalog-rows.ts";
import { type Database, openDatabase } from "../../src/db/database.ts";
import { HoldingRows } from "../../src/db/holding-rows.ts";

import { buildServer } from "../../src/http/app.ts";
import type { Forwarder } from "../../src/http/forwarding/forwarder.ts";
import type { App } from "../../src/http/route.ts";
import type { Services } from "../../src/http/services.ts";
import { peerPort } from "../../src/joined.ts";
import type { Limits } from "../../src/wire/limits.ts";
import { keys } from "../api.ts";
import { FakeClock } from "../fakes/fake-clock.ts";
import { FakeHost } from "../fakes/fake-host.ts";
import { type FakeService, fakeService } from "../fakes/fake-service.ts";
import { Contract, type OpenApi } from "../openapi-contract.ts";
import { waitFor } from "../wait-for.ts";
import type { Link } from "./link.ts";
import { about, type ClusterDatabase, joining, slowness, ticks } from "./statements.ts";

export interface FakeHostOfCluster extends AsyncDisposable {
  name: string;
  service: FakeService;
  services: Services;
  forwarder: Forwarder;
  cluster: Cluster;
  sql: Postgres;
  clock: FakeClock;
  machine: FakeHost;
  database: Database;
  app: App;
  /** Why the host has to end. */
  refusals: string[];
  /** Answers of the HTTP server, compared with the API's description. */
  call(
    method: "GET" | "POST" | "PATCH" | "DELETE",
    url: string,
    json?: unknown,
    headers?: object,
    // biome-ignore lint/suspicious/noExplicitAny: tests read the fields that they expect
  ): Promise<{ status: number; json: any; headers: Record<string, unknown> }>;
  /** Lets a second pass, with its heartbeat and what follows from it. */
  second(): Promise<void>;
  /** Status copies are written. */
  copied(): Promise<void>;
  /** A daemon that was killed: nothing is written any more. Its database and machine are given to the next one. */
  kill(): Promise<void>;
}

export interface HostOptions extends Pick<ClusterOptions, "lastHeard" | "onHosts"> {
  database?: Database;
  machine?: FakeHost;
  /** A way to the database that a test cuts. */
  link?: Link;
  freshness?: Freshness;
  onLimits?: (limits: Readonly<Record<string, unknown>>) => void;
  /** Without a join: the epoch of the last life. */
  epoch?: number;
  limits?: Partial<Limits>;
  hostLostSec?: number;
  /** How long another host may take to begin an acquire; default: as long as a busy machine needs. */
  beginMs?: number;
  /** How long requests wait for a capsule that comes to a host. Default: as long as a busy machine needs. */
  waits?: { rowMs?: number; arrivalMs?: number };
  /** The files of released capsules. Default: the cluster has no bucket. */
  files?: ReleasedFiles;
  bucket?: { sealed: SealedBucket; folders: ArtifactFolders };
  /** The bucket. Default: the cluster has none, and nothing is released. */
  uploads?: CheckpointUploads;
  step?: ClusterStep;
  /** How long a request waits for a capsule that is leaving. Default: as long as a busy machine needs. */
  leavingMs?: number;
}

/** A busy machine decides nothing by its time. */
const busyMs = 60_000;

/** Rest of a paused capsule before its release. */
export const releaseAfterMs = 5_000;

const silent = { info() {}, warn() {}, error() {} };

function releasesOf(
  { leaving, membership, gathering }: Cluster,
  { service, database, sql, clock }: Pick<FakeHostOfCluster, "service" | "database" | "sql" | "clock">,
  uploads: CheckpointUploads | undefined,
): Releases | undefined {
  if (uploads === undefined) return undefined;
  return new Releases({
    ...{ store: service.store, holding: new HoldingRows(database), leaving, uploads, sql, clock, log: silent },
    ...{ afterMs: releaseAfterMs, isAway: () => sql.isAway || membership.isPutBack || gathering.isOn },
  });
}

/** The cluster's own: a host of another test that is given the port of one that has died does not answer in its name. */
export function secretOf({ url }: Pick<ClusterDatabase, "url">): Buffer {
  return hash("sha256", url, "buffer");
}

/** Joins as the host of that name, whose nonce and place are those of `joining`. */
export async function hostOfCluster(
  cluster: ClusterDatabase,
  name: string,
  options: HostOptions = {},
): Promise<FakeHostOfCluster> {
  const { database = openDatabase(":memory:"), machine = new FakeHost(), link } = options;
  const epoch = options.epoch ?? (await cluster.sql.call<number>("join_host", joining(name), about));
  const url = link?.urlOf(cluster.url) ?? cluster.url;
  const sql = await Postgres.open({ url, ticks, slowness: () => (link?.isOpen === false ? 1 : slowness) });
  const clock = new FakeClock();
  let joined: Cluster | undefined;
  let artifacts: Artifacts | undefined;
  const refusals: string[] = [];
  const service = fakeService({
    ...{ database, host: machine, clock },
    ownershipOf: ({ store, templateRows, auditRows }) => {
      if (options.bucket !== undefined)
        artifacts = new Artifacts({ sql, bucket: options.bucket.sealed, rows: templateRows, clock });
      joined = new Cluster({
        ...{
          artifacts,
          sql,
          store,
          clock,
          log: silent,
          me: { name, epoch, nonce: `nonce-${name}` },
          ...(options.freshness === undefined ? {} : { freshness: options.freshness }),
          revokedKeepMs: 1e9,
          auditKeepMs: 1e9,
        },
        rows: {
          ...{ audit: auditRows, catalog: new CatalogRows(database), templates: templateRows },
          holding: new HoldingRows(database),
        },
        onRefused: (reason) => void refusals.push(reason),
        step: (name) => options.step?.(name),
        onLimits: (limits) => options.onLimits?.(limits),
        ...{ lastHeard: options.lastHeard, onHosts: (hosts) => options.onHosts?.(hosts) },
        largest: { vcpus_max: 8, memory_max_mb: 65_536 },
        resumeMs: busyMs,
        leavingMs: options.leavingMs ?? busyMs,
        hostLostSec: options.hostLostSec ?? 0,
      });
      return joined.decided;
    },
  });
  const part = joined!;
  if (options.bucket !== undefined)
    artifacts?.begin({ folders: options.bucket.folders, hold: (storage) => service.promised.folder(storage) });
  part.membership.serves(); // no test waits for the second behind the opening of its port
  await startCluster(part, service, { folders: machine.moved, files: options.files });
  part.releases = releasesOf(part, { service, database, sql, clock }, options.uploads);
  await service.recover();
  part.recovered();
  const services = clusteredServices({
    service,
    cluster: part,
    health: service.health,
    keysStaleMs: 900_000,
    bucket: options.bucket?.sealed.bucket,
  });
  const limits = { ...loadConfig({}).limits, vcpus_max: 8, memory_max_mb: 65_536, ...options.limits };
  const peer = peerPort(part, service, secretOf(cluster), silent, {
    ...{ beginMs: options.beginMs ?? busyMs, rowMs: busyMs, arrivalMs: busyMs },
    ...options.waits,
  });
  const app = buildServer(services, {
    forwarding: peer.forwarder,
    limits,
    logger: pino({ level: "silent" }),
    version: "0.0.0",
    web: "/nowhere",
    hostName: name,
  });
  await app.ready();
  const port = await peer.open(0);
  await cluster.sql.query("UPDATE hosts SET port = $1, address = '127.0.0.1' WHERE name = $2", [port, name], about);
  let contract: Contract | undefined;
  let isOver = false;
  const host: FakeHostOfCluster = {
    ...{
      name,
      service,
      services,
      forwarder: peer.forwarder,
      cluster: part,
      sql,
      clock,
      machine,
      database,
      app,
      refusals,
    },
    async call(method, path, json, headers = {}) {
      contract ??= new Contract((await app.inject("/openapi.json")).json<OpenApi>());
      const payload = json === undefined ? undefined : JSON.stringify(json);
      const type = json === undefined ? {} : { "content-type": "application/json" };
      const reply = await app.inject({
        method,
        url: path,
        headers: { "x-api-key": keys.red, ...type, ...headers },
        ...(payload === undefined ? {} : { payload }),
      });
      const text = reply.body;
      const parsed = text === "" ? undefined : JSON.parse(text);
      contract.check({
        method,
        path: path.split("?", 1)[0]!,
        status: reply.statusCode,
        headers: reply.headers,
        body: text,
      });
      return { status: reply.statusCode, json: parsed, headers: reply.headers };
    },
    async second() {
      clock.advance(1_000);
      await part.settled();
    },
    async copied() {
      await part.copies.flush();
    },
    async kill() {
      if (isOver) return;
      isOver = true;
      await sql.close();
      await app.close();
      await peer.close();
    },
    async [Symbol.asyncDispose]() {
      await host.kill();
      await part.stop();
    },
  };
  return host;
}

/** The key of the tests, of a team `red` that all hosts get from the catalog. */
export async function addTeams({ sql }: ClusterDatabase): Promise<void> {
  for (const [name, key] of Object.entries(keys)) {
    await sql.call("ensure_team", [`team-${name}`, name, 1], about);
    const columns = {
      id: `key-${name}`,
      team_id: `team-${name}`,
      label: "first",
      hash: hash("sha256", key, "hex"),
      created_at: 1,
    };
    await sql.call("add_key", [JSON.stringify(columns), null, 0], about);
  }
}

/** A running capsule of team red on this host. */
export async function created(host: FakeHostOfCluster, body: object = {}): Promise<string> {
  const { status, json } = await host.call("POST", "/v1/capsules", body);
  if (status !== 201) throw new Error(`${status} ${JSON.stringify(json)}`);
  await host.service.settled();
  await host.copied();
  return json.id;
}

export function untilListed(host: FakeHostOfCluster, id: string, status: string): Promise<unknown> {
  return waitFor(`${id} to be listed as ${status}`, async () => {
    const { json } = await host.call("GET", "/v1/capsules");
    return (json as { id: string; status: string }[]).find((each) => each.id === id)?.status === status;
  });
}
