/** Folders of one host in the bucket and on another host: over a real PostgreSQL and a bucket of Ceph. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { openBucket } from "../../src/bucket/opening.ts";
import type { SealedBucket } from "../../src/bucket/sealed-bucket.ts";
import { type ArtifactFolders, type ArtifactKind, Artifacts } from "../../src/cluster/artifacts.ts";
import { CatalogRows } from "../../src/db/catalog-rows.ts";
import { openDatabase } from "../../src/db/database.ts";
import { TemplateRows } from "../../src/db/template-rows.ts";
import { emptyOverlay } from "../../src/vmm/qcow2.ts";
import { CapsuleError } from "../../src/wire/errors.ts";
import { capsuleRow } from "../fakes/capsule-row.ts";
import { BucketLink } from "./bucket-link.ts";
import { type CephBucket, CephServer, lacksCeph } from "./ceph-server.ts";
import { DataFolder, imageKey } from "./data-folders.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, type ClusterDatabase, clusterDatabase, creating } from "./statements.ts";

const skip = lacksPostgres || lacksCeph;
const sealing = { number: 1, key: randomBytes(32) };
const patient = { pauseMs: 1, attemptMs: 120_000, unseenMs: 0 };
const team = "team-blue";

interface HostOfTest extends Disposable {
  data: DataFolder;
  artifacts: Artifacts;
  rows: TemplateRows;
  /** Templates' folders that are held. */
  held: string[];
}

