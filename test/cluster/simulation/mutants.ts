/**
 * Mistakes that the simulation has to find. Each changes the text of a function of the database, or wraps methods of one host's part.
 * The seeds are those of schedules that find it.
 */
import assert from "node:assert/strict";
import type { CapsuleStore } from "../../../src/capsules/store.ts";
import type { Cluster } from "../../../src/cluster/cluster.ts";
import { type Database, withoutSync } from "../../../src/db/database.ts";
import type { HoldingRows } from "../../../src/db/holding-rows.ts";
import type { SimulatedFiles } from "./bucket.ts";
import type { Mix } from "./commands.ts";
import type { ScheduledDatabase } from "./database.ts";
import { bucketSeeds, type Faults, none } from "./faults.ts";
import { kind } from "./statements.ts";

/** Options of the host that a mistake is made in. */
export interface PlantedParts {
  store: CapsuleStore;
  holding: HoldingRows;
  database: Database;
  /** Undefined: the cluster has no bucket. */
  files: SimulatedFiles | undefined;
}

export interface Mutant {
  name: string;
  /** Texts of functions by their names, and what replaces them. */
  functions?: Record<string, [text: string, by: string][]>;
  /** SQL that is run before them. */
  first?: string;
  plant?: (cluster: Cluster, parts: PlantedParts) => void;
  /** Faults and commands by which it shows. Default: those of each schedule. */
  faults?: Partial<Faults>;
  mix?: Mix;
  /** The seed of a schedule that finds it. */
  seed: number;
}

const overlapping: Faults = { ...none, fates: { ...kind, held: 0.6 } };
const late: Faults = { ...none, fates: { ...kind, late: 0.3 } };
const cutting: Faults = { ...none, move: 0.5 };
const dying: Faults = { ...none, fates: { ...kind, late: 0.2 }, step: 0.06 };

/** Mistakes that need a bucket. */
const ofMoves: Mutant[] = [
  {
    name: "a release is sent before its mark is synced",
    seed: bucketSeeds + 2,
    plant: (_cluster, { holding, database }) => {
      const mark = holding.setReleasing.bind(holding);
      holding.setReleasing = (...of) => withoutSync(database, () => mark(...of));
    },
    ...{ faults: cutting, mix: "moves" },
  },
  {
    name: "the collector takes a checkpoint as soon as its capsule is acquired",
    seed: bucketSeeds + 38,
    functions: {
      add_garbage: [["WHERE checkpoint = p)", "WHERE checkpoint = p AND host IS NULL)"]],
      is_named: [["WHERE checkpoint = p_prefix)", "WHERE checkpoint = p_prefix AND host IS NULL)"]],
      acquire_capsule: [
        [
          "WHERE id = p_id RETURNING * INTO r;",
          "WHERE id = p_id RETURNING * INTO r; PERFORM add_garbage(ARRAY[r.checkpoint]);",
        ],
      ],
    },
    ...{ faults: { ...none, bucket: 0.3, move: 0.3 }, mix: "moves" },
  },
  {
    name: "a capsule is resumed although its release may be under way",
    seed: bucketSeeds + 2,
    plant: (_cluster, { store }) => {
      store.leaving.add = () => store.leaving;
    },
    ...{ faults: { ...none, fates: { ...kind, late: 0.3, unanswered: 0.2 } }, mix: "moves" },
  },
  {
    name: "a capsule is resumed without an acquire",
    seed: bucketSeeds + 2,
    functions: {
      acquire_capsule: [
        [
          "UPDATE capsules SET host = p_host, epoch = epoch + 1, intent = p_intent, copy = p_copy, version = v, lost_at = NULL\n    WHERE id = p_id RETURNING * INTO r;",
          "r.host := p_host; r.epoch := r.epoch + 1; r.intent := p_intent;",
        ],
      ],
    },
    ...{ faults: none, mix: "moves" },
  },
  {
    name: "an acquire leaves the epoch as it is",
    seed: bucketSeeds,
    functions: { acquire_capsule: [["epoch = epoch + 1", "epoch = epoch"]] },
    ...{ faults: late, mix: "moves" },
  },
  {
    name: "a folder that was set aside is taken by its id alone",
    seed: bucketSeeds + 9,
    plant: (_cluster, { files }) => {
      const cachedFor = files!.cachedFor.bind(files);
      files!.cachedFor = (released) => files!.ofCapsule(released.row.id) ?? cachedFor(released);
    },
    ...{ faults: none, mix: "moves" },
  },
];

/** Mistakes that need a bucket, and a database that is put back. */
const ofPutBacks: Mutant[] = [
  {
    name: "an assert without what was released",
    seed: bucketSeeds + 187,
    functions: {
      enter_released: [
        ["jsonb_populate_recordset(NULL::capsules, p_rows)", "jsonb_populate_recordset(NULL::capsules, '[]')"],
      ],
    },
    ...{ faults: none, mix: "moves" },
  },
  {
    name: "a place is confirmed that a host has told nothing of",
    seed: bucketSeeds + 25,
    functions: { confirm_place: [["IF silent IS NOT NULL", "IF false"]] },
    ...{ faults: none, mix: "moves" },
  },
  {
    name: "what was acquired is told with the epoch before",
    seed: bucketSeeds + 67,
    functions: { enter_held: [["ELSIF c.epoch < r.epoch THEN", "ELSIF false THEN"]] },
    ...{ faults: none, mix: "moves" },
  },
];

