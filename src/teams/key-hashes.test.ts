import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { KeyHashes } from "./key-hashes.ts";

const nextTurn = () => new Promise((done) => setImmediate(done));
const sha256 = (text: string) => createHash("sha256").update(text).digest("hex");

test("the hash of a key is its SHA-256, however often and beside whatever it comes", () => {
  const hashes = new KeyHashes();
  for (let round = 0; round < 3; round++) {
    for (const key of ["", "one", "two", "é"]) assert.equal(hashes.of(key), sha256(key));
  }
});

test("no key's text outlives its turn", async () => {
  const hashes = new KeyHashes();
  for (let turn = 0; turn < 3; turn++) {
    for (const key of ["one", "two", "one"]) hashes.of(key);
    assert.equal(hashes.size, 2);
    await nextTurn();
    assert.equal(hashes.size, 0);
  }
});

test("keys without number in one turn take no memory without bound", () => {
  const hashes = new KeyHashes();
  for (let key = 0; key < 1_500; key++) assert.equal(hashes.of(String(key)), sha256(String(key)));
  assert.equal(hashes.size, 1_000);
});
