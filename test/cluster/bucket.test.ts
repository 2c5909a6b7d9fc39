/** Uploads and fetches over a bucket of Ceph, what a bucket may do to them, and what is in it. */
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import type { BucketAccess } from "../../src/bucket/access.ts";
import type { Retries } from "../../src/bucket/bucket.ts";
import { type DownloadOptions, download } from "../../src/bucket/download.ts";
import { BucketError, DamagedObject } from "../../src/bucket/objects.ts";
import { openBucket } from "../../src/bucket/opening.ts";
import { type SealedBucket, sha256Of } from "../../src/bucket/sealed-bucket.ts";
import { seal } from "../../src/bucket/sealing.ts";
import { requireUsable, tryBucket } from "../../src/bucket/trial.ts";
import { type UploadFile, upload } from "../../src/bucket/upload.ts";
import { hashPieces } from "../../src/vmm/memory/piece-hashes.ts";
import { CapsuleError } from "../../src/wire/errors.ts";
import { SmallDisk } from "../small-disk.ts";
import { waitFor } from "../wait-for.ts";
import { BucketLink } from "./bucket-link.ts";
import { type CephBucket, CephServer, lacksCeph } from "./ceph-server.ts";

const mib = 1 << 20;
const sealing = { number: 3, key: randomBytes(32) };
const layers = [
  { kind: "image", key: "minimal/0123abcd", sha256: "0".repeat(64) },
  { kind: "base", key: "minimal-1-256", sha256: null },
];
const mark = "a line of a guest's memory\n";
/** Long enough for any machine where nothing is disturbed; short where something is. */
const patient: Partial<Retries> = { pauseMs: 1, attemptMs: 120_000 };

