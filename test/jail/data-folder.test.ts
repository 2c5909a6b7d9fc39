/**
 * A server's data folder is closed to all other users after bases booted and capsules ran, were paused and were
 * captured.
 */
import assert from "node:assert/strict";
import { type Dirent, lstatSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { loadConfig } from "../../src/config.ts";
import { Client } from "../client.ts";
import { Server } from "../server.ts";

const uids = loadConfig({}).jailUids;
let server: Server;
let client: Client;

before(async () => {
  server = await Server.start({ env: { CAPSULE_POOL: "off" } });
  client = await Client.connect(server.url, server.apiKey);
});
after(async () => {
  client?.close();
  await server?.[Symbol.asyncDispose]();
});

test("folders are 0700, files 0600; shared files are readable to the jails' group, a hand-over folder to one user", async () => {
  await using running = await client.capsule();
  await using paused = await client.capsule();
  await paused.pause();
  const captured = await client.capsule();
  await client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: captured.id, name: "shared" } });
  await using made = await client.capsule({ template: "shared" });
  assert.equal(await made.sh("echo alive"), "alive");
  assert.equal(await running.sh("echo alive"), "alive");

  const open: string[] = [];
  let shared = 0;
  for (const path of everythingIn(server.dataDir)) {
    const found = lstatSync(path, { throwIfNoEntry: false });
    if (found === undefined) continue; // removed by the running server meanwhile
    const { mode, uid, gid } = found;
    const isHandover = path.startsWith(join(server.dataDir, "work/handover-")) && found.isDirectory();
    if (isHandover && uid === 0 && gid > uids.first && (mode & 0o777) === 0o710) continue;
    const isShared = gid === uids.first && (mode & 0o777) === 0o640;
    if (isShared) shared++;
    else if ((mode & 0o077) !== 0) open.push(`${path} ${(mode & 0o777).toString(8)}`);
  }
  assert.deepEqual(open, []);
  const isRoot = process.getuid!() === 0;
  assert.equal(shared, isRoot ? 4 : 0, "memory and disk of a base and of a template");
});

test("/healthz reports the jail around VMs", async () => {
  const { json } = await client.expect(200, "GET", "/healthz");
  assert.equal(json.jail.mode, process.getuid!() === 0 ? "full" : "rootless");
  assert.ok(["v2", "none"].includes(json.jail.cgroup));
  assert.equal(json.jail.missing.length === 0, json.jail.cgroup === "v2" && json.jail.mode === "full");
});

test("a VM's environment and command line contain no secret of the server", async () => {
  await using capsule = await client.capsule();
  const journal = readFileSync(join(server.dataDir, "capsules", capsule.id, "vm.json"), "utf8");
  const pid = String(JSON.parse(journal).process.pid);
  assert.match(read(pid, "cmdline"), /^\S*qemu/);
  assert.ok(!(read(pid, "environ") + read(pid, "cmdline")).includes(server.apiKey));
  assert.deepEqual(read(pid, "environ").split("\0").filter(Boolean).map(nameOf), ["PWD"]);
});

/** All paths below a folder except symbolic links, which lead to images of another folder. */
function everythingIn(folder: string): string[] {
  const paths = [folder];
  for (const entry of entriesOf(folder)) {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) paths.push(...everythingIn(path));
    else if (!entry.isSymbolicLink()) paths.push(path);
  }
  return paths;
}

function entriesOf(folder: string): Dirent[] {
  try {
    return readdirSync(folder, { withFileTypes: true });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return []; // removed meanwhile
    throw error;
  }
}

function read(pid: string, name: string): string {
  try {
    return readFileSync(`/proc/${pid}/${name}`, "utf8");
  } catch {
    return ""; // ended meanwhile
  }
}

function nameOf(variable: string): string {
  return variable.slice(0, variable.indexOf("="));
}
