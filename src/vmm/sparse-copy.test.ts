import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { runHelper } from "./oom-score.ts";
import { allocatedBytes, copySparse } from "./sparse-copy.ts";

const mib = 1 << 20;
let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "sparse-copy-"));
});
afterEach(() => rmSync(folder, { recursive: true }));

const path = (name: string) => join(folder, name);

test("a copy has the holes that were punched into a file, and its data, and is its owner's alone", async () => {
  const content = Buffer.alloc(8 * mib, "data");
  writeFileSync(path("from"), content, { mode: 0o644 });
  const punched = ["--punch-hole", "--offset", String(mib), "--length", String(6 * mib)];
  await runHelper("fallocate", [...punched, path("from")]);
  content.fill(0, mib, 7 * mib);
  await copySparse(path("from"), path("to"));
  assert.ok(readFileSync(path("to")).equals(content));
  const [from, to] = [await allocatedBytes(path("from")), await allocatedBytes(path("to"))];
  assert.ok(from < 3 * mib, `${from} bytes are allocated: this file system punches holes`);
  assert.ok(to <= from, `${to} bytes instead of ${from}`);
  assert.equal(statSync(path("to")).mode & 0o777, 0o600);
});

test("a file that is one hole, an empty one, and one without a hole", async () => {
  writeFileSync(path("hole"), "");
  truncateSync(path("hole"), 64 * mib);
  await copySparse(path("hole"), path("hole-copy"));
  assert.deepEqual([statSync(path("hole-copy")).size, await allocatedBytes(path("hole-copy"))], [64 * mib, 0]);
  writeFileSync(path("empty"), "");
  await copySparse(path("empty"), path("empty-copy"));
  assert.equal(statSync(path("empty-copy")).size, 0);
  writeFileSync(path("short"), "text");
  await copySparse(path("short"), path("short-copy"));
  assert.equal(readFileSync(path("short-copy"), "utf8"), "text");
});

test("an existing file is not overwritten, and a missing one is reported", async () => {
  for (const name of ["one", "two"]) writeFileSync(path(name), name);
  await assert.rejects(copySparse(path("one"), path("two")), { code: "EEXIST" });
  assert.equal(readFileSync(path("two"), "utf8"), "two");
  await assert.rejects(copySparse(path("none"), path("copy")), { code: "ENOENT" });
});