describe("a bucket", { skip: lacksCeph }, () => {
  const folder = mkdtempSync(join(tmpdir(), "capsule-bucket-"));
  let server: CephServer;
  let names = 0;
  const fresh = (what: string) => join(folder, `${what}-${++names}`);
  before(async () => {
    server = await CephServer.startIn(join(folder, "ceph"));
  });
  after(async () => {
    await server.remove();
    rmSync(folder, { recursive: true });
  });

  const opened = (bucket: CephBucket, more: Partial<BucketAccess> = {}, retries = patient) =>
    openBucket({ ...bucket, sealing, ...more }, retries);
  const namesIn = async (sealed: SealedBucket, prefix = "") => {
    const found: string[] = [];
    for await (const name of sealed.bucket.list(prefix)) found.push(name);
    return found;
  };

  /** A memory of 13 MiB: text, a hole, noise between zeros, a piece of written zeros, and a tail. */
  function makeFiles(): UploadFile[] {
    const source = fresh("source");
    mkdirSync(source);
    const at = (name: string, make: (path: string) => void): UploadFile => {
      const path = join(source, name.replace("/", "-"));
      make(path);
      return { name, path };
    };
    return [
      at("manifest.json", (path) => writeFileSync(path, '{"format":2}\n')),
      at("checkpoint/memory.diff", (path) => {
        writeFileSync(path, Buffer.alloc(2 * mib, mark));
        const file = openSync(path, "r+");
        writeSync(file, randomBytes(100), 0, 100, 5 * mib + 3);
        writeSync(file, Buffer.alloc(4 * mib), 0, 4 * mib, 8 * mib);
        writeSync(file, Buffer.from("tail"), 0, 4, 13 * mib - 4);
      }),
      at("empty", (path) => writeFileSync(path, "")),
      at("zeros", (path) => {
        writeFileSync(path, "");
        truncateSync(path, 64 * mib + 1);
      }),
      { ...at("disk.qcow2", (path) => writeFileSync(path, randomBytes(4 * mib))), isExecutable: true },
    ];
  }

  async function uploaded(sealed: SealedBucket, prefix = "capsules/cap-1/1.7") {
    const files = makeFiles();
    const record = await upload(sealed, { prefix, layers, files });
    return { files, record, prefix };
  }

  const downloading = (record: DownloadOptions["manifest"], more: Partial<DownloadOptions> = {}): DownloadOptions => ({
    ...{ manifest: record, work: fresh("work"), target: fresh("target"), bytesMax: 1024 * mib },
    ...more,
  });

  /** Neither folder of a fetch that failed is there. */
  async function failure(sealed: SealedBucket, options: DownloadOptions): Promise<Error> {
    const error = await download(sealed, options).then(
      () => undefined,
      (thrown: unknown) => thrown,
    );
    assert.ok(error instanceof Error, "it has not failed");
    assert.ok(!existsSync(options.work) && !existsSync(options.target), "a folder of it is left");
    return error;
  }

  test("what was uploaded is fetched byte for byte, zeros are neither stored nor written, and nothing is readable", async () => {
    const bucket = await server.newBucket();
    const sealed = await opened(bucket);
    const files = makeFiles();
    const known = await hashPieces(files[1]!.path);
    files[1]!.sha256 = known.sha256;
    const record = await upload(sealed, { prefix: "capsules/cap-1/1.7", layers, files });
    const stored = await namesIn(sealed);
    // The memory has two pieces with bytes, one of zeros, and the tail.
    const expected = [0, 1, 2, 4, 22].map((each) => `capsules/cap-1/1.7/${each}`);
    assert.deepEqual(stored, [...expected, "capsules/cap-1/1.7/manifest"].sort());
    let bytes = 0;
    for (const name of stored) {
      const object = await sealed.bucket.get(name, { maxBytes: 16 * mib });
      bytes += object.length;
      assert.ok(!object.includes("guest") && !object.includes("manifest.json"), name);
    }
    assert.equal(record.bytes, bytes);

    let finished: string | undefined;
    const options = downloading(record, {
      finish: async (work) => {
        finished = readdirSync(work).sort().join();
      },
    });
    const manifest = await download(sealed, options);
    assert.equal(finished, "checkpoint,disk.qcow2,empty,manifest.json,zeros");
    assert.deepEqual(manifest.layers, layers);
    assert.ok(!existsSync(options.work));
    for (const { name, path } of files) {
      const found = join(options.target, name);
      assert.ok(readFileSync(found).equals(readFileSync(path)), name);
      assert.equal(statSync(found).mode & 0o777, name === "disk.qcow2" ? 0o700 : 0o600, name);
    }
    const onDisk = (name: string) => statSync(join(options.target, name)).blocks * 512;
    assert.equal(onDisk("zeros"), 0);
    assert.ok(onDisk("checkpoint/memory.diff") < 2.5 * mib, `${onDisk("checkpoint/memory.diff")} bytes`);
    assert.equal(statSync(options.target).mode & 0o777, 0o700);
  });

  test("a list of more than a page has every name once", async () => {
    const sealed = await opened(await server.newBucket());
    const all = Array.from({ length: 1_003 }, (_, index) => `many/${String(index).padStart(4, "0")}`);
    for (let from = 0; from < all.length; from += 50)
      await Promise.all(all.slice(from, from + 50).map((name) => sealed.bucket.put(name, Buffer.from("x"))));
    await sealed.bucket.put("manyother", Buffer.from("x"));
    assert.deepEqual(await namesIn(sealed, "many/"), all);
    await sealed.bucket.delete(all[0]!);
    await sealed.bucket.delete(all[0]!); // is no error
    assert.equal((await namesIn(sealed, "many/")).length, all.length - 1);
  });

  test("a byte that differs from a checkpoint's hashes ends its upload, and the bucket is empty again", async () => {
    const sealed = await opened(await server.newBucket());
    const files = makeFiles();
    const { sha256 } = await hashPieces(files[1]!.path);
    files[1]!.sha256 = sha256.with(3, sha256[0]!);
    await assert.rejects(
      upload(sealed, { prefix: "p", layers, files }),
      /memory.diff has other bytes from 12582912 on/,
    );
    files[1]!.sha256 = sha256.slice(1);
    await assert.rejects(upload(sealed, { prefix: "p", layers, files }), /13631488 bytes, and hashes of 3 chunks/);
    await assert.rejects(
      upload(sealed, { prefix: "p", layers, files: [{ name: "../x", path: "/x" }] }),
      /the name of a file/,
    );
    assert.deepEqual(await namesIn(sealed), []);
  });

  test("objects that were exchanged, cut, replaced or made huge are refused, and leave nothing behind", async () => {
    const sealed = await opened(await server.newBucket());
    const { record, prefix } = await uploaded(sealed);
    const read = (name: string) => sealed.bucket.get(`${prefix}/${name}`, { maxBytes: 16 * mib });
    const [first, disk, manifest] = [await read("1"), await read("22"), await read("manifest")];
    const other = { number: sealing.number, key: randomBytes(32) };
    const about = { name: `${prefix}/1`, about: "chunk", plain: Buffer.from("x") };
    const hostile: [string, string, Buffer<ArrayBuffer>, RegExp][] = [
      ["exchanged", "1", disk, /is not what was written there/],
      ["cut", "1", first.subarray(0, first.length - 1), /is not what was written there/],
      ["emptied", "1", Buffer.alloc(0), /has 0 bytes, which is too few/],
      ["huge", "1", Buffer.alloc(5 * mib), /has more than \d+ bytes/],
      ["of another key", "1", await seal(other, about), /is not what was written there/],
      [
        "of another key's number",
        "1",
        await seal({ ...other, number: 9 }, about),
        /sealed under key 9, and .* has key 3/,
      ],
      ["of another format", "1", Buffer.concat([Buffer.from([9]), first.subarray(1)]), /has format 9/],
      ["a manifest that was cut", "manifest", manifest.subarray(1), /its SHA-256 is another/],
      ["a manifest that is huge", "manifest", Buffer.alloc(16 * mib + 1), /has more than 16777216 bytes/],
      ["a chunk as the manifest", "manifest", first, /its SHA-256 is another/],
    ];
    for (const [what, name, bytes, pattern] of hostile) {
      const kept = await read(name);
      await sealed.bucket.put(`${prefix}/${name}`, bytes);
      const error = await failure(sealed, downloading(record));
      assert.ok(error instanceof DamagedObject && error.code === "agent_error", `${what}: ${error}`);
      assert.match(error.message, pattern, what);
      await sealed.bucket.put(`${prefix}/${name}`, kept);
    }
    await sealed.bucket.delete(`${prefix}/22`);
    const missing = await failure(sealed, downloading(record));
    assert.ok(missing instanceof BucketError && missing.isMissing && missing.code === "unavailable", String(missing));
    await sealed.bucket.put(`${prefix}/22`, disk);
    await download(sealed, downloading(record));
  });

  test("who has the sealing key is believed no sizes, names or lengths either", async () => {
    const sealed = await opened(await server.newBucket());
    const store = async (name: string, plain: Buffer<ArrayBuffer>) => {
      const object = await seal(sealing, { name, about: "manifest", plain });
      await sealed.bucket.put(name, object);
      return { object: name, sha256: await sha256Of(object) };
    };
    const manifest = (...files: object[]) => Buffer.from(JSON.stringify({ format: 1, layers: [], files }));
    const refused: [Buffer<ArrayBuffer>, RegExp][] = [
      [manifest({ name: "../../escaped", bytes: 0, chunks: [] }), /cannot be the name of a file/],
      [manifest({ name: "/tmp/escaped", bytes: 0, chunks: [] }), /cannot be the name of a file/],
      [manifest({ name: "a", bytes: 0, chunks: [] }, { name: "a", bytes: 0, chunks: [] }), /two files a/],
      [manifest({ name: "a", bytes: 2 ** 40, chunks: [] }), /more than 1073741824 bytes together/],
      [manifest({ name: "a", bytes: 5 * mib, chunks: [null] }), /has not the chunks of/],
      [Buffer.alloc(200 * mib, " "), /decompresses to more than 16777216 bytes/],
    ];
    for (const [index, [plain, pattern]] of refused.entries()) {
      const error = await failure(sealed, downloading(await store(`m/${index}`, plain)));
      assert.ok(error instanceof DamagedObject, String(error));
      assert.match(error.message, pattern);
    }
    // A chunk whose contents go on, and one that is shorter than its length.
    const zeros = Buffer.alloc(8 * mib);
    for (const [name, plain, pattern] of [
      ["bomb", zeros, /decompresses to more than 5 bytes/],
      ["short", Buffer.from("four"), /has 4 bytes, not 5/],
      ["wrong", Buffer.from("wrong"), /its SHA-256 is another/],
    ] as const) {
      const sha256 = await sha256Of(Buffer.from("right"));
      const about = `chunk\n${name}\n5\n${sha256}`;
      await sealed.bucket.put(name, await seal(sealing, { name, about, plain }));
      const record = await store(`m/${name}`, manifest({ name: "a", bytes: 5, chunks: [[name, sha256]] }));
      const error = await failure(sealed, downloading(record));
      assert.ok(error instanceof DamagedObject, String(error));
      assert.match(error.message, pattern);
    }
  });

  test("a busy, cut or damaging way costs repetitions, and nothing else", async () => {
    const { link, bucket } = await BucketLink.to(await server.newBucket());
    await using _ = link;
    const sealed = await opened(bucket);
    const seen = new Map<string, number>();
    const firstTime = (asked: { method: string; name: string }) => {
      const key = `${asked.method} ${asked.name}`;
      seen.set(key, (seen.get(key) ?? 0) + 1);
      return seen.get(key) === 1;
    };
    link.rule = (asked) => {
      if (!firstTime(asked)) return undefined;
      if (asked.method === "GET") return asked.name.endsWith("/1") ? { cutAfter: 100 } : { status: 500 };
      if (asked.name.endsWith("/1")) return { cutAfter: 0 };
      // Content-MD5 tells the bucket that these are not the bytes that were sent.
      if (asked.name.endsWith("/2")) return { change: (body) => Buffer.concat([body.subarray(1), Buffer.from([0])]) };
      return { status: 503 };
    };
    const { record, files } = await uploaded(sealed);
    const options = downloading(record);
    await download(sealed, options);
    for (const { name, path } of files) assert.ok(readFileSync(join(options.target, name)).equals(readFileSync(path)));
    assert.equal([...seen.values()].filter((times) => times > 1).length, 12, "each request was sent again");
  });

  test("an object that is not seen yet is asked for again while it is new, and an older one is missing", async () => {
    const { link, bucket } = await BucketLink.to(await server.newBucket());
    await using _ = link;
    const sealed = await opened(bucket);
    const { record } = await uploaded(sealed);
    const unseen = { status: 404, body: "<Error><Code>NoSuchKey</Code></Error>" };
    let left = 3;
    link.rule = ({ method, name }) => (method === "GET" && name.endsWith("/4") && left-- > 0 ? unseen : undefined);
    const old = await failure(sealed, downloading(record, { writtenAt: Date.now() - 60_001 }));
    assert.ok(old instanceof BucketError && old.isMissing);
    left = 3;
    // A clock that is an hour behind the writer's.
    await download(sealed, downloading(record, { writtenAt: Date.now() + 3_600_000 }));
    assert.ok(left <= 0);
    link.rule = () => ({ status: 404, body: "<Error><Code>NoSuchBucket</Code></Error>" });
    const gone = await failure(sealed, downloading(record, { writtenAt: Date.now() + 3_600_000 }));
    assert.match(gone.message, /NoSuchBucket/);
  });

  test("a bucket that is away, does not answer or refuses ends an upload with its reason, and without a manifest", async () => {
    const { link, bucket } = await BucketLink.to(await server.newBucket());
    await using _ = link;
    const few = { attempts: 2, pauseMs: 1 };
    const attempt = async (retries: Partial<Retries>, rule: BucketLink["rule"]) => {
      link.asked.length = 0;
      link.rule = rule;
      const sealed = await opened(bucket, {}, retries);
      const error = await upload(sealed, { prefix: "p", layers, files: makeFiles() }).then(
        () => undefined,
        (thrown: unknown) => thrown,
      );
      assert.ok(error instanceof BucketError && error.code === "unavailable", String(error));
      assert.ok(!link.asked.some(({ method, name }) => method === "PUT" && name.endsWith("manifest")));
      link.rule = () => undefined;
      return {
        message: error.message,
        left: await namesIn(await opened(bucket)),
        asked: link.asked.map(({ method }) => method),
      };
    };
    const away = await attempt(few, () => ({ status: 500 }));
    assert.match(away.message, /^the bucket bucket-\d+ at 127.0.0.1:\d+ has refused a request \(HTTP status 500\)$/);
    // The hold begins behind the first chunk's PUT: the removal is answered.
    const held = await attempt({ attempts: 1, attemptMs: 8_000 }, ({ method }) =>
      method === "PUT" ? { isHeld: true } : undefined,
    );
    assert.match(held.message, /has not answered within 8 s$/);
    assert.deepEqual(held.left, []);
    const denied = "<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>";
    const refused = await attempt(few, ({ method, name }) => {
      return method === "PUT" && name.endsWith("/4") ? { status: 403, body: denied } : undefined;
    });
    assert.match(refused.message, /\(HTTP status 403, AccessDenied\)$/);
    assert.deepEqual(refused.left, []);
    const moved = await attempt(few, () => ({ status: 307, headers: { location: "http://127.0.0.1:1/" } }));
    assert.match(moved.message, /HTTP status 307/);
  });

  test("an answer without an end is left where its bound is reached", async () => {
    const { link, bucket } = await BucketLink.to(await server.newBucket());
    await using _ = link;
    const sealed = await opened(bucket);
    const { record } = await uploaded(sealed);
    link.rule = ({ name }) => (name.endsWith("/manifest") ? undefined : { isEndless: true });
    assert.match((await failure(sealed, downloading(record))).message, /has more than \d+ bytes/);
    link.rule = () => ({ isEndless: true });
    assert.match((await failure(sealed, downloading(record))).message, /has more than 16777216 bytes/);
    await assert.rejects(namesIn(sealed), /has more than 2097152 bytes/);
    link.rule = () => ({ status: 200, body: "<html>" });
    await assert.rejects(namesIn(sealed), /it is no list/);
    const names = Array.from({ length: 1_001 }, () => "<Key>p</Key>").join("");
    link.rule = () => ({ status: 200, body: `<ListBucketResult>${names}</ListBucketResult>` });
    await assert.rejects(namesIn(sealed), /more than 1000 names/);
    link.rule = () => ({ status: 200, body: "<ListBucketResult><Key>other</Key></ListBucketResult>" });
    await assert.rejects(namesIn(sealed, "p/"), /was not asked for/);
    const same = "<ListBucketResult><IsTruncated>true</IsTruncated><Key>p/1</Key></ListBucketResult>";
    link.rule = () => ({ status: 200, body: same });
    await assert.rejects(namesIn(sealed, "p/"), /a list without an end/);
  });

  test("an upload and a fetch that are aborted end with the reason, and nothing of them is left", async () => {
    const { link, bucket } = await BucketLink.to(await server.newBucket());
    await using _ = link;
    const sealed = await opened(bucket);
    const reason = new Error("a resume came first");
    /** `isReached`: nothing else is under way then, which could arrive after its removal. */
    const whileHeld = async (
      method: string,
      begin: (signal: AbortSignal) => Promise<unknown>,
      isReached: () => Promise<boolean> = async () => true,
    ) => {
      const stop = new AbortController();
      link.rule = (asked) => (asked.method === method && asked.name.endsWith("/22") ? { isHeld: true } : undefined);
      link.asked.length = 0;
      const ended = begin(stop.signal).then(
        () => undefined,
        (thrown: unknown) => thrown,
      );
      const isHeld = () => link.asked.some((asked) => asked.method === method && asked.name.endsWith("/22"));
      await waitFor("the request that is held", async () => isHeld() && (await isReached()));
      stop.abort(reason);
      assert.equal(await ended, reason);
      link.rule = () => undefined;
    };
    await whileHeld(
      "PUT",
      (signal) => upload(sealed, { prefix: "p", layers, files: makeFiles(), signal }),
      async () => (await namesIn(sealed)).length === 4,
    );
    assert.deepEqual(await namesIn(sealed), []);
    const { record } = await uploaded(sealed);
    const options = downloading(record);
    await whileHeld("GET", (signal) => download(sealed, { ...options, signal }));
    assert.ok(!existsSync(options.work) && !existsSync(options.target));
    await download(sealed, options);
    const again = await download(sealed, { ...options, work: fresh("work") }).then(
      () => undefined,
      (thrown: unknown) => thrown as NodeJS.ErrnoException,
    );
    assert.match(again?.code ?? "", /^(ENOTEMPTY|EEXIST)$/, "a folder that is there is not replaced");
  });

  test("a full disk ends a fetch with 507, and the room that it took is free again", async (t) => {
    const disk = new SmallDisk(16);
    const problem = disk.mount();
    if (problem !== undefined) return t.skip(problem);
    try {
      const sealed = await opened(await server.newBucket());
      const { record } = await uploaded(sealed);
      disk.fill(3 * mib);
      const options = downloading(record, { work: join(disk.path, "work"), target: join(disk.path, "target") });
      const error = await failure(sealed, options);
      assert.ok(error instanceof CapsuleError && error.code === "no_space", String(error));
      assert.match(error.message, /the disk is full/);
      disk.free();
      await download(sealed, options);
    } finally {
      disk.unmount();
    }
  });

  test("a trial leaves nothing behind, and says in one sentence what is wrong with a bucket", async () => {
    const { link, bucket } = await BucketLink.to(await server.newBucket());
    await using _ = link;
    const sealed = await opened(bucket);
    await tryBucket(sealed);
    assert.deepEqual(await namesIn(sealed), []);
    const sentence = async (more: Partial<BucketAccess>, rule: BucketLink["rule"] = () => undefined) => {
      link.rule = rule;
      const error = await tryBucket(await opened(bucket, more, { attempts: 2, pauseMs: 1 })).then(
        () => undefined,
        (thrown: unknown) => thrown as Error,
      );
      link.rule = () => undefined;
      const said = error?.message ?? "";
      assert.ok(!said.includes("\n") && !said.includes(bucket.secretAccessKey), said);
      return said.replace(/^the bucket \S+ at \S+ cannot be used, since /, "");
    };
    const refused = (code: string) => ({ status: 403, body: `<Error><Code>${code}</Code></Error>` });
    const cases: [Partial<BucketAccess>, BucketLink["rule"] | undefined, string][] = [
      [
        { accessKeyId: "other" },
        undefined,
        "writing an object failed: it does not know the access key id (InvalidAccessKeyId)",
      ],
      [
        { secretAccessKey: "other" },
        undefined,
        "writing an object failed: it has another secret for the access key id (SignatureDoesNotMatch)",
      ],
      [
        { url: `${bucket.url}x` },
        undefined,
        "writing an object failed: make a bucket of this name, or check the URL (NoSuchBucket)",
      ],
      [
        {},
        ({ method }) => (method === "DELETE" ? refused("AccessDenied") : undefined),
        "deleting an object failed: let its key put, get, delete and list objects (AccessDenied)",
      ],
      [{}, ({ name }) => (name.startsWith("list-type") ? { status: 501 } : undefined), "listing objects failed: "],
      [{}, ({ method }) => (method === "GET" ? { status: 200, body: "x" } : undefined), "reading an object failed: "],
    ];
    for (const [more, rule, expected] of cases) {
      const said = await sentence(more, rule);
      assert.ok(said.startsWith(expected), said);
    }
    for (const [more, rule, expected] of [
      [
        { secretAccessKey: "other" },
        undefined,
        /the bucket .* cannot be used, since listing objects failed: it has another secret/,
      ],
      [{ url: `${bucket.url}x` }, undefined, /make a bucket of this name/],
      [{}, () => refused("AccessDenied"), /let its key put, get, delete and list objects/],
      [{}, () => ({ status: 500 }), undefined],
      [{ url: "http://127.0.0.1:1/nothing" }, undefined, undefined],
    ] as [Partial<BucketAccess>, BucketLink["rule"] | undefined, RegExp | undefined][]) {
      link.rule = rule ?? (() => undefined);
      const asked = requireUsable(await opened(bucket, more, { attempts: 1 }));
      await (expected === undefined ? asked : assert.rejects(asked, expected));
      link.rule = () => undefined;
    }
    for (const name of await namesIn(sealed)) await sealed.bucket.delete(name);
    await sentence({}, ({ method }) => (method === "GET" ? { status: 500 } : undefined));
    assert.deepEqual(await namesIn(sealed), [], "a trial that failed has removed its object");
  });
});
