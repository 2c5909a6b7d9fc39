/** Sizes of disks: grown before the capsule runs, and kept by everything that a capsule goes through. */
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import type { TestCapsule } from "../../client.ts";
import { section, test } from "../conforms.ts";
import { client } from "../service.ts";

/** MiB of the root file system. */
async function sizeOf(capsule: TestCapsule): Promise<number> {
  return Number(await capsule.sh("df --output=size -m / | tail -n 1"));
}

export const disks = section(import.meta, "disks", () => {
  test("a larger disk is there when the capsule runs, and stays over stop, pause and capture", async () => {
    const plain = await client.capsule();
    const { disk_mb: least } = await plain.view();
    const before = await sizeOf(plain);
    assert.ok(before <= least && before > least * 0.8, `${before} of ${least} MiB`);
    const capsule = await client.capsule({ disk_mb: least + 1_536 });
    assert.equal((await capsule.view()).disk_mb, least + 1_536);
    const grown = await sizeOf(capsule);
    assert.ok(grown > before + 1_400, `${grown} MiB, before ${before}`);
    await capsule.sh("echo kept > /root/note && sync");
    await client.expect(200, "POST", `${capsule.path}/stop`);
    await client.expect(200, "POST", `${capsule.path}/start`);
    assert.equal(await sizeOf(capsule), grown);
    await client.expect(200, "POST", `${capsule.path}/pause`);
    await client.expect(200, "POST", `${capsule.path}/resume`);
    assert.equal(await sizeOf(capsule), grown);

    const template = `disks-${randomUUID().slice(0, 8)}`;
    await client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: capsule.id, name: template } });
    const smaller = { template, disk_mb: least };
    const { json: refused } = await client.expect(400, "POST", "/v1/capsules", { json: smaller });
    assert.equal(refused.error.details.field, "disk_mb");
    const twin = await client.capsule({ template });
    assert.equal((await twin.view()).disk_mb, least + 1_536);
    assert.equal(await sizeOf(twin), grown);
    const larger = await client.capsule({ template, disk_mb: least + 2_560 });
    assert.equal(await larger.sh("cat /root/note"), "kept");
    assert.ok((await sizeOf(larger)) > grown + 900);
    for (const each of [plain, twin, larger]) await each.destroy();
    await client.expect(204, "DELETE", `/v1/snapshots/${template}`);
  });

  test("a smaller disk, or one beyond the limit, is 400 and leaves nothing", async () => {
    const { json: limits } = await client.expect(200, "GET", "/v1/limits");
    const name = `disk-${randomUUID().slice(0, 8)}`;
    for (const disk_mb of [1, 0, -5, 1.5, "4096", limits.disk_max_mb + 1]) {
      const { json } = await client.expect(400, "POST", "/v1/capsules", { json: { name, disk_mb } });
      assert.equal(json.error.details.field, "disk_mb", String(disk_mb));
    }
    assert.deepEqual((await client.expect(200, "GET", `/v1/capsules?name=${name}`)).json, []);
  });
});
