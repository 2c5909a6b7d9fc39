/**
 * The schema, as the list of steps that made it. A step is never edited once released: append another.
 * `PRAGMA user_version` holds how many steps a file has seen.
 */
import type { DatabaseSync } from "node:sqlite";

const steps = [
  `
  CREATE TABLE teams (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL
  ) STRICT;

  CREATE TABLE api_keys (
    id           TEXT PRIMARY KEY,
    team_id      TEXT NOT NULL REFERENCES teams(id),
    label        TEXT NOT NULL,
    hash         BLOB NOT NULL UNIQUE,
    created_at   INTEGER NOT NULL,
    revoked_at   INTEGER,
    last_used_at INTEGER
  ) STRICT;

  CREATE TABLE capsules (
    id             TEXT PRIMARY KEY,
    team_id        TEXT NOT NULL REFERENCES teams(id),
    status         TEXT NOT NULL,
    generation     INTEGER NOT NULL,
    intent         TEXT,
    template       TEXT NOT NULL,
    storage        TEXT,
    blocked_by     TEXT,
    vcpus          INTEGER NOT NULL,
    memory_mb      INTEGER NOT NULL,
    timeout_sec    INTEGER NOT NULL,
    created_at     INTEGER NOT NULL,
    last_updated   INTEGER NOT NULL,
    started_at     INTEGER,
    last_active_at INTEGER,
    error_reason   TEXT
  ) STRICT;
  CREATE INDEX capsules_of_team ON capsules (team_id, created_at DESC, id);
  CREATE INDEX capsules_on_storage ON capsules (storage) WHERE storage IS NOT NULL;

  CREATE TABLE tombstones (
    id           TEXT PRIMARY KEY,
    destroyed_at INTEGER NOT NULL
  ) STRICT, WITHOUT ROWID;

  CREATE TABLE templates (
    storage    TEXT PRIMARY KEY,
    team_id    TEXT NOT NULL REFERENCES teams(id),
    name       TEXT NOT NULL,
    vcpus      INTEGER NOT NULL,
    memory_mb  INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    retired_at INTEGER
  ) STRICT;
  CREATE UNIQUE INDEX template_names ON templates (team_id, name) WHERE retired_at IS NULL;
  `,
  `
  ALTER TABLE api_keys ADD COLUMN prefix TEXT;
  ALTER TABLE api_keys ADD COLUMN expires_at INTEGER;
  `,
];

/** Two programs may open a new file at once: the steps are counted and taken in one transaction. */
export function migrate(database: DatabaseSync): void {
  database.exec("BEGIN IMMEDIATE");
  try {
    const { user_version: seen } = database.prepare("PRAGMA user_version").get() as { user_version: number };
    if (seen > steps.length) {
      throw new Error(`the database has schema ${seen}; this program knows only ${steps.length}`);
    }
    for (const step of steps.slice(seen)) database.exec(step);
    database.exec(`PRAGMA user_version = ${steps.length}; COMMIT`);
  } catch (error) {
    database.exec("ROLLBACK");
    throw error;
  }
}
