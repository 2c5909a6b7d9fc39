/** A test that is told to end, as the runner does at a limit, leaves no server and no VM. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { processesOf } from "../server.ts";

const script = `
  import { Server } from ${JSON.stringify(join(import.meta.dirname, "../server.ts"))};
  import { Client } from ${JSON.stringify(join(import.meta.dirname, "../client.ts"))};
  const server = await Server.start({ env: { CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0" } });
  await (await Client.connect(server.url, server.apiKey)).capsule();
  console.log(server.dataDir);
  setInterval(() => {}, 1_000);`;

test("SIGTERM ends the servers of a test with their VMs, and removes their folders", {
  timeout: 600_000,
}, async (t) => {
  const child = spawn(process.execPath, ["--input-type=module-typescript", "-e", script], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  t.after(() => child.kill("SIGKILL"));
  const [dataDir] = (await once(createInterface({ input: child.stdout }), "line")) as [string];
  assert.ok(processesOf(dataDir).length > 0, "a VM runs");
  child.kill("SIGTERM");
  await once(child, "exit");
  assert.deepEqual(processesOf(dataDir), []);
  assert.equal(existsSync(dataDir), false);
});