describe("folders in the bucket", { skip }, () => {
  const folder = mkdtempSync(join(tmpdir(), "capsule-artifacts-"));
  let ceph: CephServer;
  let postgres: PostgresServer;
  before(async () => {
    execFileSync("chmod", ["755", folder]); // PostgreSQL has a user of its own
    [ceph, postgres] = await Promise.all([
      CephServer.startIn(join(folder, "ceph")),
      PostgresServer.startIn(join(folder, "postgres")),
    ]);
  });
  after(async () => {
    await Promise.all([ceph.remove(), postgres.stop()]);
    rmSync(folder, { recursive: true });
  });

  function hostOn(
    database: ClusterDatabase,
    bucket: SealedBucket,
    changed: (data: DataFolder) => Partial<ArtifactFolders> = () => ({}),
  ): HostOfTest {
    const data = new DataFolder();
    const own = openDatabase(":memory:");
    new CatalogRows(own).put([{ id: team, name: "blue", createdAt: 1 }], [], { expired: 0, revoked: 0 });
    const rows = new TemplateRows(own);
    const held: string[] = [];
    const hold = (storage: string) => {
      held.push(storage);
      return { [Symbol.dispose]: () => void held.splice(held.indexOf(storage), 1) };
    };
    const { folders: real } = data;
    const folders: ArtifactFolders = {
      hold: (...of) => real.hold(...of),
      find: (...of) => real.find(...of),
      place: (...of) => real.place(...of),
      check: (...of) => real.check(...of),
      published: (...of) => real.published(...of),
      requireUsable: (...of) => real.requireUsable(...of),
      ...changed(data),
    };
    const artifacts = new Artifacts({ sql: database.sql, bucket, rows, clock: { now: () => 1 } });
    artifacts.begin({ folders, hold });
    return { data, artifacts, rows, held, [Symbol.dispose]: () => data[Symbol.dispose]() };
  }

  /** Two hosts, the first one with an image, a QEMU build and a template on them. */
  async function twoHosts(bucket?: CephBucket) {
    const stack = new AsyncDisposableStack();
    const database = stack.use(await clusterDatabase(postgres));
    const place = bucket ?? (await ceph.newBucket());
    const sealed = await openBucket({ ...place, sealing }, patient);
    const a = stack.use(hostOn(database, sealed));
    const b = stack.use(hostOn(database, sealed));
    a.data.addImage();
    const build = await a.data.addBuild();
    const storage = await a.data.addCheckpoint("template", { build });
    return { database, sealed, a, b, build, storage, [Symbol.asyncDispose]: () => stack.disposeAsync() };
  }

  const capture = (database: ClusterDatabase, storage: string, name = "tools") =>
    database.sql.query(
      `INSERT INTO templates (storage, team_id, name, vcpus, memory_mb, disk_mb, can_grow, size_bytes, created_at, made_on, version, catalog)
       VALUES ($1, $2, $3, 1, 512, 64, 1, 1000, 5, 'a', 1, 1)`,
      [storage, team, name],
      about,
    );
  const named = async ({ sql }: ClusterDatabase) => {
    const rows = await sql.query<{ kind: string; key: string; prefix: string }>(
      "SELECT kind, key, prefix FROM artifacts ORDER BY kind, key",
      [],
      about,
    );
    return rows.map(({ kind, key, prefix }) => ({ kind, key, prefix }));
  };
  const garbage = async ({ sql }: ClusterDatabase) => {
    const rows = await sql.query<{ prefix: string }>("SELECT prefix FROM garbage ORDER BY prefix", [], about);
    return rows.map(({ prefix }) => prefix);
  };
  const objects = async (sealed: SealedBucket) => {
    const found: string[] = [];
    for await (const name of sealed.bucket.list("")) found.push(name);
    return found;
  };
  /** The fetch rejects with this, and nothing of it is there. */
  async function refused({ data, artifacts, rows, held }: HostOfTest, kind: ArtifactKind, key: string) {
    const error = await artifacts.fetch(kind, key).then(
      () => undefined,
      (thrown: unknown) => thrown,
    );
    assert.ok(error instanceof CapsuleError, `${kind} ${key}: ${String(error)}`);
    assert.ok(!existsSync(data.folder(kind, key)), "it was published");
    assert.ok(data.isTidy, "something of it is left");
    assert.deepEqual([rows.all(), held], [[], []]);
    return error;
  }

  test("a template comes with its image and QEMU build, once, byte for byte, and is a row of the other host", async () => {
    await using cluster = await twoHosts();
    const { database, sealed, a, b, build, storage } = cluster;
    const layer = await a.artifacts.offer("template", storage);
    assert.deepEqual([layer.kind, layer.key, layer.sha256?.length], ["template", storage, 64]);
    await capture(database, storage);
    const rows = await named(database);
    assert.deepEqual(
      rows.map(({ kind, key }) => [kind, key]),
      [
        ["image", imageKey],
        ["qemu", build],
        ["template", storage],
      ],
    );
    assert.deepEqual(await garbage(database), []);
    const stored = await objects(sealed);
    for (const name of stored)
      assert.ok(
        rows.some(({ prefix }) => name.startsWith(`${prefix}/`)),
        name,
      );
    await a.artifacts.offer("template", storage);
    assert.deepEqual(await objects(sealed), stored, "it was there");

    const [first, second] = await Promise.all([
      b.artifacts.fetch("template", storage),
      b.artifacts.fetch("template", storage),
    ]);
    assert.deepEqual(b.held, [storage, storage]);
    for (const each of [first, second]) each[Symbol.dispose]();
    assert.deepEqual([b.held, b.data.taken, b.data.isTidy], [[], [build], true]);
    for (const [kind, key] of [
      ["image", imageKey],
      ["qemu", build],
      ["template", storage],
    ] as const)
      assert.deepEqual(b.data.tree(kind, key), a.data.tree(kind, key), kind);
    const mode = (kind: ArtifactKind, key: string, name = "") =>
      statSync(join(b.data.folder(kind, key), name)).mode & 0o777;
    const program = "bin/qemu-system-x86_64";
    assert.deepEqual(
      [mode("qemu", build), mode("qemu", build, "bin"), mode("qemu", build, program)],
      [0o755, 0o755, 0o755],
    );
    assert.equal(mode("qemu", build, "share/qemu/QEMU,VGA.bin"), 0o644);
    assert.match(execFileSync(join(b.data.folder("qemu", build), program), { encoding: "utf8" }), /version 10.0.2/);
    assert.deepEqual([mode("template", storage), mode("template", storage, "memory")], [0o700, 0o600]);
    assert.equal(mode("image", imageKey, "root.ext4"), 0o444);
    assert.ok(statSync(join(b.data.folder("image", imageKey), "root.ext4")).blocks * 512 < 1 << 20, "its hole is one");
    const [row] = b.rows.all();
    assert.deepEqual(
      [row?.storage, row?.teamId, row?.name, row?.diskMb, row?.retiredAt],
      [storage, team, "tools", 64, null],
    );
    assert.ok(b.rows.isNoted(storage));
    const { statements } = database.sql;
    (await b.artifacts.fetch("template", storage))[Symbol.dispose]();
    assert.equal(database.sql.statements, statements, "it is there");
  });

  test("of two hosts that offer one folder, one upload counts, and the other's is garbage", async () => {
    await using cluster = await twoHosts();
    const { database, sealed, a, b } = cluster;
    b.data.addImage();
    await Promise.all([a.artifacts.offer("image", imageKey), a.artifacts.offer("image", imageKey)]);
    assert.deepEqual(await garbage(database), [], "one host uploads it once");
    await database.sql.query("DELETE FROM artifacts", [], about);
    const note = async (host: HostOfTest, prefix: string) => {
      await database.sql.call("begin_upload", [prefix], about);
      await database.sql.call("note_artifact", ["image", imageKey, prefix, "0".repeat(64), 1], about);
      return host;
    };
    await Promise.all([note(a, "image/x/a"), note(b, "image/x/b")]);
    const [winner] = await named(database);
    assert.deepEqual([winner!.prefix, ...(await garbage(database))].sort(), ["image/x/a", "image/x/b"]);
    await note(a, winner!.prefix); // its answer was lost
    assert.deepEqual(await named(database), [winner]);
    assert.ok((await objects(sealed)).length > 0);
  });

  test("a folder of other bytes under a key of the bucket's is not offered, also where both were uploaded at once", async () => {
    await using cluster = await twoHosts();
    const { database, sealed, a, b, build, storage } = cluster;
    b.data.addImage("another build of the same inputs");
    await b.data.addBuild();
    const other = await b.data.addCheckpoint("template", { build });
    const refusal = { code: "conflict", message: `the bucket's image ${imageKey} has other bytes than this host's` };
    await a.artifacts.offer("template", storage);
    const [rows, stored] = [await named(database), await objects(sealed)];
    for (const offered of [b.artifacts.offer("image", imageKey), b.artifacts.offer("template", other)])
      await assert.rejects(offered, refusal);
    assert.deepEqual([await named(database), await objects(sealed)], [rows, stored]);

    await database.sql.query("UPDATE artifacts SET sha256 = NULL WHERE kind = 'image'", [], about);
    await b.artifacts.offer("image", imageKey); // it is not known which bytes it has
    await database.sql.query("DELETE FROM artifacts WHERE kind = 'image'", [], about);
    const { sql } = database;
    const call = async <T>(...of: Parameters<typeof sql.call>) => {
      if (of[0] === "note_artifact") await a.artifacts.offer("image", imageKey); // which is whole just before
      return await sql.call<T>(...of);
    };
    const slow = { call, query: (...of: Parameters<typeof sql.query>) => sql.query(...of) } as typeof sql;
    const late = new Artifacts({ sql: slow, bucket: sealed, rows: b.rows, clock: { now: () => 1 } });
    late.begin({ folders: b.data.folders, hold: () => ({ [Symbol.dispose]() {} }) });
    await assert.rejects(late.offer("image", imageKey), refusal);
    using c = hostOn(database, sealed);
    (await c.artifacts.fetch("image", imageKey))[Symbol.dispose]();
    assert.deepEqual(c.data.tree("image", imageKey), a.data.tree("image", imageKey));
  });

  test("an upload that is cut off is garbage, and one of yesterday is not believed", async () => {
    const { link, bucket } = await BucketLink.to(await ceph.newBucket());
    await using _ = link;
    await using cluster = await twoHosts(bucket);
    const { database, a, b, storage } = cluster;
    link.rule = ({ method, name }) => (method === "PUT" && name.endsWith("/manifest") ? { status: 403 } : undefined);
    await assert.rejects(a.artifacts.offer("template", storage), { code: "unavailable" });
    assert.equal((await garbage(database)).length, 1, "of the image, which comes first");
    assert.deepEqual(await named(database), []);
    assert.equal((await refused(b, "template", storage)).code, "unavailable");
    link.rule = () => undefined;
    await database.sql.query("INSERT INTO garbage (prefix, at) VALUES ('qemu/old', now_ms() - 86400000)", [], about);
    const late = database.sql.call("note_artifact", ["qemu", "old", "qemu/old", "0".repeat(64), 1], about);
    await assert.rejects(late, { code: "unavailable", message: /has taken too long/ });
    await a.artifacts.offer("template", storage);
    assert.equal((await named(database)).length, 3);
  });

  test("an upload that nobody waits for ends; a fetch goes on, and the next one finds it", async () => {
    const { link, bucket } = await BucketLink.to(await ceph.newBucket());
    await using _ = link;
    await using cluster = await twoHosts(bucket);
    const { database, a, b } = cluster;
    const { promise: reached, resolve } = Promise.withResolvers<void>();
    link.rule = ({ method }) => {
      if (method === "PUT") resolve();
      return method === "PUT" ? { isHeld: true } : undefined;
    };
    const leaving = new AbortController();
    const offer = a.artifacts.offer("image", imageKey, leaving.signal);
    await reached;
    leaving.abort(new Error("the capture has ended"));
    await assert.rejects(offer, /the capture has ended/);
    link.rule = () => undefined;
    await a.artifacts.offer("image", imageKey);
    assert.equal((await garbage(database)).length, 1);
    const { promise: asked, resolve: onAsked } = Promise.withResolvers<void>();
    const { promise: mayGoOn, resolve: goOn } = Promise.withResolvers<void>();
    const slow = hostOn(database, await openBucket({ ...bucket, sealing }, patient), (data) => ({
      place: async (...of) => {
        onAsked();
        await mayGoOn;
        return await data.folders.place(...of);
      },
    }));
    using _slow = slow;
    const client = new AbortController();
    const fetch = slow.artifacts.fetch("image", imageKey, client.signal);
    await asked;
    client.abort(new Error("the client has left"));
    await assert.rejects(fetch, /the client has left/);
    goOn();
    await slow.artifacts.fetch("image", imageKey);
    assert.deepEqual(slow.data.tree("image", imageKey), a.data.tree("image", imageKey));
    await Promise.all([a, b, slow].map(({ artifacts }) => artifacts.close()));
    await assert.rejects(a.artifacts.offer("image", imageKey), { code: "unavailable" });
  });

  test("what the bucket's owner has changed is refused, and nothing is published", async () => {
    await using cluster = await twoHosts();
    const { database, sealed, a, b, build, storage } = cluster;
    await a.artifacts.offer("template", storage);
    await capture(database, storage);
    const rows = await named(database);
    const prefixOf = (kind: string) => rows.find((row) => row.kind === kind)!.prefix;
    const read = (name: string) => sealed.bucket.get(name, { maxBytes: 1 << 24 });
    const swap = async (name: string, bytes: Buffer<ArrayBuffer>, kind: ArtifactKind, key: string) => {
      const kept = await read(name);
      await sealed.bucket.put(name, bytes);
      assert.equal((await refused(b, kind, key)).code, "agent_error", name);
      await sealed.bucket.put(name, kept);
    };
    const flipped = (bytes: Buffer<ArrayBuffer>) => {
      const copy = Buffer.from(bytes);
      copy[copy.length - 1]! ^= 1;
      return copy;
    };
    const all = await objects(sealed);
    for (const [kind, key] of [
      ["image", imageKey],
      ["qemu", build],
    ] as const) {
      const names = all.filter((name) => name.startsWith(prefixOf(kind)));
      for (const name of [names[0]!, names.at(-1)!]) await swap(name, flipped(await read(name)), kind, key);
    }
    for (const [kind, key] of [
      ["image", imageKey],
      ["qemu", build],
    ] as const)
      (await b.artifacts.fetch(kind, key))[Symbol.dispose]();
    const template = all.filter((name) => name.startsWith(prefixOf("template")));
    for (const name of template) await swap(name, flipped(await read(name)), "template", storage);
    await swap(template[0]!, await read(template[1]!), "template", storage);
    await sealed.bucket.delete(template[0]!);
    assert.equal((await refused(b, "template", storage)).code, "unavailable");
  });

  test("what another host has sealed is refused unless it is what a host would have made", async () => {
    type Files = { name: string; path: string }[];
    type Change = (files: Files) => object;
    await using cluster = await twoHosts();
    const { database, a, b, build } = cluster;
    b.data.addImage();
    const spare = (text: string | Buffer) => {
      const path = join(a.data.paths.work, randomBytes(4).toString("hex"));
      writeFileSync(path, text);
      return path;
    };
    const replaced = (name: string, text: string | Buffer) => (files: Files) => {
      return { files: files.map((file) => (file.name === name ? { ...file, path: spare(text) } : file)) };
    };
    const base = await a.data.addCheckpoint("base");
    const read = (kind: ArtifactKind, key: string, name: string) => readFileSync(join(a.data.folder(kind, key), name));
    const overlay = (backingFile: string) => emptyOverlay({ sizeBytes: 64 << 20, backingFile, backingFormat: "raw" });
    const ofBase = JSON.parse(read("base", base, "manifest.json").toString());
    const withDisk = (disk: Buffer) => (files: Files) => {
      const sha256 = execFileSync("sha256sum", { input: disk, encoding: "utf8" }).slice(0, 64);
      const record = { bytes: disk.length, sha256 };
      const manifest = JSON.stringify({
        ...ofBase,
        kind: "template",
        files: { ...ofBase.files, "disk.qcow2": record },
      });
      return replaced("manifest.json", manifest)(replaced("disk.qcow2", disk)(files).files);
    };
    const hostile: [ArtifactKind, string, Change, RegExp][] = [
      [
        "qemu",
        build,
        (files) => ({ files: [...files, { name: "lib/libc.so.6", path: spare("evil") }] }),
        /lib\/libc.so.6, which does not belong/,
      ],
      ["qemu", build, replaced("bin/qemu-system-x86_64", "evil"), /other bytes than its manifest says/],
      ["qemu", build, (files) => ({ files: files.slice(0, -1) }), /it has no file/],
      ["qemu", "0".repeat(64), (files) => ({ files }), /that of another build/],
      ["base", base, replaced("memory", Buffer.alloc(16 << 20, 1)), /differs from its checksum/],
      ["base", `${base.slice(0, -8)}00000000`, (files) => ({ files }), /that of another base/],
      [
        "base",
        base,
        (files) => ({ files: [...files, { name: "vm.json", path: spare("{}") }] }),
        /vm.json, which does not/,
      ],
      ["template", "t01", (files) => ({ files }), /that of a base/],
      ["template", "t02", withDisk(overlay("/etc/shadow")), /backing file is "\/etc\/shadow"/],
      ["template", "t03", replaced("manifest.json", Buffer.alloc(9 << 20, " ")), /manifest.json has 9437184 bytes/],
      ["template", "t04", (files) => ({ files, layers: [{ kind: "base", key: base }] }), /stands on a base/],
    ];
    for (const [kind, key, how, pattern] of hostile) {
      const { folders } = a.data;
      const found = await (kind === "qemu" ? folders.find("qemu", build) : folders.find("base", base));
      using forged = hostOn(database, cluster.sealed, () => ({
        find: async (asked, askedKey) => {
          if (askedKey !== key) return await folders.find(asked, askedKey);
          const files = found!.files.map(({ sha256: _, ...file }) => file);
          return { ...found!, ...how(files) };
        },
      }));
      await database.sql.query("DELETE FROM artifacts WHERE key = $1", [key], about);
      await forged.artifacts.offer(kind, key);
      const error = await refused(b, kind, key);
      assert.equal(error.code, "agent_error", `${kind} ${key}`);
      assert.match(error.message, pattern);
    }
    // An image of the same inputs with another root disk than the base stands on.
    rmSync(b.data.folder("image", imageKey), { recursive: true });
    b.data.addImage("another root disk");
    await database.sql.query("DELETE FROM artifacts WHERE key = $1", [base], about);
    await a.artifacts.offer("base", base);
    const other = await refused(b, "base", base);
    assert.deepEqual([other.code, /another image/.test(other.message)], ["agent_error", true]);
  });

  test("a template's folder is garbage when the template is retired and no capsule stands on it", async () => {
    await using cluster = await twoHosts();
    const { database, a } = cluster;
    const { sql } = database;
    const made = async (key: string, name: string) => {
      await sql.call("begin_upload", [`template/${key}`], about);
      await sql.call("note_artifact", ["template", key, `template/${key}`, "0".repeat(64), 1], about);
      await capture(database, key, name);
    };
    const keys = async () => (await named(database)).map(({ key }) => key);
    await made("t1", "one");
    await sql.call("create_capsule", creating("a", capsuleRow("cl-1", { storage: "t1", template: "one" })), about);
    await sql.call("create_capsule", creating("b", capsuleRow("cl-2", { storage: "t1", template: "one" })), about);
    await sql.call("retire_template", ["t1", 9], about);
    await sql.call("delete_capsule", ["cl-1", 1, "a"], about);
    assert.deepEqual([await keys(), await garbage(database)], [["t1"], []], "the other capsule stands on it");
    await sql.call("delete_capsule", ["cl-2", 1, "b"], about);
    assert.deepEqual([await keys(), await garbage(database)], [[], ["template/t1"]]);
    const again = sql.call("note_artifact", ["template", "t1", "template/t1", "0".repeat(64), 1], about);
    await assert.rejects(again, { code: "not_found", message: /template one is gone/ });

    await made("t2", "two");
    await sql.call("create_capsule", creating("a", capsuleRow("cl-3")), about);
    const columns = { storage: "t3", team_id: team, name: "two", vcpus: 1, memory_mb: 1, disk_mb: 1, can_grow: 1 };
    const template = JSON.stringify({ ...columns, size_bytes: 1, created_at: 7 });
    await sql.call("begin_upload", ["template/t3"], about);
    await sql.call("note_artifact", ["template", "t3", "template/t3", "0".repeat(64), 1], about);
    await sql.call("capture_capsule", ["cl-3", 1, "a", 1, template, true, null], about);
    assert.deepEqual(
      [await keys(), await garbage(database)],
      [["t3"], ["template/t1", "template/t2"]],
      "it was replaced",
    );
    await a.artifacts.withdraw("t3");
    assert.deepEqual(await keys(), ["t3"], "it has a name");

    // Captures that failed or were cut off.
    for (const key of ["t4", "t5", "t6"]) {
      await sql.call("begin_upload", [`template/${key}`], about);
      await sql.call("note_artifact", ["template", key, `template/${key}`, "0".repeat(64), 1], about);
    }
    await a.artifacts.withdraw("t4");
    await sql.query("UPDATE artifacts SET created_at = created_at - 8 * 86400000 WHERE key IN ('t3', 't5')", [], about);
    await sql.call("forget_artifacts", [], about);
    assert.deepEqual(await keys(), ["t3", "t6"]);
    assert.deepEqual(
      await garbage(database),
      ["t1", "t2", "t4", "t5"].map((key) => `template/${key}`),
    );
  });

  test("a template that was replaced meanwhile is a retired row, and this host's newer one stays", async () => {
    await using cluster = await twoHosts();
    const { database, a, b, storage } = cluster;
    await a.artifacts.offer("template", storage);
    await capture(database, storage);
    const row = {
      teamId: team,
      name: "tools",
      vcpus: 1,
      memoryMb: 1,
      diskMb: 1,
      canGrow: 1,
      sizeBytes: 1,
      createdAt: 1,
    };
    // An older one, which this host has not heard of that it was replaced.
    await database.sql.query("UPDATE templates SET retired_at = 4 WHERE storage = $1", [storage], about);
    await capture(database, "t9");
    await database.sql.query("UPDATE templates SET retired_at = 6 WHERE storage = 't9'", [], about);
    await database.sql.query("UPDATE templates SET retired_at = NULL WHERE storage = $1", [storage], about);
    b.rows.insert({ ...row, storage: "t9" });
    await a.artifacts.offer("template", storage); // its folder was dropped with the name
    (await b.artifacts.fetch("template", storage))[Symbol.dispose]();
    assert.deepEqual(
      b.rows.all().map((each) => [each.storage, each.retiredAt]),
      [
        ["t9", 6],
        [storage, null],
      ],
    );
    assert.equal(b.rows.named(team, "tools")?.storage, storage);

    using c = hostOn(database, cluster.sealed);
    await database.sql.call("create_capsule", creating("a", capsuleRow("cl-1", { storage, template: "tools" })), about);
    await database.sql.query("UPDATE templates SET retired_at = 8 WHERE storage = $1", [storage], about);
    await capture(database, "t10");
    c.rows.insert({ ...row, storage: "t10" });
    (await c.artifacts.fetch("template", storage))[Symbol.dispose]();
    assert.deepEqual(
      c.rows.all().map((each) => [each.storage, each.retiredAt]),
      [
        ["t10", null],
        [storage, 8],
      ],
    );
  });

  test("a full disk refuses a fetch before it begins", async () => {
    await using cluster = await twoHosts();
    const { database, sealed, a } = cluster;
    await a.artifacts.offer("image", imageKey);
    const full = new CapsuleError("no_space", "fetching needs 1 MiB of disk");
    let asked = 0;
    using b = hostOn(database, sealed, () => ({
      place: async (_kind, _key, bytes) => {
        asked = bytes;
        throw full;
      },
    }));
    assert.equal(await refused(b, "image", imageKey), full);
    assert.ok(
      asked > 4 << 20 && asked < 5 << 20,
      `${asked} bytes: the chunk of the root disk that is no hole, and the small files`,
    );
  });
});
