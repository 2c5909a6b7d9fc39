/** The commands that take a bucket's key and try it. */
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { after, before, describe, test } from "node:test";
import { openBucket } from "../../src/bucket/opening.ts";
import { readClusterFile } from "../../src/cluster/cluster-file.ts";
import { Postgres } from "../../src/cluster/postgres.ts";
import { databasePath, openDatabase } from "../../src/db/database.ts";
import { bucketFindings } from "../../src/operator/bucket-check.ts";
import { waitFor } from "../wait-for.ts";
import { type CephBucket, CephServer, lacksCeph } from "./ceph-server.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, patient } from "./statements.ts";

const program = resolve(import.meta.dirname, "../../capsule");

describe("a cluster's bucket", { skip: lacksCeph || lacksPostgres }, () => {
  const folder = mkdtempSync(join(tmpdir(), "capsule-bucket-commands-"));
  let [ceph, postgres]: [CephServer?, PostgresServer?] = [];
  let bucket: CephBucket;
  let folders = 0;
  before(async () => {
    ceph = await CephServer.startIn(join(folder, "ceph"));
    postgres = await PostgresServer.startIn(mkdtempSync(join(tmpdir(), "capsule-postgres-")));
    bucket = await ceph.newBucket();
  });
  after(async () => {
    await ceph?.remove();
    await postgres?.stop();
    if (postgres !== undefined) rmSync(postgres.folder, { recursive: true });
    rmSync(folder, { recursive: true });
  });

  function environmentOf(more: Record<string, string> = {}): { dataDir: string; env: Record<string, string> } {
    const dataDir = join(folder, `data-${++folders}`);
    mkdirSync(dataDir, { mode: 0o700 });
    openDatabase(databasePath(dataDir)).close();
    return { dataDir, env: { PATH: process.env.PATH ?? "", CAPSULE_DATA: dataDir, ...more } };
  }

  const initWords = (more: string[] = []) => {
    return ["admin", "cluster", "init", "--postgres", postgres!.newDatabase(), "--bucket", bucket.url, ...more];
  };

  function init(input: string) {
    const { dataDir, env } = environmentOf();
    const { status, stdout, stderr } = spawnSync(program, initWords(), { encoding: "utf8", env, input });
    return { status, stdout, stderr, path: join(dataDir, "cluster.json"), env };
  }

  test("init takes the bucket's key from the lines behind the password, and check says that the bucket can be used, or why not", async () => {
    const made = init(`\n${bucket.accessKeyId}\n${bucket.secretAccessKey}\n`);
    assert.equal(made.status, 0, made.stderr);
    const { bucket: access } = readClusterFile(made.path);
    assert.deepEqual({ ...access, sealing: undefined }, { ...bucket, sealing: undefined });
    const check = () => {
      const env = { ...made.env, CAPSULE_CLUSTER: made.path };
      return spawnSync(program, ["admin", "cluster", "check"], { encoding: "utf8", env });
    };
    assert.match(check().stdout, /fit together, and the bucket takes, lists, returns and deletes objects\n$/);
    for (const [aheadMs, word] of [
      [0, "ok"],
      [-3_600_000, "warning"],
      [3_600_000, "warning"],
    ] as const) {
      const findings = await bucketFindings(made.path, () => Date.now() + aheadMs);
      assert.deepEqual(
        findings.map((each) => [each.word, each.name]),
        [
          ["ok", "bucket"],
          [word, "clock"],
        ],
      );
      if (aheadMs > 0) assert.match(findings[1]!.text, /^this machine's clock is \d+\.\d s ahead of the bucket's: /);
    }
    const sealed = await openBucket(access!);
    assert.equal((await sealed.bucket.list("").next()).done, true, "the trials have left nothing");

    const text = readFileSync(made.path, "utf8");
    writeFileSync(made.path, text.replace(bucket.secretAccessKey, "another"));
    const { status, stderr } = check();
    assert.equal(status, 1);
    assert.match(stderr, /cannot be used, since writing an object failed: it has another secret for the access key id/);
    const [warning] = await bucketFindings(made.path);
    assert.equal(warning?.word, "warning");
    assert.match(warning.text, /it has another secret/);
    const sql = await Postgres.open({ url: (JSON.parse(text) as { postgres: string }).postgres, ...patient });
    const hosts = () => sql.query("SELECT name, heartbeat, epoch FROM hosts", [], about);
    const before = await hosts();
    const start = { ...made.env, CAPSULE_CLUSTER: made.path, CAPSULE_PORT: "0" };
    const refused = spawnSync(program, ["serve"], { encoding: "utf8", env: start });
    assert.equal(refused.status, 1);
    assert.match(refused.stderr, /cannot be used, since listing objects failed: it has another secret/);
    assert.deepEqual(await hosts(), before, "it has not joined");
    await sql.close();
    writeFileSync(made.path, JSON.stringify({ ...JSON.parse(text), bucket: undefined }));
    assert.deepEqual(await bucketFindings(made.path), []);
    assert.match(check().stdout, /fit together\n$/);
    writeFileSync(made.path, "{");
    assert.equal((await bucketFindings(made.path))[0]?.word, "missing");
  });

  test("init refuses a key that is none, and a bucket that it cannot use, and has made nothing", () => {
    const { accessKeyId, secretAccessKey } = bucket;
    for (const [input, said] of [
      ["", /there is no access key id of the bucket/],
      [`\n${accessKeyId}\n`, /there is no secret access key of the bucket/],
      [`\n\n${secretAccessKey}\n`, /there is no access key id of the bucket/],
      [`\n${accessKeyId}\ntwo words\n`, /there is no secret access key of the bucket, or it has a character/],
      ["x".repeat(100_000), /the line on standard input is too long/],
      [`\n${accessKeyId}\nanother\n`, /cannot be used, since writing an object failed: it has another secret/],
    ] as const) {
      const { status, stderr, path } = init(input);
      assert.equal(status, 1, stderr);
      assert.match(stderr, said);
      assert.ok(!existsSync(path) && !stderr.includes(secretAccessKey));
    }
    const { env } = environmentOf();
    const words = [
      "admin",
      "cluster",
      "init",
      "--postgres",
      "postgres://u@localhost/d",
      "--bucket",
      "http://example.org/b",
    ];
    const wrong = spawnSync(program, words, { encoding: "utf8", env, input: "a\nb\n" });
    assert.match(wrong.stderr, /--bucket has a URL of a bucket without https/);
  });

  test("a terminal is asked for the key, and does not show it", async () => {
    const { dataDir, env } = environmentOf();
    const quoted = [program, ...initWords()].map((word) => `'${word}'`).join(" ");
    const terminal = spawn("script", ["-qfec", quoted, "/dev/null"], { env, stdio: ["pipe", "pipe", "ignore"] });
    const ended = once(terminal, "close");
    let shown = "";
    terminal.stdout.on("data", (bytes) => {
      shown += bytes;
    });
    try {
      await waitFor("the first question", () => shown.includes("Password of PostgreSQL: "));
      terminal.stdin.write("\r");
      await waitFor("the second question", () => shown.includes("Access key id of the bucket: "));
      terminal.stdin.write(`${bucket.accessKeyId}\r`);
      await waitFor("the third question", () => shown.includes("Secret access key of the bucket: "));
      terminal.stdin.write(`${bucket.secretAccessKey}\r`);
      await waitFor("the cluster's file", () => shown.includes("cluster.json"));
    } finally {
      terminal.stdin.end();
      await ended;
    }
    assert.ok(!shown.includes(bucket.accessKeyId) && !shown.includes(bucket.secretAccessKey), shown);
    assert.equal(readClusterFile(join(dataDir, "cluster.json")).bucket?.secretAccessKey, bucket.secretAccessKey);
  });
});
