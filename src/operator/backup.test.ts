import assert from "node:assert/strict";
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { inNewDataFolder } from "../../test/data-folder.ts";
import { newCapsuleId } from "../capsules/ids.ts";
import type { Intent, Status } from "../capsules/lifecycle.ts";
import { CapsuleRows } from "../db/capsule-rows.ts";
import { databasePath, openDatabase } from "../db/database.ts";
import { TeamRows } from "../db/team-rows.ts";
import { SecretKey, secretKeyName } from "../secret.ts";
import { Teams } from "../teams/teams.ts";
import { backup } from "./backup.ts";

const found: [status: Status, intent: Intent | null][] = [
  ["running", null],
  ["running", "destroy"],
  ["paused", "destroy"],
  ["paused", "resume"],
  ["starting", "create"],
  ["stopped", null],
];
const kept = [
  ["error", null],
  ["running", "destroy"],
  ["paused", "destroy"],
  ["error", null],
  ["error", null],
  ["stopped", null],
];

test("a data folder of a cluster is refused: its records are in PostgreSQL", async () => {
  await inNewDataFolder(async (dataDir) => {
    openDatabase(databasePath(dataDir)).close();
    writeFileSync(join(dataDir, "host.json"), "{}");
    const target = join(dataDir, "../backup");
    await assert.rejects(
      backup({ words: [target] }),
      /belongs to a cluster, whose records are in PostgreSQL: .*docs\/operations\/cluster-failures\.md/,
    );
    assert.equal(existsSync(target), false);
  });
});

test("a folder that is there, or whose parent is not, is refused in a sentence, and stays as it is", async () => {
  await inNewDataFolder(async (dataDir) => {
    openDatabase(databasePath(dataDir)).close();
    const there = join(dataDir, "../there");
    mkdirSync(there);
    await assert.rejects(backup({ words: [there] }), { message: `${join(there)} is there already` });
    await assert.rejects(backup({ words: [join(there, "a/b")] }), { message: `${join(there, "a")} does not exist` });
    assert.deepEqual(readdirSync(there), []);
  });
});

test("a capsule that cannot be copied is in error in the backup, and an unfinished destruction stays one", async (t) => {
  t.mock.method(console, "log", () => {});
  await inNewDataFolder(async (dataDir) => {
    fill(dataDir);
    SecretKey.ofFolder(dataDir);
    const target = `${dataDir}-copy`;
    assert.equal(await backup({ words: [target] }), 0);
    assert.deepEqual(readFileSync(join(target, secretKeyName)), readFileSync(join(dataDir, secretKeyName)));
    const copy = openDatabase(databasePath(target));
    const rows = new CapsuleRows(copy).all();
    copy.close();
    assert.deepEqual(
      rows.map(({ status, intent }) => [status, intent]),
      kept,
    );
  });
});

function fill(dataDir: string): void {
  const database = openDatabase(databasePath(dataDir));
  const teamId = new Teams(new TeamRows(database)).ensure("blue").id;
  const rows = new CapsuleRows(database);
  for (const [status, intent] of found) {
    const made = { id: newCapsuleId(), teamId, status, intent, revision: 1, template: "minimal", storage: null };
    const named = { name: null, labels: "{}", network: null };
    const shape = { vcpus: 1, memoryMb: 512, diskMb: 4_096, timeoutSec: 0 };
    const times = { createdAt: 1, lastUpdated: 1, startedAt: null, lastActiveAt: null };
    const actions = { onTimeout: "destroy", onExpiry: "pause" };
    const policies = { ...actions, lifetimeSec: 60, expiresAt: 60_001, retentionSec: 600, autoResume: 1 };
    rows.insert({ ...made, ...named, ...shape, ...times, ...policies, blockedBy: null, errorReason: null });
  }
  database.close();
}
