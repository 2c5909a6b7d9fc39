import assert from "node:assert/strict";
import { test } from "node:test";
import { HostMemory, limitedMemory } from "./host-memory.ts";

const mib = 1 << 20;
const roomy = "MemTotal:  1000 kB\nMemAvailable:  500 kB\n";

/** A host with 600 MiB available, and 512 MiB of them reserved. */
function hostWith(files: Record<string, string>, rest: { availableMb?: number; vmRoomBytes?: () => number } = {}) {
  const { availableMb = 600, ...others } = rest;
  const read = (path: string) => {
    const content = files[path];
    if (content === undefined) throw new Error(`${path} is not there`);
    return content;
  };
  return new HostMemory({ reserveBytes: 512 * mib, availableBytes: () => availableMb * mib, read, ...others });
}

test("the reserve is not to be given away, nor what the VMs' control group may not take", () => {
  assert.equal(hostWith({}).spareBytes(), 88 * mib);
  assert.equal(hostWith({}, { availableMb: 500 }).spareBytes(), -12 * mib);
  assert.equal(hostWith({}, { vmRoomBytes: () => -1 }).spareBytes(), -1);
  assert.equal(hostWith({}, { vmRoomBytes: () => 2 ** 40 }).spareBytes(), 88 * mib);
});

test("this machine has memory to spare, but not any amount", () => {
  assert.ok(new HostMemory({ reserveBytes: 0 }).spareBytes() > 0);
  assert.ok(new HostMemory({ reserveBytes: 2 ** 60 }).spareBytes() < 0);
  assert.equal(typeof new HostMemory({ reserveBytes: 0 }).isStalling(), "boolean");
});

test("processes wait for memory from 10 % on, as the kernel measures; without a measurement never", () => {
  const at = (percent: string) =>
    hostWith({ "/proc/pressure/memory": `some avg10=${percent} avg60=0.00 total=1\nfull avg10=99.00\n` }).isStalling();
  assert.deepEqual([at("9.99"), at("10.00"), hostWith({}).isStalling()], [false, true, false]);
});

test("pressure rises below 15 % available and is high below 7 %, and whenever the reserve is touched", () => {
  const at = (meminfo: string, availableMb = 600) => {
    const host = hostWith({ "/proc/meminfo": meminfo }, { availableMb });
    return [host.isRising(), host.isHigh()];
  };
  const available = (share: number) => at(`MemTotal:  1000 kB\nMemAvailable:  ${Math.round(10 * share)} kB\n`);
  assert.deepEqual([15, 14.9, 7, 6.9].map(available), [
    [false, false],
    [true, false],
    [true, false],
    [true, true],
  ]);
  assert.deepEqual(at(roomy, 511), [true, true]);
});

test("all VMs together may take the memory without the reserve, and half of it at least", () => {
  const limits: number[] = [];
  const jail = { limitMemory: (bytes: number) => void limits.push(bytes / mib), memoryRoom: () => -5 };
  assert.equal(limitedMemory(2_001, 0, jail).spareBytes(), -5);
  limitedMemory(2_001, 512, jail);
  limitedMemory(2_001, 1_500, jail);
  assert.deepEqual(limits, [2_001, 1_489, 1_000]);
  assert.ok(limitedMemory(2_001, 0, undefined).spareBytes() > 0);
});
