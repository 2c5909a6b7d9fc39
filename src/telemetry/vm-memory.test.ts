import assert from "node:assert/strict";
import { test } from "node:test";
import { VmMemorySampler } from "./vm-memory.ts";

const self = { pid: process.pid, startTicks: 1 };

test("memory is that of the found processes; PSS divides shared pages", async () => {
  const { vms, rssBytes, pssBytes } = await new VmMemorySampler(async () => [self]).sample();
  assert.equal(vms, 1);
  assert.ok(rssBytes > 1 << 20, `${rssBytes}`);
  assert.ok(pssBytes > 1 << 20 && pssBytes <= rssBytes, `${pssBytes} of ${rssBytes}`);
});

test("an ended process counts 0, and the next sample drops it", async () => {
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

test("processes are sampled at most once a second", async () => {
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
