/** Available memory by trees of plain files. */
import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { type MemoryPlaces, memoryLeft, shareAvailable } from "./memory.ts";

const mib = 1 << 20;
/** Reported by version 1 when there is no limit. */
const noLimit = "9223372036854771712";

let folder = "";
let places: MemoryPlaces;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "memory-"));
  places = { meminfo: join(folder, "meminfo"), own: join(folder, "own"), cgroups: join(folder, "cgroup") };
  writeFileSync(places.meminfo, `MemTotal: 16384000 kB\nMemAvailable:    ${8_192 * 1_024} kB\n`);
});
afterEach(() => rmSync(folder, { recursive: true }));

function v2(group: string, max: string | number, usedMb: number, idleMb = 0): void {
  const dir = join(places.cgroups, group);
  mkdirSync(dir, { recursive: true });
  writeFileSync(join(dir, "memory.max"), `${max}\n`);
  writeFileSync(join(dir, "memory.current"), `${usedMb * mib}\n`);
  writeFileSync(join(dir, "memory.stat"), `anon 5\ninactive_file ${idleMb * mib}\nactive_file 7\n`);
}

function v1(group: string, max: string | number, usedMb: number, idleMb = 0): void {
  const dir = join(places.cgroups, "memory", group);
  mkdirSync(dir, { recursive: true });
  writeFileSync(join(dir, "memory.limit_in_bytes"), `${max}\n`);
  writeFileSync(join(dir, "memory.usage_in_bytes"), `${usedMb * mib}\n`);
  writeFileSync(join(dir, "memory.stat"), `inactive_file 1\ntotal_inactive_file ${idleMb * mib}\n`);
}

function leftMb(own: string): number {
  writeFileSync(places.own, own);
  return memoryLeft(places) / mib;
}

test("without control groups, or without a limit in any, the machine's memory counts", () => {
  assert.equal(memoryLeft(places), 8_192 * mib);
  assert.equal(leftMb("0::/user.slice\n"), 8_192);
  v2("user.slice", "max", 100);
  v1("docker/box", noLimit, 100);
  assert.equal(leftMb("4:memory:/docker/box\n0::/user.slice\n"), 8_192);
});

test("version 2: the narrowest group up the tree counts, with its inactive page cache as available", () => {
  v2("a.slice", 2_000 * mib, 1_500, 100);
  v2("a.slice/b.service", 1_000 * mib, 300);
  assert.equal(leftMb("0::/a.slice/b.service\n"), 600);
  v2("a.slice", "max", 1_500);
  assert.equal(leftMb("0::/a.slice/b.service\n"), 700);
  v2("a.slice/größer", 100 * mib, 60);
  assert.equal(leftMb("0::/a.slice/größer\n"), 40, "names are UTF-8");
  v2("a.slice/b.service", 1_000 * mib, 1_001);
  assert.equal(leftMb("0::/a.slice/b.service\n"), 0, "never below nothing");
});

test("version 1: the same, with other controllers in the hierarchy", () => {
  v1("box", 512 * mib, 200, 50);
  v1("box/inner", noLimit, 1);
  assert.equal(leftMb("7:cpu,cpuacct:/x\n4:hugetlb,memory:/box/inner\n0::/\n"), 362);
});

test("a container sees only its own group, under its path outside", () => {
  v2("", 256 * mib, 56);
  assert.equal(leftMb("0::/../../system.slice/docker-1.scope\n"), 200);
  v1("", 128 * mib, 28);
  assert.equal(leftMb("4:memory:/docker/0123\n0::/\n"), 100);
});

test("on this machine some memory is available, and no more than it has", () => {
  const left = memoryLeft();
  assert.ok(left > 0 && left < 2 ** 50, String(left));
});

test("MemAvailable is given as a share of MemTotal, all of it where the kernel does not report memory", () => {
  assert.equal(shareAvailable("MemTotal:  1000 kB\nMemFree:  1 kB\nMemAvailable:  250 kB\n"), 0.25);
  assert.equal(shareAvailable("MemTotal:  1000 kB\n"), 1);
});
