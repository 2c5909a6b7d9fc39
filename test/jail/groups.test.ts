/**
 * Control groups on a kernel that has them, which this machine's may not: the host's own code runs in a capsule, whose
 * kernel has version 2 with all controllers, and tells what became of what it asked for (groups-inside.ts).
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { build } from "esbuild";
import { findProgram } from "../../src/vmm/jail/program-files.ts";
import { Client, type TestCapsule } from "../client.ts";
import { fileForm } from "../conformance/requests.ts";
import { Server } from "../server.ts";
import type { Seen } from "./groups-inside.ts";

const runSec = 240;

let server: Server;
let client: Client;
let seen: Seen;

before(async () => {
  server = await Server.start({ env: { CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0" } });
  client = await Client.connect(server.url, server.apiKey);
  await using capsule = await client.capsule();
  const bwrap = findProgram("bwrap");
  assert.ok(bwrap !== undefined, "no bwrap here");
  await bring(capsule, "/usr/local/bin/node", readFileSync(process.execPath));
  await bring(capsule, "/usr/local/bin/bwrap", readFileSync(bwrap));
  await bring(capsule, "/root/groups.mjs", await bundle("groups-inside.ts"));
  const said = await capsule.sh("chmod 755 /usr/local/bin/*; exec node /root/groups.mjs", { timeout: runSec });
  seen = JSON.parse(said);
});
after(async () => {
  client?.close();
  await server?.[Symbol.asyncDispose]();
});

async function bring({ path }: TestCapsule, to: string, content: Uint8Array): Promise<void> {
  await client.expect(204, "POST", `${path}/files/stream/write`, { form: fileForm(to, content) });
}

/** One file, with all that it imports of the host's code. */
async function bundle(name: string): Promise<Uint8Array> {
  const entryPoints = [join(import.meta.dirname, name)];
  const made = await build({ entryPoints, bundle: true, write: false, platform: "node", format: "esm" });
  return made.outputFiles[0]!.contents;
}

test("a tree is built on where it hands on memory, cpu and pids, and our groups hand on these and io alone", () => {
  const { isPoorTaken, handedOn } = seen.delegation;
  assert.equal(isPoorTaken, false);
  assert.deepEqual(handedOn[1]?.toSorted(), ["cpu", "io", "memory", "pids"]);
  for (const controller of handedOn[1]!) assert.ok(handedOn[0]?.includes(controller), controller);
});

test("in a container, whose top holds the service, the service makes way for the groups", () => {
  assert.deepEqual(seen.container, { place: "0::/container/service", bound: "64" });
});

test("the kernel takes every bound as it is meant", () => {
  assert.deepEqual(seen.bounds, {
    own: {
      "memory.max": "1610612736",
      "memory.oom.group": "1",
      "cpu.max": "300000 100000",
      "pids.max": "98",
      "io.weight": "default 100",
    },
    weightOfAll: "default 50",
  });
});

test("what takes more memory than its group may have is ended with all of it, and told so; a neighbour lives", () => {
  assert.deepEqual(seen.memory.large, { end: 0, isSleeperGone: false, told: { kind: "exited" } });
  const told = { kind: "overused", what: "memory" };
  assert.deepEqual(seen.memory.small, { end: "SIGKILL", isSleeperGone: true, told });
  assert.equal(seen.memory.isNeighbourAlive, true);
});

test("processes end at their number: one that forks, and what it has made", () => {
  assert.deepEqual(seen.processes, { of10: 9, of20: 19 });
});

test("who spins is held back when its group has had its share, and only then", () => {
  assert.ok(seen.processor.slow > 0, "never held back");
  assert.equal(seen.processor.fast, 0);
});

test("what a group on the way up has left is what admission sees", () => {
  assert.ok(seen.leftMib > 20 && seen.leftMib < 36, `${seen.leftMib} MiB of 100, of which 64 are taken`);
});

test("groups go when all in them have ended, and not before", () => {
  assert.deepEqual(seen.removal, [["neighbour", "later"], ["last"]]);
});

const killed = "Error: /usr/bin/python3 ended with SIGKILL: ";

test("a jail puts its process in such a group, which also counts what limits of a process do not", () => {
  assert.deepEqual(seen.jailed, { mode: "full", cgroup: "v2", ends: ["well", killed] });
});

test("without root, all of it works in what was delegated, and nowhere else", () => {
  assert.equal(seen.rootless.isForeignTaken, false);
  assert.deepEqual(seen.rootless.jail, { mode: "rootless", cgroup: "v2", ends: [killed] });
});

test("without root, a service that comes back has to be started beside its busy groups, and finds them", () => {
  assert.equal(seen.rootless.wayBack, "EBUSY");
  assert.equal(seen.rootless.place, "0::/user.slice/capsule.scope/service");
  assert.equal(seen.rootless.isThereAgain, true);
});
