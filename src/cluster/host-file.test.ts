/** The file of a data folder that has joined. */
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { hostsKeptIn, readHostFile, writeHostFile } from "./host-file.ts";

const folder = mkdtempSync(join(tmpdir(), "capsule-host-file-"));
after(() => rmSync(folder, { recursive: true }));
const silent = { warn() {} };
const path = join(folder, "host.json");
const file = { cluster: "c", name: "a", nonce: "n", epoch: 3, limits: { capsules_max: 7 }, place: "here" };
const other = { name: "b", address: "10.0.0.2", port: 8_079, epoch: 2 };

test("the other hosts are kept when they change, beside all that the file has", () => {
  writeHostFile(folder, file);
  utimesSync(path, 1_000, 1_000);
  const keep = hostsKeptIn(folder, silent);
  const loaded = { ...other, state: "up", load: { memory_mb: 1 } };
  keep([loaded]);
  assert.deepEqual(readHostFile(folder), { ...file, hosts: [other] });
  assert.equal(statSync(path).mtimeMs, 1_000_000, "it tells when keys were read");
  const { ino } = statSync(path);
  keep([{ ...loaded }]);
  hostsKeptIn(folder, silent)([loaded]);
  assert.equal(statSync(path).ino, ino, "nothing is written anew");
  keep([]);
  assert.deepEqual(readHostFile(folder), file);
});

test("hosts that no host can be are left out, and many are some", () => {
  const wrong = [
    ...[null, 7, "b", {}, { ...other, port: 0 }, { ...other, port: 65_536 }, { ...other, address: 5 }],
    ...[
      { ...other, name: "" },
      { ...other, address: "x".repeat(256) },
      { ...other, epoch: 1.5 },
    ],
  ];
  writeFileSync(path, JSON.stringify({ ...file, hosts: [...wrong, other] }));
  assert.deepEqual(readHostFile(folder)?.hosts, [other]);
  writeFileSync(path, JSON.stringify({ ...file, hosts: "many", place: 7 }));
  const { place: _, ...rest } = file;
  assert.deepEqual(readHostFile(folder), rest);
  const many = Array.from({ length: 1_000 }, (_, index) => ({ ...other, name: `host-${index}` }));
  hostsKeptIn(folder, silent)(many);
  assert.equal(readHostFile(folder)?.hosts?.length, 200);
  assert.ok(readFileSync(path).length < 200 * 600);
});
