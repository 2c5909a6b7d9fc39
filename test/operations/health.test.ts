/** `/healthz` of a started server says when and why its machine can make no capsule, and when it can again. */
import assert from "node:assert/strict";
import { readdir, rename } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { Server } from "../server.ts";
import { SmallDisk } from "../small-disk.ts";
import { waitFor } from "../wait-for.ts";

const env = { CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0" };

interface Told {
  status: number;
  ready: boolean;
  creates: boolean;
  reasons: string[];
}

async function health(server: Server): Promise<Told> {
  const response = await fetch(`${server.url}/healthz`);
  return { status: response.status, ...((await response.json()) as Omit<Told, "status">) };
}

test("without QEMU's program or without memory it is 503 with the reason", { timeout: 600_000 }, async () => {
  await using server = await Server.start({ env, keepsQemu: true });
  const builds = join(server.dataDir, "qemu");
  const [build] = (await readdir(builds)).filter((name) => name !== "sources.json");
  const qemu = join(builds, build!, "bin/qemu-system-x86_64");
  const well = await health(server);
  assert.deepEqual([well.status, well.ready, well.creates, well.reasons], [200, true, true, []]);

  await rename(qemu, `${qemu}.away`);
  await waitFor("503 without QEMU", async () => (await health(server)).status === 503);
  const { ready, creates, reasons } = await health(server);
  assert.deepEqual([ready, creates, reasons], [false, false, [`QEMU's program ${qemu} is missing or may not be run`]]);

  await rename(`${qemu}.away`, qemu);
  await waitFor("200 with QEMU", async () => (await health(server)).status === 200);

  await server.kill("SIGTERM");
  server.log.expect(/"the host is short of memory, and no capsule can be paused now"/); // which it finds after a second
  await server.start({ CAPSULE_MEMORY_RESERVE_MB: "16777216" });
  const short = await health(server);
  assert.equal(short.status, 503);
  assert.match(short.reasons.join(), /^the host has no memory left for another capsule/);
});

const disk = new SmallDisk();
const skip = disk.mount() ?? false;

test("on a full disk it is 503 with the reason", { timeout: 600_000, skip }, async () => {
  process.once("exit", () => disk.unmount("--lazy"));
  {
    await using server = await Server.start({ parent: disk.path, env });
    assert.equal((await health(server)).status, 200);
    disk.fill(40 << 20);
    await waitFor("503 on a full disk", async () => (await health(server)).status === 503);
    const { ready, creates, reasons } = await health(server);
    assert.deepEqual([ready, creates], [false, false]);
    assert.match(
      reasons.join(),
      /^the host's disk is full: another capsule needs 16 MiB of disk and only \d+ MiB are free, \d+ MiB of them for pauses$/,
    );
    disk.free();
    await waitFor("200 with free space", async () => (await health(server)).status === 200);
  }
  disk.unmount();
});
