/** The thread pool of the running server. */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { Server } from "../server.ts";

/** Threads that one pause can block: fsyncs of the disk layer and its folder, writes of memory and of device state. */
const blockedByPause = 4;
/** The pauses at once of a machine with as many CPUs. */
const mostPauses = 8;

test("the pauses that may run at once leave half of the server's thread pool free", { timeout: 600_000 }, async () => {
  await using server = await Server.start({ env: { CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0" } });
  const folder = `/proc/${server.pid}/task`;
  const names = readdirSync(folder).map((thread) => readFileSync(`${folder}/${thread}/comm`, "utf8").trim());
  const workers = names.filter((name) => name === "libuv-worker").length;
  assert.equal(workers, 2 * blockedByPause * mostPauses);
});
