import assert from "node:assert/strict";
import { test } from "node:test";
import { requireBucketUrl } from "./access.ts";

test("a bucket beyond this machine is reached with a verified certificate only", () => {
  for (const safe of [
    "https://s3.example.org/capsules",
    "https://s3.example.org:9000/capsules/one/",
    "https://s3.example.org/capsules?region=eu-central-1",
    "http://localhost:7480/b",
    "http://127.3.4.5:7480/b",
    "http://[::1]:7480/b",
  ])
    requireBucketUrl(safe, "F");
  assert.throws(
    () => requireBucketUrl("http://s3.example.org/b", "F"),
    /^Error: F has a URL of a bucket without https: use it/,
  );
});

test("a URL that is none of a bucket, or has a key in it, is refused with what to write", () => {
  for (const wrong of [
    "",
    "s3://bucket",
    "https://s3.example.org",
    "https://s3.example.org/",
    "https://s3.example.org//b",
    "https://s3.example.org/%2e%2e",
    "https://s3.example.org/b?x=1",
    "https://s3.example.org/b?region=A/B",
    "https://s3.example.org/b#x",
  ])
    assert.throws(() => requireBucketUrl(wrong, "F"), /^Error: F has no URL of a bucket, such as https:/, wrong);
  assert.throws(
    () => requireBucketUrl("https://k:s@s3.example.org/b", "F"),
    /has a URL of a bucket with a key in it: leave it out/,
  );
});
