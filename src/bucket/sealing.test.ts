import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { test } from "node:test";
import { zstdCompressSync } from "node:zlib";
import { DamagedObject } from "./objects.ts";
import { open, type SealingKey, seal, sealedMax } from "./sealing.ts";

const key: SealingKey = { number: 7, key: randomBytes(32) };
const [name, about] = ["capsules/c/1.1/0", "about it"];
const plain = Buffer.from("contents that are told apart\n".repeat(1_000));

const refusal = async (object: Buffer<ArrayBuffer>, other: Partial<Parameters<typeof open>[1]> = {}, under = key) => {
  const asked = { name, about, object, maxBytes: plain.length, ...other };
  const error = await open(under, asked).then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  assert.ok(error instanceof DamagedObject, String(error));
  assert.equal(error.code, "agent_error");
  return error.message;
};

test("an object is opened by its name and key, tells nothing of its contents, and is never the same twice", async () => {
  const [one, two] = [await seal(key, { name, about, plain }), await seal(key, { name, about, plain })];
  assert.deepEqual(await open(key, { name, about, object: one, maxBytes: plain.length }), plain);
  assert.ok(!one.includes("contents") && !one.equals(two));
  assert.deepEqual([one[0], one.readUInt32BE(1)], [1, 7]);
  assert.ok(one.length < plain.length / 10);
});

test("contents that cannot be compressed fit the bound of a sealed object", async () => {
  for (const bytes of [0, 1, 100_000, 4 << 20]) {
    const noise = Buffer.from(randomBytes(bytes));
    const object = await seal(key, { name, about, plain: noise });
    assert.ok(object.length <= sealedMax(bytes), `${bytes} became ${object.length}`);
    assert.deepEqual(await open(key, { name, about, object, maxBytes: bytes }), noise);
  }
});

test("an object in another's place, of another key, format or number, or with any byte changed is refused", async () => {
  const object = await seal(key, { name, about, plain });
  const isOther = /is not what was written there/;
  assert.match(await refusal(object, { name: "capsules/c/1.1/1" }), isOther);
  assert.match(await refusal(object, { about: "about another" }), isOther);
  assert.match(await refusal(object, {}, { number: 7, key: randomBytes(32) }), isOther);
  assert.match(
    await refusal(object, {}, { ...key, number: 8 }),
    /sealed under key 7, and the cluster's file has key 8/,
  );
  assert.match(
    await refusal(Buffer.concat([Buffer.from([2]), object.subarray(1)])),
    /has format 2, and this program reads 1/,
  );
  for (const at of [5, 16, 17, object.length - 1]) {
    const changed = Buffer.from(object);
    changed[at]! ^= 1;
    assert.match(await refusal(changed), isOther);
  }
  assert.match(await refusal(object.subarray(0, object.length - 1)), isOther);
  assert.match(await refusal(object.subarray(0, 32)), /has 32 bytes, which is too few/);
  assert.match(await refusal(Buffer.alloc(0)), /has 0 bytes, which is too few/);
});

test("an object that was sealed under the right key inflates no further than its length", async () => {
  const bomb = await seal(key, { name, about, plain: Buffer.alloc(256 << 20) });
  assert.ok(bomb.length < 64 * 1024);
  assert.match(await refusal(bomb), new RegExp(`decompresses to more than ${plain.length} bytes`));
  const longer = await seal(key, { name, about, plain: Buffer.concat([plain, Buffer.alloc(1)]) });
  assert.match(await refusal(longer), /decompresses to more than/);
});

test("what is sealed and no frame of zstd, or one with a window of 2 GiB, is refused", async () => {
  const sealed = await seal(key, { name, about, plain });
  assert.ok(sealed.length > 0);
  const frame = zstdCompressSync(Buffer.from("x"));
  assert.equal(frame.readUInt32LE(0), 0xfd2fb528);
  const sealedFrame = async (bytes: Buffer<ArrayBuffer>) => {
    const { hkdfSync } = await import("node:crypto");
    const derived = hkdfSync("sha256", key.key, "", `capsule object ${name}`, 32);
    const made = await crypto.subtle.importKey("raw", derived, "AES-GCM", false, ["encrypt"]);
    const iv = randomBytes(12);
    const cipher = { name: "AES-GCM", iv, additionalData: Buffer.from(about), tagLength: 128 };
    const head = Buffer.from([1, 0, 0, 0, 7]);
    return Buffer.concat([head, iv, new Uint8Array(await crypto.subtle.encrypt(cipher, made, bytes))]);
  };
  assert.match(await refusal(await sealedFrame(Buffer.from("no frame at all"))), /cannot be decompressed/);
  // Magic, no single segment, window descriptor of 2^31, one empty last block.
  const wide = Buffer.from([0x28, 0xb5, 0x2f, 0xfd, 0x00, 21 << 3, 0x01, 0x00, 0x00]);
  assert.match(await refusal(await sealedFrame(wide)), /cannot be decompressed/);
});
