/** Which device the limit is set on. Real guests are throttled in test/faults/disk-quota.test.ts. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Qmp } from "./qmp.ts";
import { limitWrites } from "./write-limit.ts";

function monitorOf(blocks: unknown) {
  const limits: unknown[] = [];
  const command = async (name: string, options: unknown) => {
    if (name === "query-block") return blocks;
    limits.push([name, options]);
    return {};
  };
  return { qmp: { command } as unknown as Qmp, limits };
}

const path = "/machine/peripheral-anon/device[2]/virtio-backend";

test("the guest's disk is found by its node, and its writes alone are limited", async () => {
  const other = { qdev: "/machine/other", inserted: { "node-name": "else" } };
  const empty = { qdev: "/machine/empty" };
  const { qmp, limits } = monitorOf([empty, other, { qdev: path, inserted: { "node-name": "disk" } }]);
  await limitWrites(qmp, 4_096);
  const unlimited = { bps: 0, bps_rd: 0, iops: 0, iops_rd: 0, iops_wr: 0 };
  assert.deepEqual(limits, [["block_set_io_throttle", { id: path, bps_wr: 4_096, ...unlimited }]]);
});

test("an answer that names no disk is an error, and sets no limit", async () => {
  for (const blocks of [[], null, "disk", [null, 1, { qdev: 1, inserted: { "node-name": "disk" } }]]) {
    const { qmp, limits } = monitorOf(blocks);
    await assert.rejects(limitWrites(qmp, 0), /names no disk/);
    assert.deepEqual(limits, []);
  }
});
