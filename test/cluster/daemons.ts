/**
 * Real daemons that answer as one: each has VMs, a data folder and an address of its own, and all have the same port, as on machines of
 * their own. Each one reaches PostgreSQL by a link that a test cuts, and is reached by the others through one.
 */
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Client } from "../client.ts";
import { lastingPort } from "../lasting-port.ts";
import { Server, type ServerOptions } from "../server.ts";
import { waitFor } from "../wait-for.ts";
import type { CephBucket } from "./ceph-server.ts";
import { Link } from "./link.ts";
import { PostgresServer } from "./postgres-server.ts";

export interface Daemon {
  readonly name: string;
  readonly server: Server;
  /** Its way to PostgreSQL. */
  readonly database: Link;
  /** The way of the other hosts to it. */
  readonly peers: Link;
  /** Asks this host alone. */
  readonly client: Client;
}

export const hostNames = ["one", "two", "three"] as const;

export interface DaemonsOptions {
  names?: readonly string[];
  /** More of a host's environment; default: no VM is made ahead of time. */
  envOf?: (name: string) => Record<string, string>;
  /** A host's first program, its images, and whether it keeps QEMU in its own data folder; default: as every server of the tests. */
  filesOf?: (name: string) => Pick<ServerOptions, "program" | "images" | "keepsQemu">;
  /** Logged errors that the test causes. */
  errors?: readonly RegExp[];
  /** Default: none. */
  bucket?: CephBucket;
  /** Without links, which are never cut, and whose bytes this process would have to pass on. */
  isDirect?: boolean;
}

interface Parts extends Required<Pick<DaemonsOptions, "errors" | "isDirect" | "filesOf">> {
  folder: string;
  port: string;
  bucket: CephBucket | undefined;
}

