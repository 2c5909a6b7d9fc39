import assert from "node:assert/strict";
import { test } from "node:test";
import { inNewDataFolder } from "../../test/data-folder.ts";
import { printed } from "../../test/printed.ts";
import { Failure } from "../cli/failures.ts";
import { AuditRows } from "../db/audit-rows.ts";
import { CapsuleRows } from "../db/capsule-rows.ts";
import { databasePath, openDatabase } from "../db/database.ts";
import { TeamRows } from "../db/team-rows.ts";
import { TemplateRows } from "../db/template-rows.ts";
import { Teams } from "../teams/teams.ts";
import { createTeam, deleteTeam, listCapsules, listTeams, printAudit } from "./teams.ts";

/** The lines that `work` prints, as fields. */
test("the capsules of all teams, or of one, are listed with the reason of an error", async (t) => {
  await inNewDataFolder(async (dataDir) => {
    const database = openDatabase(databasePath(dataDir));
    const teams = new Teams(new TeamRows(database));
    const rows = new CapsuleRows(database);
    for (const [team, id] of [
      ["blue", "cl-1"],
      ["red", "cl-2"],
    ] as const) {
      const made = { id, teamId: teams.ensure(team).id, status: "error", errorReason: "it\tfailed", intent: null };
      const named = { name: null, labels: "{}", revision: 1, template: "minimal", storage: null, blockedBy: null };
      const shape = { vcpus: 1, memoryMb: 512, diskMb: 4_096, timeoutSec: 0, lifetimeSec: 0, retentionSec: 0 };
      const times = { createdAt: 1, lastUpdated: 1, startedAt: null, lastActiveAt: null, expiresAt: null };
      const policies = { onTimeout: "pause", onExpiry: "destroy", autoResume: 0, network: null };
      rows.insert({ ...made, ...named, ...shape, ...times, ...policies });
    }
    const all = await printed(t, () => listCapsules({ text: () => undefined }));
    assert.deepEqual(
      all.map(([team, id, , status]) => [team, id, status]),
      [
        ["blue", "cl-1", "error"],
        ["red", "cl-2", "error"],
      ],
    );
    assert.equal(all[0]!.at(-1), "it\\u0009failed");
    const [only, ...others] = await printed(t, () => listCapsules({ text: () => "red" }));
    assert.deepEqual([only![1], others], ["cl-2", []]);
    await assert.rejects(listCapsules({ text: () => "green" }), Failure);
    database.close();
  });
});

test("teams are created once, listed with what they have, and deleted with their keys", async (t) => {
  await inNewDataFolder(async (dataDir) => {
    const database = openDatabase(databasePath(dataDir));
    const teams = new Teams(new TeamRows(database));
    assert.equal(await createTeam({ words: ["blue"] }), 0);
    await assert.rejects(createTeam({ words: ["blue"] }), Failure);
    await assert.rejects(createTeam({ words: ["a b"] }), { code: "invalid_request" });
    const { id } = teams.named("blue")!;
    const { key } = teams.createKey(id, "first");
    assert.deepEqual(
      (await printed(t, listTeams)).map(([name, , ...counts]) => [name, ...counts]),
      [["blue", "1 keys", "0 capsules", "0 templates"]],
    );
    assert.equal(await deleteTeam({ words: ["blue"] }), 0);
    assert.deepEqual([teams.named("blue"), teams.authenticate(key)], [undefined, undefined]);
    await assert.rejects(deleteTeam({ words: ["blue"] }), Failure);
    const [entry] = new AuditRows(database).list(id, { limit: 10 });
    assert.deepEqual([entry?.action, entry?.keyId], ["key.revoke", "operator"]);
    database.close();
  });
});

test("a team with a template is not deleted, and keeps its keys", async () => {
  await inNewDataFolder(async (dataDir) => {
    const database = openDatabase(databasePath(dataDir));
    const teams = new Teams(new TeamRows(database));
    const { id } = teams.ensure("blue");
    const { key } = teams.createKey(id, "first");
    const template = {
      storage: "st-1",
      teamId: id,
      name: "tools",
      vcpus: 1,
      memoryMb: 512,
      ...{ diskMb: 4_096, canGrow: 1 },
      sizeBytes: 1,
      createdAt: 1,
    };
    const rows = new TemplateRows(database);
    rows.insert(template);
    for (const _ of ["used", "its files are being removed"]) {
      await assert.rejects(deleteTeam({ words: ["blue"] }), { code: "conflict" });
      assert.equal(teams.authenticate(key)?.teamId, id);
      rows.retire("st-1", 2);
    }
    database.close();
  });
});

test("audit prints a team's entries, newest first, without control characters", async (t) => {
  await inNewDataFolder(async (dataDir) => {
    const database = openDatabase(databasePath(dataDir));
    const { id } = new Teams(new TeamRows(database)).ensure("blue");
    const entry = { teamId: id, keyId: "key-1", keyName: "ci", address: "", action: "exec" as const, status: 200 };
    const log = new AuditRows(database);
    log.append([1, 2, 3].map((at) => ({ ...entry, at, capsuleId: "cl-1", subject: `\x1b[31m${at}` })));
    log.append([], new Map([[3, 7]]));
    const options = { text: () => "blue", number: () => 2 };
    const lines = await printed(t, () => printAudit(options));
    assert.deepEqual(lines, [
      ["1970-01-01T00:00:00.003Z", "exec", "200", "key-1 ci", "cl-1", "\\u001b[31m3", "7"],
      ["1970-01-01T00:00:00.002Z", "exec", "200", "key-1 ci", "cl-1", "\\u001b[31m2", "-"],
    ]);
    await assert.rejects(printAudit({ text: () => "red", number: () => undefined }), Failure);
    database.close();
  });
});
