import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { requireDatabase, requireNoSaved } from "./lost-database.ts";

let folder = "";
let file = "";
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "lost-database-"));
  file = join(folder, "capsule.db");
});
afterEach(() => rmSync(folder, { recursive: true }));

function put(path: string): void {
  mkdirSync(join(folder, path, ".."), { recursive: true });
  writeFileSync(join(folder, path), "");
}

const missing = () => requireDatabase(folder, file);
const unknown = () => requireNoSaved(folder, file, (storage) => storage === "t2");

test("an empty data folder needs no database, nor does one with foreign folders only", () => {
  missing();
  unknown();
  put("capsules/lost+found/file");
  put("templates/readme");
  missing();
  unknown();
});

test("a capsule or template beside no database is refused, with what to do", () => {
  put("capsules/cl-1/capsule.json");
  put("templates/t1/manifest.json");
  assert.throws(missing, {
    code: "conflict",
    message: /has 1 capsules and 1 templates, but \S+capsule\.db is missing: put back .* or move the folders/,
  });
  put("capsule.db");
  missing();
});

test("a checkpoint or template of which the database knows nothing is refused; an unfinished folder is not", () => {
  put("capsules/cl-1/capsule.json");
  put("capsules/cl-2/checkpoint/state");
  put("templates/t1/memory");
  put("templates/t2/manifest.json"); // noted
  unknown();
  put("capsules/cl-2/checkpoint/manifest.json");
  assert.throws(unknown, { code: "conflict", message: /has 1 capsules and 0 templates, but \S+ has no record of any/ });
  rmSync(join(folder, "capsules/cl-2"), { recursive: true });
  put("templates/t1/manifest.json");
  assert.throws(unknown, { code: "conflict", message: /has 0 capsules and 1 templates/ });
});