/** No VM is made ahead of time. */
export const bare = { CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0" };

/** As much as is allowed: such a host has room for no VM, so that none is placed there. */
export const noRoom = { CAPSULE_MEMORY_RESERVE_MB: String(1 << 24) };

/** Whether the host counts PostgreSQL as away. */
export async function isCutOff({ client }: Daemon): Promise<boolean> {
  const { json } = await client.call("GET", "/healthz");
  return json.reasons.includes("the cluster's database is away");
}

/** A heartbeat of a busy machine may miss its time: the host decides nothing before the next one. */
export async function untilConnected(host: Daemon): Promise<void> {
  await waitFor(`${host.name} to reach PostgreSQL`, async () => !(await isCutOff(host)));
}

/** Resolves when the capsule runs at that host, from which the answer comes. */
export async function untilRunningAt({ client, name }: Daemon, id: string): Promise<void> {
  await waitFor(
    `${id} to run at ${name}`,
    async () => {
      const { status, json, text } = await client.call("GET", `/v1/capsules/${id}`);
      if (status === 503) return false; // it is on its way at this moment
      assert.ok(status === 200 && json.status !== "error", text);
      return json.status === "running" && json.host === name;
    },
    { deadlineMs: 300_000 },
  );
}

/** Logged by hosts whose way to the database is cut, or that have no room. */
const awayErrors = [/"msg":"the cluster's database is away: /, /"msg":"the host is short of memory, and no capsule/];

export class Daemons implements AsyncDisposable {
  readonly postgres: PostgresServer;
  readonly #folder: string;
  readonly #port: string;
  readonly #filesOf: Parts["filesOf"];
  readonly #errors: readonly RegExp[];
  readonly #bucket: CephBucket | undefined;
  readonly #isDirect: boolean;
  readonly #sealingKey = randomBytes(32).toString("hex");
  readonly #hosts: Daemon[] = [];

  static async start({
    names = hostNames,
    envOf = () => bare,
    filesOf = () => ({}),
    errors = [],
    bucket,
    isDirect = false,
  }: DaemonsOptions = {}): Promise<Daemons> {
    const folder = mkdtempSync(join(tmpdir(), "capsule-daemons-"));
    chmodSync(folder, 0o755); // PostgreSQL has a user of its own
    const postgres = await PostgresServer.startIn(join(folder, "postgres")).catch((error: unknown) => {
      rmSync(folder, { recursive: true, force: true });
      throw error;
    });
    const daemons = new Daemons(postgres, { folder, port: await lastingPort(), filesOf, errors, bucket, isDirect });
    try {
      const url = postgres.newDatabase();
      const add = (name: string, index: number) => daemons.#add(name, index, url, envOf(name));
      await add(names[0]!, 0);
      await Promise.all(names.slice(1).map((name, index) => add(name, index + 1)));
      await daemons.known();
    } catch (error) {
      await daemons[Symbol.asyncDispose]();
      throw error;
    }
    return daemons;
  }

  private constructor(postgres: PostgresServer, { folder, port, filesOf, errors, bucket, isDirect }: Parts) {
    this.postgres = postgres;
    this.#folder = folder;
    this.#port = port;
    this.#filesOf = filesOf;
    this.#errors = [...awayErrors, ...errors];
    this.#bucket = bucket;
    this.#isDirect = isDirect;
  }

  get hosts(): readonly Daemon[] {
    return this.#hosts;
  }

  host(name: string): Daemon {
    return this.#hosts.find((each) => each.name === name)!;
  }

  /** Starts a daemon, which was ended, with more of an environment. */
  async start(name: string, env: Record<string, string> = {}): Promise<void> {
    await this.host(name).server.start(env);
  }

  /** Opens all links. Resolves when PostgreSQL has every host as up, and none of them counts it as away. */
  async known(): Promise<void> {
    for (const { database, peers } of this.#hosts) for (const link of [database, peers]) link.open();
    await waitFor("all hosts to be up", async () => {
      const listed = await this.#hosts[0]!.server.operate("admin", "hosts", "--json").catch(() => "[]");
      const states = (JSON.parse(listed) as { state: string }[]).map(({ state }) => state);
      return states.length === this.#hosts.length && states.every((state) => state === "up");
    });
    for (const host of this.#hosts) await untilConnected(host);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const failures: unknown[] = [];
    for (const { server, client, database, peers } of this.#hosts) {
      for (const link of [database, peers]) link.open();
      client.close();
      await server[Symbol.asyncDispose]().catch((error: unknown) => failures.push(error));
      for (const link of [database, peers]) await link[Symbol.asyncDispose]();
    }
    await this.postgres.stop();
    rmSync(this.#folder, { recursive: true, force: true });
    if (failures.length > 0) throw failures[0];
  }

  async #add(name: string, index: number, url: string, env: Record<string, string>): Promise<void> {
    const peerPort = await lastingPort();
    const [database, peers] = [await Link.to(this.postgres), await Link.toPort(Number(peerPort))];
    const own = {
      ...{ CAPSULE_HOST: `127.0.0.${index + 1}`, CAPSULE_PORT: this.#port, CAPSULE_HOST_NAME: name },
      ...{ CAPSULE_PEER_PORT: peerPort, CAPSULE_PEER_URL: `127.0.0.1:${this.#isDirect ? peerPort : peers.port}` },
    };
    const options: ServerOptions = {
      ...{ env: { ...own, ...env }, errors: this.#errors, ...this.#filesOf(name) },
      prepare: async (server) => await this.#prepare(name, server, url, database),
    };
    const server = await Server.start(options).catch(async (error: unknown) => {
      for (const link of [database, peers]) await link[Symbol.asyncDispose]();
      throw error;
    });
    const client = await Client.connect(server.url, server.apiKey);
    this.#hosts.push({ name, server, database, peers, client });
  }

  /** The first host makes the cluster of its folder. Each has a file of its own, with its way to the database. */
  async #prepare(name: string, server: Server, url: string, database: Link): Promise<Record<string, string>> {
    const [first] = this.#hosts;
    const shared = join(this.#folder, "cluster.json");
    const keyPath = join(server.dataDir, "api-key");
    if (first === undefined) {
      writeFileSync(keyPath, `${await server.createKey("default", "first")}\n`, { mode: 0o600 });
      await server.operate("admin", "cluster", "init", "--postgres", url, "--file", shared);
    } else writeFileSync(keyPath, `${first.server.apiKey}\n`, { mode: 0o600 });
    const { url: bucketUrl, accessKeyId, secretAccessKey } = this.#bucket ?? {};
    const keys = { access_key_id: accessKeyId, secret_access_key: secretAccessKey };
    const bucket = { url: bucketUrl, ...keys, sealing_key: this.#sealingKey, sealing_key_number: 1 };
    const own = {
      ...{ ...JSON.parse(readFileSync(shared, "utf8")), postgres: this.#isDirect ? url : database.urlOf(url) },
      ...(this.#bucket === undefined ? {} : { bucket }),
    };
    const file = join(this.#folder, `${name}.json`);
    writeFileSync(file, JSON.stringify(own), { mode: 0o600 });
    return { CAPSULE_CLUSTER: file };
  }
}
