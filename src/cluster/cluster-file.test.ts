import assert from "node:assert/strict";
import { chmodSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { newClusterFile, readClusterFile, requireSafeUrl, writeClusterFile } from "./cluster-file.ts";

const folder = mkdtempSync(join(tmpdir(), "capsule-cluster-file-"));
after(() => rmSync(folder, { recursive: true }));
const bucket = { url: "https://s3.example.org/b", accessKeyId: "AK/id+1", secretAccessKey: "s/+=" };
const url = "postgres://capsule:secret@localhost/capsule";

test("a cluster file is read as it was written, for its owner alone, and replaces none", () => {
  const path = join(folder, "written.json");
  const file = newClusterFile(url, Buffer.alloc(32, 7));
  writeClusterFile(path, file);
  assert.equal(statSync(path).mode & 0o777, 0o600);
  assert.deepEqual(readClusterFile(path), file);
  assert.throws(() => writeClusterFile(path, file), /EEXIST/);
  const other = join(folder, "with-bucket.json");
  const withBucket = newClusterFile(url, Buffer.alloc(32, 7), bucket);
  writeClusterFile(other, withBucket);
  assert.deepEqual(readClusterFile(other), withBucket);
  assert.deepEqual([withBucket.bucket?.sealing.number, withBucket.bucket?.sealing.key.length], [1, 32]);
});

test("each damage of a cluster file is refused in one sentence that says what to do", () => {
  const path = join(folder, "damaged.json");
  const file = newClusterFile(url, Buffer.alloc(32, 7), bucket);
  writeClusterFile(path, file);
  const good = JSON.parse(readFileSync(path, "utf8")) as Record<string, unknown>;
  const withBucket = (more: object) => ({ ...good, bucket: { ...(good.bucket as object), ...more } });
  const refusal = (text: string) => {
    writeFileSync(path, text);
    try {
      readClusterFile(path);
    } catch (error) {
      return (error as Error).message;
    }
    return "read";
  };
  const damaged: [Record<string, unknown> | string, RegExp][] = [
    ["", /is no JSON: copy it/],
    ["[]", /is no JSON object: copy it/],
    [{ ...good, more: 1 }, /has the unknown field "more": copy it/],
    [{ ...good, format: 2 }, /has format 2, and this program reads up to 1: upgrade it/],
    [{ ...good, format: undefined }, /has no format/],
    [{ ...good, cluster: "x" }, /has no id of a cluster/],
    [{ ...good, postgres: 5 }, /has no URL of PostgreSQL/],
    [{ ...good, postgres: "http://localhost" }, /has no URL of PostgreSQL, such as/],
    [{ ...good, secret: "00" }, /has no secret of 64 hex digits/],
    [{ ...good, values_key: undefined }, /has no values_key of 64 hex digits/],
    [{ ...good, bucket: [] }, /has no object as its bucket: copy it/],
    [withBucket({ more: 1 }), /has the unknown field "bucket.more": copy it/],
    [withBucket({ url: undefined }), /has no URL of its bucket: copy it/],
    [withBucket({ url: "http://s3.example.org/b" }), /has a URL of a bucket without https: use it/],
    [withBucket({ access_key_id: "" }), /has no access_key_id/],
    [withBucket({ access_key_id: "a\r\nb" }), /has no access_key_id/],
    [withBucket({ secret_access_key: 5 }), /has no secret_access_key/],
    [withBucket({ sealing_key: "00" }), /has no sealing_key of 64 hex digits/],
    [withBucket({ sealing_key_number: 0 }), /has no sealing_key_number/],
    [withBucket({ sealing_key_number: 2 ** 32 }), /has no sealing_key_number/],
    ["x".repeat(70_000), /too large/],
  ];
  for (const [value, pattern] of damaged) {
    const message = refusal(typeof value === "string" ? value : JSON.stringify(value));
    assert.match(message, pattern);
    assert.ok(message.startsWith(path) && !message.includes("\n"), message);
  }
  writeFileSync(path, JSON.stringify(good));
  chmodSync(path, 0o640);
  assert.throws(() => readClusterFile(path), /can be read by others: chmod 600/);
  assert.throws(() => readClusterFile(join(folder, "none")), /cannot be read \(ENOENT\): copy it/);
});

test("a database beyond this machine is reached with a verified certificate only", () => {
  for (const safe of [
    url,
    "postgres://u@127.0.0.1/d",
    "postgres://u@[::1]/d",
    "postgresql://u@x/d?host=/run/postgresql",
  ])
    requireSafeUrl(safe, "F");
  requireSafeUrl("postgres://u:p@db.example.org/d?sslmode=verify-full", "F");
  assert.throws(
    () => requireSafeUrl("postgres://u:p@db.example.org/d?sslmode=require", "F"),
    /^Error: F has a URL .* sslmode=verify-full: add it/,
  );
  assert.throws(() => requireSafeUrl("postgres://u:p@db.example.org/d", "F"), /db.example.org is another machine/);
});