/** Mistakes that need a bucket, and hosts that are drained. */
const ofDrains: Mutant[] = [
  {
    name: "a release forgets that its capsule is moved",
    seed: bucketSeeds + 250,
    functions: { release_capsule: [["moving = CASE WHEN n.moving THEN true END", "moving = NULL"]] },
    ...{ faults: none, mix: "drains" },
  },
];

export const mutants: Mutant[] = [
  {
    name: "quotas are summed before the team's lock",
    seed: 1,
    functions: {
      create_capsule: [
        ["v := lock_team(r.team_id);", ""],
        ["r.host := p_host;", "v := lock_team(r.team_id); r.host := p_host;"],
      ],
    },
    ...{ faults: overlapping, mix: "ends" },
  },
  {
    name: "status copies take their versions without the team's lock",
    seed: 2,
    functions: {
      copy_status: [
        ["PERFORM 1 FROM teams WHERE id = ANY(listed) ORDER BY id FOR NO KEY UPDATE;", ""],
        ["UPDATE teams SET version = version + 1 WHERE id = ANY(listed);", ""],
        ["version = t.version,", "version = t.version + 1,"],
        ["GET DIAGNOSTICS", "UPDATE teams SET version = version + 1 WHERE id = ANY(listed); GET DIAGNOSTICS"],
      ],
    },
    ...{ faults: { ...none, fates: { ...kind, held: 0.9 } }, mix: "ends" },
  },
  {
    name: "numbers of the catalog are those of a sequence",
    seed: 13,
    first: "CREATE SEQUENCE mutant START 100",
    functions: {
      next_catalog: [["UPDATE cluster SET catalog = catalog + 1 RETURNING catalog", "SELECT nextval('mutant')"]],
      count_heartbeat: [["(SELECT catalog FROM cluster)", "(SELECT last_value FROM mutant)"]],
    },
    ...{ faults: overlapping, mix: "credentials" },
  },
  {
    name: "a resume is decided upon by status copies alone",
    seed: 18,
    functions: {
      admit_resume: [["UPDATE capsules SET intent = p_intent, copy = p_copy, version = v WHERE id = p_id;", ""]],
    },
    ...{ faults: none, mix: "both" },
  },
  {
    name: "a late status copy overwrites a newer one",
    seed: 3,
    functions: {
      copy_status: [
        ["AND c.copy < n.copy", ""],
        ["AND c.revision <= n.revision", ""],
      ],
    },
    ...{ faults: late, mix: "runs" },
  },
  {
    name: "a late create inserts a deleted row again",
    seed: 18,
    functions: { create_capsule: [["SELECT 1 FROM tombstones WHERE id = r.id", "SELECT 1 WHERE false"]] },
    ...{ faults: late, mix: "ends" },
  },
  {
    name: "a late create of an earlier life is decided",
    seed: 1017,
    functions: { require_host: [["AND epoch = p_host_epoch", ""]] },
    ...{ faults: dying, mix: "ends" },
  },
  {
    name: "a heartbeat of another folder's daemon is answered",
    seed: 1001,
    functions: {
      count_heartbeat: [
        ["AND nonce = p_nonce", ""],
        ["AND nonce = p_nonce", ""],
      ],
    },
    ...{ faults: { ...none, step: 0.1 } },
  },
  {
    name: "a deleted capsule leaves no tombstone",
    seed: 1000,
    functions: {
      remove_capsule: [
        ["INSERT INTO tombstones (", "IF false THEN INSERT INTO tombstones ("],
        ["now_ms());", "now_ms()); END IF;"],
      ],
    },
    ...{ mix: "ends" },
  },
  {
    name: "an Idempotency-Key is not kept with its capsule",
    seed: 9,
    functions: { keep_key: [["IF p_keyed IS NULL THEN RETURN; END IF;", "RETURN;"]] },
    ...{ mix: "ends" },
  },
  {
    name: "a create is answered before its commit",
    seed: 1001,
    plant: ({ decided }) => {
      const create = decided.create.bind(decided);
      decided.create = async (...of) => void create(...of).catch(() => {});
    },
  },
  {
    name: "a destroy is answered before its commit",
    seed: 1005,
    plant: ({ decided }) => {
      const destroy = decided.destroy.bind(decided);
      decided.destroy = async (row) => void destroy(row).catch(() => {});
    },
  },
  {
    name: "a name is answered before its commit",
    seed: 1003,
    plant: ({ decided }) => {
      const rename = decided.rename.bind(decided);
      decided.rename = async (...of) => void rename(...of).catch(() => {});
    },
  },
  {
    name: "a capture is answered before its commit",
    seed: 1011,
    plant: ({ decided }) => {
      const capture = decided.capture.bind(decided);
      decided.capture = async (...of) => void capture(...of).catch(() => {});
    },
    mix: "captures",
  },
  {
    name: "numbers of copies begin anew with each life",
    seed: 1034,
    plant: ({ copies }) => {
      let number = 0;
      copies.next = () => ++number;
    },
    ...{ faults: dying, mix: "runs" },
  },
  ...ofMoves,
  ...ofPutBacks,
  ...ofDrains,
];

/** Changes the functions of the database. Throws when a text is not there any longer. */
export async function plantFunctions(database: ScheduledDatabase, { functions = {}, first }: Mutant): Promise<void> {
  if (first !== undefined) await database.ask(first);
  for (const [name, changes] of Object.entries(functions)) {
    const [row] = await database.ask<{ text: string }>(
      "SELECT pg_get_functiondef(oid) AS text FROM pg_proc WHERE proname = $1",
      [name],
    );
    let { text } = row!;
    for (const [from, to] of changes) {
      assert.ok(text.includes(from), `${name} has no ${from}`);
      text = text.replace(from, () => to);
    }
    await database.ask(text);
  }
}
