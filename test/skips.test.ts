/** The list of skips that .ci/run accepts. */
import assert from "node:assert/strict";
import { globSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { test } from "node:test";

const root = resolve(import.meta.dirname, "..");
const places = ["{src,test,guest/image,bench,web}/**/*.test.ts", "test/{kvm,clients}/*.ts"];
const sources = ["dev", ...globSync(places, { cwd: root })]
  .filter((path) => path !== "test/skips.test.ts" && !path.includes("node_modules"))
  .map((path) => readFileSync(join(root, path), "utf8"));

test("every entry of test/skips.txt names a test or check that exists, with a reason", () => {
  const entries = readFileSync(join(root, "test/skips.txt"), "utf8")
    .split("\n")
    .filter((line) => line !== "" && !line.startsWith("#"));
  assert.ok(entries.length > 0);
  for (const entry of entries) {
    const [title = "", reason = ""] = entry.split(" | ");
    const literal = title.split("*", 1)[0]!;
    assert.ok(literal !== "" && sources.some((source) => source.includes(literal)), `${title} does not exist`);
    assert.ok(reason.length > 5, `${title} has no reason`);
  }
});
