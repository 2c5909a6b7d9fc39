/**
 * A guest that uses all its resources, beside another: the other's commands and files stay exact, and the first one's
 * use of the machine stays within its limits. Then guests that together use more than there is. `./dev bench neighbours`
 * measures the other's speed.
 */
import assert from "node:assert/strict";
import { lstatSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import type { TestCapsule } from "../client.ts";
import { fileForm } from "../conformance/requests.ts";
import { World } from "../faults/world.ts";
import { waitFor } from "../wait-for.ts";
import { pauseTheGreediest } from "./memory-pressure.ts";

const memoryMb = 256;
/** QEMU's own memory, with translated code. */
const overheadMb = 400;
/** Disk of the built-in image, with qcow2's tables. */
const diskMaxBytes = 4.4 * 2 ** 30;
const serverGrowthBytes = 128 << 20;

let world: World;
let bystander: TestCapsule;
before(async () => {
  world = await World.start();
  bystander = await world.client.capsule({ memory_mb: memoryMb });
});
after(() => world[Symbol.asyncDispose]());

/** Each noise, and a check from outside or inside the guest that it has reached its full effect. */
const noises: Record<string, { script: string; isAtItsWorst?: (capsule: TestCapsule) => Promise<boolean> }> = {
  "floods output": { script: "exec yes" },
  "fills its disk": {
    script:
      "dd if=/dev/zero of=/root/a bs=1M count=100; for size in 1G 100M 10M 1M 64K 4K; do " +
      "while fallocate -l $size /root/b-$((n++)); do :; done; done; while :; do echo x >> /root/c; done",
    isAtItsWorst: async (capsule) => {
      const { stdout } = await capsule.run("sh", ["-c", "echo x > /root/one-more && cat /root/one-more"]);
      return stdout === "";
    },
  },
  "forks bombs": { script: "bomb() { bomb | bomb & }; bomb; exec sleep 1000" },
  "eats memory": {
    script: "while :; do tail /dev/zero; done",
    isAtItsWorst: async ({ id }) => residentBytes(world.vmPid(id)) > (memoryMb * 0.75) << 20,
  },
  spins: { script: "for i in 1 2 3 4; do (while :; do :; done) & done; wait" },
};

describe("a guest that", { timeout: 600_000 }, () => {
  for (const [name, { script, isAtItsWorst }] of Object.entries(noises)) {
    test(`${name} does not affect others`, async () => {
      await using capsule = await world.client.capsule({ memory_mb: memoryMb });
      const before = residentBytes(world.server.pid);
      const over = new AbortController();
      const noise = capsule.exec({ cmd: "bash", args: ["-c", script], timeout: 0 }, { signal: over.signal });
      const ended = noise.then(
        ({ text }) => text,
        (error: Error) => error.name,
      );
      if (isAtItsWorst) await waitFor(`it ${name}`, () => isAtItsWorst(capsule), { deadlineMs: 240_000 });
      await assertUnharmed(name);
      assert.ok(residentBytes(world.vmPid(capsule.id)) < (memoryMb + overheadMb) << 20, "the VM's memory");
      assert.ok(bytesBelow(join(world.server.dataDir, "capsules", capsule.id)) < diskMaxBytes, "the VM's disk");
      assert.ok(residentBytes(world.server.pid) - before < serverGrowthBytes, "the server's memory");
      over.abort();
      assert.equal(await ended, "AbortError", "the noise was over before");
      await capsule.destroy();
      assert.equal(world.vmPid(capsule.id), undefined);
    });
  }
});

/** Checks that commands and files of the other are exact. */
async function assertUnharmed(name: string): Promise<void> {
  for (let round = 0; round < 5; round++) {
    assert.equal(await bystander.sh(`echo '${name}' ${round}`), `${name} ${round}`);
    const content = Buffer.alloc(100_000, `${name}${round}`);
    const path = `/root/${round}`;
    await world.client.expect(204, "POST", `${bystander.path}/files/write`, { form: fileForm(path, content) });
    const read = await world.client.expect(200, "POST", `${bystander.path}/files/read`, { json: { path } });
    assert.ok(read.bytes.equals(content), `${path} came back as something else`);
  }
}

function residentBytes(pid: number | undefined): number {
  const kib = /^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1];
  return Number(kib) * 1024;
}

/** A listed file may be removed before it is read. */
function bytesBelow(folder: string): number {
  const found = readdirSync(folder).map((name) => lstatSync(join(folder, name), { throwIfNoEntry: false }));
  return found.reduce((sum, stats) => sum + (stats?.blocks ?? 0) * 512, 0);
}

test("in the end rows, VMs and folders are consistent, and nothing is left", async () => {
  await world.assertConsistent();
  await world.assertNoResidue();
});

test(
  "of guests that together exceed the machine, those of the team that takes most are paused",
  { timeout: 600_000 },
  () => pauseTheGreediest(),
);
