/** Rows of released capsules: nothing that a holder has is left out, and nothing that a database says is believed unchecked. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { capsuleRow } from "../../test/fakes/capsule-row.ts";
import type { Capsule } from "../capsules/store.ts";
import { columns } from "../db/capsule-columns.ts";
import { CapsuleRows } from "../db/capsule-rows.ts";
import { openDatabase } from "../db/database.ts";
import { HoldingRows, type KeptColumns, keptNames, ownNames } from "../db/holding-rows.ts";
import { TeamRows } from "../db/team-rows.ts";
import { decodeReleased, releaseColumns } from "./released.ts";

const kept: KeptColumns = {
  ...{ url_secret: new Uint8Array([1, 2]), envs: new Uint8Array(40).fill(255), inject: '{"a":{"b":"c"}}' },
  ...{ port_secret: Buffer.from([9, 8]), connections: 4, connections_denied: 3, bytes_out: 2, bytes_in: 1 },
};
const checkpoint = {
  ...{ prefix: "capsules/cl-1/2.6.0a0b0c0d", manifestSha256: "ab".repeat(32), bytes: 10, at: 5, revision: 7 },
  ...{ machine: { vcpus: 1 }, record: { revision: 6 }, savedRevision: 6, qemuBuild: null, format: 2 },
};
const row = capsuleRow("cl-1", { status: "paused", intent: null, revision: 7, name: "web" }) as Capsule;

const written = (): Record<string, unknown> => ({
  ...JSON.parse(JSON.stringify(releaseColumns({ row, kept, checkpoint }))),
  ...{ host: null, epoch: 2, last_host: "a" },
});

test("every column of a host's capsules is released, or is the host's alone", () => {
  const database = openDatabase(":memory:");
  const found = database.prepare("SELECT name FROM pragma_table_xinfo('capsules')").all();
  assert.deepEqual(
    found.map(({ name }) => String(name)).sort(),
    [...Object.values(columns), ...keptNames, ...ownNames].sort(),
  );
  // Beside its row a capsule has metrics, which its next holder begins anew; entries of the audit log, which are the cluster's; its
  // tombstone; decisions of its network, which end with its run; and its releases.
  const tables = database.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'");
  assert.deepEqual(
    tables
      .all()
      .map(({ name }) => String(name))
      .sort(),
    [
      ...[
        "api_keys",
        "audit",
        "audit_horizons",
        "audit_sent",
        "capsules",
        "idempotency",
        "metrics",
        "network_decisions",
      ],
      ...["released", "storages", "teams", "templates", "tombstones", "uploads"],
    ],
  );
  database.close();
});

test("what a holder has beside a row comes back as it was", () => {
  const database = openDatabase(":memory:");
  new TeamRows(database).ensure({ id: "team-blue", name: "blue", createdAt: 1 });
  const [rows, holding] = [new CapsuleRows(database), new HoldingRows(database)];
  const released = decodeReleased(written());
  rows.insert(released.row, () => holding.hold("cl-1", 3, released.kept));
  assert.deepEqual({ ...rows.get("cl-1") }, row);
  assert.equal(holding.epoch("cl-1"), 3);
  const found = holding.kept("cl-1")!;
  for (const name of keptNames) {
    const [a, b] = [found[name], kept[name]];
    if (b instanceof Uint8Array) assert.deepEqual(Buffer.from(a as Uint8Array), Buffer.from(b), name);
    else assert.equal(a, b, name);
  }
  assert.deepEqual(released.checkpoint, checkpoint);
  database.close();
});

test("a release is noted once, of a paused capsule of that revision, and ends with a new epoch", () => {
  const database = openDatabase(":memory:");
  new TeamRows(database).ensure({ id: "team-blue", name: "blue", createdAt: 1 });
  const [rows, holding] = [new CapsuleRows(database), new HoldingRows(database)];
  rows.insert(row);
  assert.equal(holding.setReleasing("cl-1", 6, "a"), false);
  const resuming = rows.change("cl-1", 7, { intent: "resume" })!;
  assert.equal(holding.setReleasing("cl-1", resuming.revision, "a"), false);
  const { revision } = rows.change("cl-1", resuming.revision, { intent: null })!;
  assert.equal(holding.setReleasing("cl-1", revision, "a"), true);
  assert.equal(holding.setReleasing("cl-1", revision, "b"), false);
  assert.deepEqual(
    holding.allReleasing().map((each) => ({ ...each })),
    [{ id: "cl-1", epoch: 1, releasing: "a" }],
  );
  holding.hold("cl-1", 2);
  assert.deepEqual([holding.releasing("cl-1"), holding.epoch("cl-1")], [null, 2]);
  for (const prefix of ["p/2", "p/1", "p/3"]) holding.noteUpload(prefix, prefix === "p/3" ? 1 : 2);
  assert.deepEqual(holding.uploads(2), ["p/3", "p/1"]);
  holding.forgetUploads(["p/3", "p/2"]);
  assert.deepEqual(holding.uploads(9), ["p/1"]);
  database.close();
});

test("a row with a value that no release writes is refused", () => {
  decodeReleased(written());
  const wrong: Record<string, unknown[]> = {
    ...{
      id: ["../x", 1, null],
      team_id: [""],
      status: ["running", "x"],
      intent: ["resume"],
      labels: ["[]", "x", null],
    },
    ...{ revision: [5, "7"], vcpus: [-1, 1.5, null], auto_resume: [2, true], on_timeout: ["x"], network: ["[", 5] },
    ...{ epoch: [null, "1"], host: [""], last_host: [7], checkpoint: ["capsules/cl-2/1.1.a", "../", null] },
    ...{
      checkpoint_sha256: ["x", null],
      checkpoint_bytes: [-1, null],
      checkpoint_at: [null],
      machine: [null, [], "x"],
    },
    ...{
      checkpoint_revision: [8, null],
      record: [null, 5, {}, { revision: "6" }],
      qemu_build: [5],
      format: [null],
      kept: [null, "x", "[]", "{}"],
      moving: [1, "true"],
    },
  };
  for (const [name, values] of Object.entries(wrong)) {
    for (const value of values)
      assert.throws(
        () => decodeReleased({ ...written(), [name]: value }),
        { code: "agent_error" },
        `${name} ${JSON.stringify(value)}`,
      );
  }
  for (const name of Object.keys(written())) {
    const { [name]: _, ...rest } = written();
    if (name === "moving")
      decodeReleased(rest); // of a database that was not brought up to this release yet
    else assert.throws(() => decodeReleased(rest), { code: "agent_error" }, name);
  }
  for (const name of keptNames) {
    const bad = JSON.stringify({ ...JSON.parse(String(written().kept)), [name]: [] });
    assert.throws(() => decodeReleased({ ...written(), kept: bad }), { code: "agent_error" }, name);
  }
  for (const value of [null, undefined, 5, "x", []])
    assert.throws(() => decodeReleased(value), { code: "agent_error" });
});
