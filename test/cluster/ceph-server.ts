/**
 * A bucket of the test's own: Ceph's S3 gateway over one monitor and one store that keeps its objects in memory. They listen on a loopback
 * address of their own, so their ports are nobody else's.
 */
import assert from "node:assert/strict";
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { randomBytes, randomInt, randomUUID } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { S3mini } from "s3mini";
import { waitFor } from "../wait-for.ts";

const run = promisify(execFile);
const programs = ["ceph-mon", "ceph-osd", "radosgw"].map((name) => `/usr/bin/${name}`);
const port = 7480;

/** Why the tests of this file are skipped; false: they run. */
export const lacksCeph: string | false = programs.every((path) => existsSync(path))
  ? false
  : "Ceph's gateway, of Debian's packages radosgw, ceph-mon and ceph-osd";

export interface CephBucket {
  url: string;
  accessKeyId: string;
  secretAccessKey: string;
}

export class CephServer {
  readonly folder: string;
  /** A loopback address. */
  readonly host: string;
  readonly port = port;
  readonly accessKeyId: string = randomBytes(10).toString("hex");
  readonly secretAccessKey: string = randomBytes(20).toString("hex");
  #processes: ChildProcess[] = [];
  #buckets = 0;

  private constructor(folder: string) {
    this.folder = folder;
    this.host = ["127", ...[0, 1, 2].map(() => randomInt(2, 254))].join(".");
  }

  /** Starts one in a folder that is made. */
  static async startIn(folder: string): Promise<CephServer> {
    mkdirSync(folder);
    const server = new CephServer(folder);
    try {
      await server.#start();
    } catch (error) {
      await server.remove();
      throw error;
    }
    return server;
  }

  /** A new, empty bucket. */
  async newBucket(): Promise<CephBucket> {
    const { accessKeyId, secretAccessKey } = this;
    const name = `bucket-${++this.#buckets}`;
    await this.#put("", name);
    return { url: `${this.#endpoint}/${name}`, accessKeyId, secretAccessKey };
  }

  /** Ends its processes and removes its files. */
  async remove(): Promise<void> {
    await Promise.all(this.#processes.map(killed));
    rmSync(this.folder, { recursive: true, force: true });
  }

  async #start(): Promise<void> {
    const { folder } = this;
    const conf = join(folder, "ceph.conf");
    for (const name of ["mon", "osd", "rgw"]) mkdirSync(join(folder, name));
    const fsid = randomUUID();
    writeFileSync(conf, configuration({ folder, host: this.host, fsid }));
    const [keyring, map] = [join(folder, "keyring"), join(folder, "monmap")];
    writeFileSync(keyring, newKeyring(), { mode: 0o600 });
    await run("monmaptool", ["--create", "--fsid", fsid, "--addv", "a", `[v2:${this.host}:3300]`, map]);
    await run("ceph-mon", ["-c", conf, "--mkfs", "-i", "a", "--monmap", map, "--keyring", keyring]);
    this.#spawn("ceph-mon", ["-c", conf, "-i", "a"]);
    const store = randomUUID();
    await run("ceph-osd", ["-c", conf, "-i", "0", "--mkfs", "--osd-uuid", store, "--monmap", map]);
    await this.#unlessEnded(run("ceph", ["-c", conf, "osd", "new", store, "0"]));
    this.#spawn("ceph-osd", ["-c", conf, "-i", "0"]);
    const keys = [`--access-key=${this.accessKeyId}`, `--secret=${this.secretAccessKey}`];
    const user = ["user", "create", "--uid=capsule", "--display-name=capsule", ...keys];
    await this.#made("the gateway's user", () => run("radosgw-admin", ["-c", conf, ...user]), /user: capsule exists/);
    const front = `beast endpoint=${this.host}:${port} tcp_nodelay=1`;
    let gateway: ChildProcess | undefined;
    await this.#made("the gateway's answer", async () => {
      if (gateway === undefined || hasEnded(gateway))
        gateway = this.#spawn("radosgw", ["-c", conf, "-n", "client.admin", "--rgw-frontends", front]);
      assert.ok((await fetch(this.#endpoint)).ok);
    });
    await this.#made("the first bucket", () => this.#put("", "first"));
    await this.#made("the first object", () => this.#put("/first", "object"));
  }

  get #endpoint(): string {
    return `http://${this.host}:${port}`;
  }

