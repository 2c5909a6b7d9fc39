import assert from "node:assert/strict";
import { test } from "node:test";
import { featuresOf, missingFeatures } from "./cpu-features.ts";

test("features are those that QEMU says are on, each by one name, and the vendor", () => {
  const properties = { vendor: "AuthenticAMD", sse2: true, avx512f: false, "lahf-lm": true, lahf_lm: true, level: 28 };
  assert.equal(featuresOf(properties), "lahf-lm sse2 vendor=AuthenticAMD");
  assert.throws(() => featuresOf(undefined), { code: "internal_error" });
});

test("a processor that can do more lacks nothing; another vendor's does", () => {
  assert.deepEqual(missingFeatures("sse sse2 vendor=A", "avx sse sse2 vendor=A"), []);
  assert.deepEqual(missingFeatures("avx sse vendor=A", "sse vendor=B"), ["avx", "vendor=A"]);
});
