/** An upgrade as in docs/OPERATIONS.md: the old server ends and other code starts, while capsules keep running. */
import assert from "node:assert/strict";
import { cp, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { test } from "node:test";
import { findBelow } from "../../src/vmm/process.ts";
import { Client } from "../client.ts";
import { Server } from "../server.ts";

const repository = resolve(import.meta.dirname, "../..");

test("a running capsule keeps its VM under another version of the server", { timeout: 600_000 }, async () => {
  const next = await mkdtemp(join(tmpdir(), "capsule-next-"));
  await using server = await Server.start({ env: { CAPSULE_POOL: "off" } });
  try {
    await makeVersion(next, "99.0.0");
    let client = await Client.connect(server.url, server.apiKey);
    const capsule = await client.capsule();
    const { json: background } = await capsule.exec({ cmd: "sleep", args: ["8002"], background: true });
    const [vm] = await findBelow(server.dataDir);
    const before = await capsule.view();
    client.close();

    await server.kill("SIGTERM");
    await server.start({}, join(next, "src/main.ts"));

    client = await Client.connect(server.url, server.apiKey);
    const { json: health } = await client.expect(200, "GET", "/healthz");
    assert.equal(health.version, "99.0.0");
    const same = client.known(capsule.id);
    assert.deepEqual(await same.view(), before);
    assert.deepEqual(await findBelow(server.dataDir), [vm]);
    assert.equal(await same.sh("pgrep -xf 'sleep 8002'"), String(background.pid));
    await same.destroy();
    client.close();
  } finally {
    await rm(next, { recursive: true });
  }
});

/** This repository's code under another version number. */
async function makeVersion(folder: string, version: string): Promise<void> {
  await cp(join(repository, "src"), join(folder, "src"), { recursive: true });
  await symlink(join(repository, "node_modules"), join(folder, "node_modules"));
  const about = JSON.parse(await readFile(join(repository, "package.json"), "utf8"));
  await writeFile(join(folder, "package.json"), JSON.stringify({ ...about, version }));
}
