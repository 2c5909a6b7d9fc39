/** The findings of `capsule doctor` about images that differ from the bucket's. */
import assert from "node:assert/strict";
import { symlinkSync } from "node:fs";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { newClusterFile, writeClusterFile } from "../../src/cluster/cluster-file.ts";
import { imageFindings } from "../../src/operator/images-check.ts";
import { waitFor } from "../wait-for.ts";
import { DataFolder, imageHash, imageKey } from "./data-folders.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, clusterDatabase } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;

test("an image with other bytes than the bucket's of the same hash is a warning", { skip }, async () => {
  await using database = await clusterDatabase(server);
  using data = new DataFolder();
  data.addImage();
  symlinkSync(imageHash, join(dirname(data.folder("image", imageKey)), "current"));
  const [path, alone] = [join(data.paths.data, "cluster.json"), join(data.paths.data, "alone.json")];
  const keys = { accessKeyId: "id", secretAccessKey: "secret" };
  const made = newClusterFile(database.url, Buffer.alloc(32, 1), { url: "http://127.0.0.1:1/none", ...keys });
  writeClusterFile(path, made);
  writeClusterFile(alone, { ...made, bucket: undefined });
  const found = async (file = path) => {
    const findings = await imageFindings(file, data.paths.data);
    return findings.map(({ word, text }) => `${word}: ${text}`);
  };
  /** There are none, either, where PostgreSQL does not answer in its 5 s. */
  const some = () =>
    waitFor("a finding", async () => {
      const findings = await found();
      return findings.length > 0 && findings;
    });
  assert.deepEqual(await found(), [], "the bucket has none");
  const { sha256 } = data.image().manifest.files["root.ext4"];
  await database.sql.call("begin_upload", ["image/x/a"], about);
  await database.sql.call("note_artifact", ["image", imageKey, "image/x/a", "0".repeat(64), 1, sha256], about);
  assert.deepEqual(await some(), ["ok: minimal is the bucket's"]);
  await database.sql.query("UPDATE artifacts SET sha256 = $1", ["1".repeat(64)], about);
  const [warning = ""] = await some();
  assert.ok(warning.startsWith(`warning: image ${imageKey} has other bytes here than in the bucket: `), warning);
  assert.deepEqual(await found(alone), [], "the cluster has no bucket");
  await database.sql.query("UPDATE artifacts SET sha256 = NULL", [], about);
  assert.deepEqual(await found(), [], "it is not known which bytes the bucket's has");
  await server.stop();
  assert.deepEqual(await found(), [], "the database's own finding says so");
});
