/**
 * Control groups on a kernel with version 2 and all controllers. This machine may lack them, so the host's own code
 * runs in a capsule (groups-inside.ts) and reports the kernel's behaviour.
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
  assert.ok(bwrap !== undefined, "bwrap is not installed");
  await bring(capsule, "/usr/local/bin/node", readFileSync(process.execPath));
  await bring(capsule, "/usr/local/bin/bwrap", readFileSync(bwrap));
  await bring(capsule, "/root/groups.mjs", await bundle("groups-inside.ts"));
  const report = await capsule.sh("chmod 755 /usr/local/bin/*; exec node /root/groups.mjs", { timeout: runSec });
  seen = JSON.parse(report);
});
after(async () => {
  client?.close();
  await server?.[Symbol.asyncDispose]();
});

async function bring({ path }: TestCapsule, to: string, content: Uint8Array): Promise<void> {
  await client.expect(204, "POST", `${path}/files/stream/write`, { form: fileForm(to, content) });
}

/** The script and all its imports as one file. */
async function bundle(name: string): Promise<Uint8Array> {
  const entryPoints = [join(import.meta.dirname, name)];
  const made = await build({ entryPoints, bundle: true, write: false, platform: "node", format: "esm" });
  return made.outputFiles[0]!.contents;
}

test("a tree needs memory, cpu and pids; groups enable these and io for their children", () => {
  const { isPoorAccepted, enabled } = seen.delegation;
  assert.equal(isPoorAccepted, false);
  assert.deepEqual(enabled[1]?.toSorted(), ["cpu", "io", "memory", "pids"]);
  for (const controller of enabled[1]!) assert.ok(enabled[0]?.includes(controller), controller);
});

test("in a container the service moves out of the top group", () => {
  assert.deepEqual(seen.container, { group: "0::/container/service", limit: "64" });
});

test("the kernel accepts every limit with its value unchanged", () => {
  assert.deepEqual(seen.limits, {
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

test("a process over its group's memory limit is killed with the whole group, and its VM reports that; other groups live", () => {
  assert.deepEqual(seen.memory.large, { end: 0, isSleeperGone: false, reported: { kind: "exited" } });
  const reported = { kind: "overused", what: "memory" };
  assert.deepEqual(seen.memory.small, { end: "SIGKILL", isSleeperGone: true, reported });
  assert.equal(seen.memory.isNeighbourAlive, true);
});

test("the number of processes in a group is limited", () => {
  assert.deepEqual(seen.processes, { of10: 9, of20: 19 });
});

test("a busy process is throttled at its group's CPU limit, and only then", () => {
  assert.ok(seen.processor.slow > 0, "never throttled");
  assert.equal(seen.processor.fast, 0);
});

test("admission sees the memory that the limit of a parent group leaves", () => {
  assert.ok(seen.leftMib > 20 && seen.leftMib < 36, `${seen.leftMib} MiB of 100, of which 64 are taken`);
});

test("a group is removed after its last process has ended, and not before", () => {
  assert.deepEqual(seen.removal, [["neighbour", "later"], ["last"]]);
});

const killed = "Error: /usr/bin/python3 ended with SIGKILL: ";

test("the jail puts its process in a group, which also limits memory that per-process limits do not count", () => {
  assert.deepEqual(seen.jailed, { mode: "full", cgroup: "v2", ends: ["well", killed] });
});

test("without root, the jail uses the delegated group and no other", () => {
  assert.equal(seen.rootless.isForeignAccepted, false);
  assert.deepEqual(seen.rootless.jail, { mode: "rootless", cgroup: "v2", ends: [killed] });
});

test("without root, a service that restarts beside busy groups must start in its service group, and finds the groups again", () => {
  assert.equal(seen.rootless.moveBack, "EBUSY");
  assert.equal(seen.rootless.group, "0::/user.slice/capsule.scope/service");
  assert.equal(seen.rootless.isThereAgain, true);
});
