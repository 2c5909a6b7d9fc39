/** `./dev cluster`: PostgreSQL, a bucket and two hosts on this machine, in a folder that is removed with them when it ends. */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { chmodSync, cpSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { waitFor } from "../wait-for.ts";
import { CephServer } from "./ceph-server.ts";
import { PostgresServer } from "./postgres-server.ts";

const root = resolve(import.meta.dirname, "../..");
const program = join(root, "capsule");
const images = join(process.env.CAPSULE_DATA ?? join(root, ".capsule"), "images");
/** The second host has the next ones. */
const { CAPSULE_PORT: firstPort = "8081", CAPSULE_PEER_PORT: firstPeerPort = "8091" } = process.env;

interface Host {
  name: string;
  url: string;
  env: Record<string, string | undefined>;
}

const work = mkdtempSync(join(tmpdir(), "capsule-cluster-"));
chmodSync(work, 0o755);
const postgres = await PostgresServer.startIn(join(work, "postgres"));
const ceph = await CephServer.startIn(join(work, "ceph"));
const hosts = ["one", "two"].map(hostOf);
const servers: ChildProcess[] = [];
const { promise: ended, resolve: resolveEnded } = Promise.withResolvers<void>();
let hasEnded = false;
const end = () => {
  hasEnded = true;
  resolveEnded();
};
for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => end());

try {
  const [one] = hosts as [Host, Host];
  const key = capsule(one, ["admin", "keys", "create", "--team", "default"]);
  const file = join(work, "cluster.json");
  const bucket = await ceph.newBucket();
  const init = ["--postgres", postgres.newDatabase(), "--bucket", bucket.url, "--file", file];
  capsule(one, ["admin", "cluster", "init", ...init], `\n${bucket.accessKeyId}\n${bucket.secretAccessKey}\n`);
  writeFileSync(join(work, "api-key"), `${key}\n`, { mode: 0o600 });
  for (const host of hosts) {
    Object.assign(host.env, { CAPSULE_CLUSTER: file });
    const log = spawn(program, ["serve"], { env: host.env, stdio: ["ignore", "ignore", "inherit"], detached: true });
    log.once("exit", () => end());
    servers.push(log);
  }
  for (const { url } of hosts) await up(url);
  const said = `
Two hosts answer as one. In another terminal:

  export CAPSULE_API_KEY=$(cat ${work}/api-key)
  ID=$(CAPSULE_URL=${hosts[0]!.url} ${program} create)
  CAPSULE_URL=${hosts[1]!.url} ${program} exec $ID -- python3 -c 'print(6*7)'
  CAPSULE_URL=${hosts[1]!.url} ${program} ls
  CAPSULE_DATA=${work}/one CAPSULE_CLUSTER=${file} ${program} admin hosts

Ctrl-C ends both, with their VMs, PostgreSQL and the bucket, and removes ${work}.`;
  if (!hasEnded) console.log(said);
  await ended;
} finally {
  await Promise.all(servers.map(stopped));
  for (const host of hosts) if (existsSync(join(host.env.CAPSULE_DATA!, "capsule.db"))) capsule(host, ["down"]);
  await postgres.stop();
  await ceph.remove();
  rmSync(work, { recursive: true, force: true });
}

function hostOf(name: string, index: number): Host {
  const data = join(work, name);
  mkdirSync(data, { mode: 0o700 });
  cpSync(images, join(data, "images"), { recursive: true, verbatimSymlinks: true });
  const env = {
    ...{ ...process.env, CAPSULE_DATA: data, CAPSULE_HOST_NAME: name, CAPSULE_CLUSTER: undefined },
    ...{ CAPSULE_PORT: String(Number(firstPort) + index), CAPSULE_PEER_PORT: String(Number(firstPeerPort) + index) },
  };
  return { name, url: `http://127.0.0.1:${env.CAPSULE_PORT}`, env };
}

function capsule({ env }: Host, words: string[], input = ""): string {
  return execFileSync(program, words, { env, input, encoding: "utf8", stdio: ["pipe", "pipe", "inherit"] }).trim();
}

/** Resolves when the host answers, or this program is to end. */
function up(url: string): Promise<unknown> {
  const answers = async () => hasEnded || (await fetch(`${url}/healthz`).catch(() => undefined))?.ok;
  return waitFor(`${url} to answer`, answers, { deadlineMs: 600_000 });
}

async function stopped(server: ChildProcess): Promise<void> {
  if (server.exitCode !== null || server.signalCode !== null) return;
  const { promise, resolve: exited } = Promise.withResolvers<void>();
  server.once("exit", () => exited());
  server.kill("SIGTERM");
  await promise;
}