  /** An empty object in the bucket of that path, or a bucket. */
  async #put(path: string, name: string): Promise<void> {
    const { accessKeyId, secretAccessKey } = this;
    const endpoint = `${this.#endpoint}${path}`;
    await new S3mini({ accessKeyId, secretAccessKey, endpoint, region: "us-east-1" }).putObject(name, "");
  }

  /**
   * Tries it until it succeeds, or has succeeded before: the gateway's programs make the pools that they lack, and take the answer to
   * that for an error, or crash, when the new map of the pools comes late. The next time the pool is there.
   */
  async #made(what: string, make: () => Promise<unknown>, isMade = /^$/): Promise<void> {
    let refusal: unknown;
    const made = waitFor(
      () => `${what}: ${refusal}`,
      async () => {
        try {
          await make();
          return true;
        } catch (error) {
          refusal = error;
          return isMade.test(String(error));
        }
      },
    );
    await this.#unlessEnded(made);
  }

  /** They end with this process. */
  #spawn(program: string, words: string[]): ChildProcess {
    const started = spawn("setpriv", ["--pdeathsig", "KILL", program, ...words, "--foreground"], { stdio: "ignore" });
    this.#processes.push(started);
    return started;
  }

  /** Throws when a process has ended in place of what is waited for. */
  async #unlessEnded(work: Promise<unknown>): Promise<void> {
    const { promise: ended, reject } = Promise.withResolvers<never>();
    const failed = () => reject(new Error(`a program of Ceph has ended:\n${logsIn(this.folder)}`));
    for (const each of this.#processes) each.once("exit", failed);
    try {
      await Promise.race([work, ended]);
    } finally {
      for (const each of this.#processes) each.off("exit", failed);
    }
  }
}

function hasEnded({ exitCode, signalCode }: ChildProcess): boolean {
  return exitCode !== null || signalCode !== null;
}

async function killed(each: ChildProcess): Promise<void> {
  if (hasEnded(each)) return;
  const { promise, resolve } = Promise.withResolvers<void>();
  each.once("exit", () => resolve());
  each.kill("SIGKILL");
  await promise;
}

function logsIn(folder: string): string {
  const logs = ["mon.a", "osd.0", "client.admin"].map((name) => join(folder, `${name}.log`)).filter(existsSync);
  return logs.map((path) => readFileSync(path, "utf8").slice(-2_000)).join("\n");
}

/** Ceph wants keys among its own programs, even here. A key is a header of 12 bytes and 16 of its own, in base64. */
function newKeyring(): string {
  const key = () => {
    const head = Buffer.alloc(12);
    head.writeUInt16LE(1, 0);
    head.writeUInt32LE(Math.floor(Date.now() / 1_000), 2);
    head.writeUInt16LE(16, 10);
    return Buffer.concat([head, randomBytes(16)]).toString("base64");
  };
  return `[mon.]
key = ${key()}
caps mon = "allow *"
[client.admin]
key = ${key()}
caps mon = "allow *"
caps osd = "allow *"
caps mgr = "allow *"
[osd.0]
key = ${key()}
caps mon = "allow profile osd"
caps osd = "allow *"
`;
}

/** One copy of everything; a short vote of the one monitor, which else waits a second for each new pool. */
function configuration({ folder, host, fsid }: { folder: string; host: string; fsid: string }): string {
  return `[global]
fsid = ${fsid}
mon_host = [v2:${host}:3300/0]
public_addr = ${host}
cluster_addr = ${host}
keyring = ${folder}/keyring
run_dir = ${folder}
admin_socket =
log_file = ${folder}/$name.log
log_to_stderr = false
mon_cluster_log_file = ${folder}/cluster.log
mon_data = ${folder}/mon
osd_data = ${folder}/osd
rgw_data = ${folder}/rgw
osd_objectstore = memstore
memstore_device_bytes = 2147483648
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 1
osd_pool_default_pgp_num = 1
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000
paxos_propose_interval = 0.02
paxos_min_wait = 0.01
mon_tick_interval = 1
mon_data_avail_warn = 0
mon_data_avail_crit = 0
rgw_rados_pool_pg_num_min = 1
rgw_thread_pool_size = 64
rgw_enable_gc_threads = false
rgw_enable_lc_threads = false
rgw_enable_quota_threads = false
rgw_run_sync_thread = false
`;
}
