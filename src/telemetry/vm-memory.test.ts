import assert from "node:assert/strict";
import { test } from "node:test";
import { VmMemorySampler } from "./vm-memory.ts";

const self = { pid: process.pid, startTicks: 1 };

test("memory is that of the processes found, shared pages shared out in PSS", async () => {
  const { vms, rssBytes, pssBytes } = await new VmMemorySampler(async () => [self]).sample();
  assert.equal(vms, 1);
  assert.ok(rssBytes > 1 << 20, `${rssBytes}`);
  assert.ok(pssBytes > 1 << 20 && pssBytes <= rssBytes, `${pssBytes} of ${rssBytes}`);
});

test("a process that is gone counts for nothing, and the next look forgets it", async () => {
  let now = 0;
  let found = [self, { pid: 2 ** 22 + 1, startTicks: 1 }];
  const sampler = new VmMemorySampler(
    async () => found,
    () => now,
  );
  const both = await sampler.sample();
  assert.equal(both.vms, 2);
  assert.ok(both.pssBytes > 0);
  now = 1_000;
  found = [];
  assert.deepEqual(await sampler.sample(), { vms: 0, rssBytes: 0, pssBytes: 0 });
});

test("however often it is asked, it looks once in a second", async () => {
  let now = 0;
  let looks = 0;
  const find = async () => {
    looks += 1;
    return [];
  };
  const sampler = new VmMemorySampler(find, () => now);
  await Promise.all([sampler.sample(), sampler.sample()]);
  now = 999;
  await sampler.sample();
  assert.equal(looks, 1);
  now = 1_000;
  await sampler.sample();
  assert.equal(looks, 2);
});
