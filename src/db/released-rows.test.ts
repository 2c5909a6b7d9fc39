import assert from "node:assert/strict";
import { test } from "node:test";
import { openDatabase } from "./database.ts";
import { HoldingRows } from "./holding-rows.ts";

const dayMs = 86_400_000;
const all = { rows: 100, textBytes: 1 << 20 };

function released(id: string, epoch = 1, text = "") {
  const prefix = `capsules/${id}/${epoch}.3.0000000a`;
  const columns = JSON.stringify({ id, revision: 4, checkpoint: prefix, checkpoint_sha256: "ab", text });
  return { id, epoch, columns, prefix };
}

const namesOf = (rows: readonly { id: string; epoch: number }[]) => rows.map(({ id, epoch }) => `${id}.${epoch}`);

test("each release of a day is kept, and read in pages by id and epoch", () => {
  const database = openDatabase(":memory:");
  const { released: rows } = new HoldingRows(database);
  for (const [index, id] of ["cl-b", "cl-a", "cl-c"].entries()) rows.note(released(id), index);
  rows.note(released("cl-a", 2), dayMs);
  rows.note(released("cl-a", 2), dayMs); // its answer came a second time
  assert.deepEqual(namesOf(rows.page(dayMs, undefined, all)), ["cl-a.1", "cl-a.2", "cl-b.1", "cl-c.1"]);
  assert.deepEqual(namesOf(rows.page(dayMs, { id: "cl-a", epoch: 1 }, { ...all, rows: 2 })), ["cl-a.2", "cl-b.1"]);
  assert.deepEqual(namesOf(rows.page(dayMs, undefined, { ...all, textBytes: 1 })), ["cl-a.1"]);
  assert.deepEqual(namesOf(rows.page(dayMs, { id: "cl-c", epoch: 1 }, all)), []);
  assert.deepEqual(namesOf(rows.page(dayMs + 1, undefined, all)), ["cl-a.1", "cl-a.2", "cl-c.1"]);
  const kept = database.prepare("SELECT revision, prefix, manifest_sha256 AS sha256 FROM released WHERE id = 'cl-b'");
  assert.deepEqual({ ...kept.get() }, { revision: 4, prefix: released("cl-b").prefix, sha256: "ab" });
  rows.note(released("cl-d"), dayMs + 2);
  assert.deepEqual(namesOf(rows.page(0, undefined, all)), ["cl-a.2", "cl-c.1", "cl-d.1"]);
  database.close();
});

test("the oldest releases are forgotten where all are too large together", () => {
  const database = openDatabase(":memory:");
  const { released: rows } = new HoldingRows(database);
  const bytes = released("cl-1").columns.length;
  for (const id of ["cl-1", "cl-2", "cl-3", "cl-4"]) rows.note(released(id), 1, 2 * bytes);
  assert.deepEqual(namesOf(rows.page(1, undefined, all)), ["cl-3.1", "cl-4.1"]);
  database.close();
});

test("an upload is no longer one that may have failed when its release is noted", () => {
  const database = openDatabase(":memory:");
  const holding = new HoldingRows(database);
  const [one, other] = [released("cl-1"), released("cl-2")];
  for (const { prefix } of [one, other]) holding.noteUpload(prefix, 1);
  holding.released.note(one, 2);
  const uploads = () => (database.prepare("SELECT prefix FROM uploads").all() as { prefix: string }[]).length;
  assert.deepEqual([holding.uploads(9), uploads()], [[other.prefix], 1]);
  holding.noteUpload(one.prefix, 1); // as a program without these notes has left it
  assert.deepEqual([holding.uploads(9), uploads()], [[other.prefix], 2]);
  database.close();
});
