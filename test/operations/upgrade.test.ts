/** An upgrade as in docs/operations/upgrade.md: the old server ends and other code starts, while capsules keep running. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { findBelow } from "../../src/vmm/process.ts";
import { Client, viewAt } from "../client.ts";
import { Server } from "../server.ts";
import { OtherVersion } from "./other-version.ts";

test("a running capsule keeps its VM under another version of the server", { timeout: 600_000 }, async () => {
  await using next = await OtherVersion.make("99.0.0");
  await using server = await Server.start({ env: { CAPSULE_POOL: "off" } });
  let client = await Client.connect(server.url, server.apiKey);
  const capsule = await client.capsule();
  const { json: background } = await capsule.exec({ cmd: "sleep", args: ["8002"], background: true });
  const [vm] = await findBelow(server.dataDir);
  const before = await capsule.view();
  client.close();

  await server.kill("SIGTERM");
  await server.start({}, next.program);
  await server.adopted();

  client = await Client.connect(server.url, server.apiKey);
  const { json: health } = await client.expect(200, "GET", "/healthz");
  assert.equal(health.version, "99.0.0");
  const same = client.known(capsule.id);
  assert.deepEqual(await same.view(), viewAt(server.url, before));
  assert.deepEqual(await findBelow(server.dataDir), [vm]);
  assert.equal(await same.sh("pgrep -xf 'sleep 8002'"), String(background.pid));
  await same.destroy();
  client.close();
});
