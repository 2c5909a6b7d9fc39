import assert from "node:assert/strict";
import { test } from "node:test";
import { ago, count, cpus, duration, memory, size } from "./format.ts";
import { breadcrumbs, join, textOf } from "./guest-files.ts";

test("sizes are in the largest fitting unit", () => {
  assert.deepEqual([0, 1, 1023, 1024, 1536, 10_485_760, 2 ** 41].map(size), [
    "0 B",
    "1 B",
    "1023 B",
    "1 KiB",
    "1.5 KiB",
    "10 MiB",
    "2 TiB",
  ]);
  assert.equal(memory(512), "512 MiB");
  assert.equal(cpus(1), "1 vCPU");
  assert.equal(count(1_234, "entry", "entries"), "1,234 entries");
});

test("times are in the largest whole unit", () => {
  assert.deepEqual([30, 60, 90, 3_600, 86_400].map(duration), ["30 s", "1 minute", "90 s", "1 hour", "1 day"]);
  const now = Date.UTC(2026, 5, 1);
  assert.deepEqual(
    [0, 59, 60, 7_200, -7_200].map((seconds) => ago(now - seconds * 1_000, now)),
    ["just now", "just now", "1 minute ago", "2 hours ago", "in 2 hours"],
  );
  assert.equal(ago(now - 300_000, now, true), "5 min. ago");
});

test("paths are joined, and split into breadcrumbs", () => {
  assert.deepEqual([join("/", "a"), join("/a", "b"), join("/a", "/c")], ["/a", "/a/b", "/c"]);
  assert.deepEqual(
    breadcrumbs("/root/a b").map(({ path }) => path),
    ["/", "/root", "/root/a b"],
  );
});

test("text is recognized, also when its last character is incomplete", () => {
  const bytes = new TextEncoder().encode("größe €");
  assert.equal(textOf(bytes), "größe €");
  assert.equal(textOf(bytes.subarray(0, -1)), "größe ");
  assert.equal(textOf(Uint8Array.of(0xff, 0x41)), undefined);
  assert.equal(textOf(Uint8Array.of(0x41, 0, 0x42)), undefined);
});
