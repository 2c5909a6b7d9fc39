import assert from "node:assert/strict";
import { readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { inNewDataFolder } from "../test/data-folder.ts";
import { SecretKey, secretKeyName } from "./secret.ts";

const text = '{"TOKEN":"s3cr3t"}';

test("a folder's key is made once, for this user only, and opens what it has sealed", async () => {
  await inNewDataFolder(async (dataDir) => {
    const sealed = SecretKey.ofFolder(dataDir).seal("a", text);
    const path = join(dataDir, secretKeyName);
    assert.equal(statSync(path).mode & 0o777, 0o600);
    assert.match(readFileSync(path, "utf8"), /^[0-9a-f]{64}\n$/);
    assert.equal(Buffer.from(sealed).includes("s3cr3t"), false);
    assert.equal(SecretKey.ofFolder(dataDir).open("a", sealed), text);
    rmSync(path);
    assert.equal(SecretKey.ofFolder(dataDir).open("a", sealed), undefined, "under another key");
  });
});

test("a damaged key stops the start, with what to do, and stays as it is", async () => {
  await inNewDataFolder(async (dataDir) => {
    const path = join(dataDir, secretKeyName);
    for (const damaged of ["", "0".repeat(63), `${"0".repeat(64)}0`, "x".repeat(64)]) {
      writeFileSync(path, damaged);
      assert.throws(() => SecretKey.ofFolder(dataDir), /secret\.key is damaged: bring it back from a backup/);
      assert.equal(readFileSync(path, "utf8"), damaged);
    }
  });
});

test("what was changed, cut or moved to another place does not open", () => {
  const key = new SecretKey(Buffer.alloc(32, 1));
  const sealed = key.seal("a", text);
  assert.equal(key.open("b", sealed), undefined);
  for (let length = 0; length < sealed.length; length++)
    assert.equal(key.open("a", sealed.subarray(0, length)), undefined);
  for (let at = 0; at < sealed.length; at++) {
    const changed = Uint8Array.from(sealed);
    changed[at]! ^= 1;
    assert.equal(key.open("a", changed), undefined, `byte ${at}`);
  }
  assert.notDeepEqual(key.seal("a", text), sealed, "each sealing has a nonce of its own");
});

test("a fingerprint depends on text and key", () => {
  const [one, other] = [new SecretKey(Buffer.alloc(32, 1)), new SecretKey(Buffer.alloc(32, 2))];
  assert.equal(one.fingerprint("a"), one.fingerprint("a"));
  assert.equal(new Set([one.fingerprint("a"), one.fingerprint("b"), other.fingerprint("a")]).size, 3);
});
