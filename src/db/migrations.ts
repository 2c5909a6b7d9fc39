/**
 * The schema as a list of migrations. A released migration is never edited; append another.
 * `PRAGMA user_version` holds the number of migrations that a file has run.
 */
import type { DatabaseSync } from "node:sqlite";

export const steps = [
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
  `
  CREATE TABLE audit (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    team_id    TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    key_name   TEXT NOT NULL,
    address    TEXT NOT NULL,
    action     TEXT NOT NULL,
    capsule_id TEXT,
    subject    TEXT,
    status     INTEGER NOT NULL
  ) STRICT;
  CREATE INDEX audit_of_team ON audit (team_id, id);
  CREATE INDEX audit_of_capsule ON audit (team_id, capsule_id, id) WHERE capsule_id IS NOT NULL;

  -- Up to which row a team's entries may be forgotten. It only ever rises.
  CREATE TABLE audit_horizons (
    team_id TEXT PRIMARY KEY,
    through INTEGER NOT NULL
  ) STRICT, WITHOUT ROWID;

  CREATE TRIGGER audit_is_never_changed BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
  CREATE TRIGGER audit_is_forgotten_from_its_end BEFORE DELETE ON audit
    WHEN OLD.id > COALESCE((SELECT through FROM audit_horizons WHERE team_id = OLD.team_id), 0)
    BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
  CREATE TRIGGER audit_horizon_only_rises BEFORE UPDATE ON audit_horizons
    WHEN NEW.team_id IS NOT OLD.team_id OR NEW.through < OLD.through
    BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
  CREATE TRIGGER audit_horizon_stays BEFORE DELETE ON audit_horizons
    BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
  `,
  // The team comes first: the lookup of another team's capsule takes as long as that of an id that does not exist.
  `
  CREATE UNIQUE INDEX capsules_of_team_by_id ON capsules (team_id, id);
  `,
  // Only sign-ins made keys that expire.
  `
  ALTER TABLE api_keys ADD COLUMN made_by TEXT;
  ALTER TABLE api_keys ADD COLUMN is_session INTEGER NOT NULL DEFAULT 0;
  UPDATE api_keys SET is_session = 1 WHERE expires_at IS NOT NULL;
  CREATE INDEX api_keys_made_by ON api_keys (made_by) WHERE made_by IS NOT NULL;
  `,
  // Changes nothing here. Programs of schema 5 cannot read checkpoints of format 2 (src/host/disk/manifest.ts): they refuse the file.
  "",
  // Storage ids of captures that began, and of templates that were removed: their folders need no row.
  `
  CREATE TABLE storages (
    storage  TEXT PRIMARY KEY,
    noted_at INTEGER NOT NULL
  ) STRICT, WITHOUT ROWID;
  `,
  // The oldest tombstones are forgotten.
  `
  CREATE INDEX tombstones_by_time ON tombstones (destroyed_at);
  `,
  // Capsules have a name and labels. `sequence` orders those of a team, newest last, and never changes.
  `
  ALTER TABLE capsules ADD COLUMN name TEXT;
  ALTER TABLE capsules ADD COLUMN labels TEXT NOT NULL DEFAULT '{}';
  ALTER TABLE capsules ADD COLUMN sequence INTEGER NOT NULL DEFAULT 0;
  UPDATE capsules SET sequence = rowid;
  CREATE UNIQUE INDEX capsule_names ON capsules (team_id, name) WHERE name IS NOT NULL;
  CREATE UNIQUE INDEX capsules_in_sequence ON capsules (team_id, sequence);
  `,
  // Under which URLs of a capsule's files are signed; null until the first one is made.
  `
  ALTER TABLE capsules ADD COLUMN url_secret BLOB;
  `,
  // Answers to requests with an Idempotency-Key. `sequence` orders those of a team, newest last.
  `
  CREATE TABLE idempotency (
    team_id   TEXT NOT NULL,
    route     TEXT NOT NULL,
    key       TEXT NOT NULL,
    body_hash TEXT NOT NULL,
    status    INTEGER NOT NULL,
    answer    TEXT NOT NULL,
    kept_at   INTEGER NOT NULL,
    sequence  INTEGER NOT NULL,
    PRIMARY KEY (team_id, route, key)
  ) STRICT;
  CREATE UNIQUE INDEX idempotency_in_sequence ON idempotency (team_id, sequence);
  CREATE INDEX idempotency_by_time ON idempotency (kept_at);
  `,
  // Deadlines of capsules. `due_at` is the next one of a row: the end of its lifetime, or of its retention.
  `
  ALTER TABLE capsules ADD COLUMN on_timeout TEXT NOT NULL DEFAULT 'pause';
  ALTER TABLE capsules ADD COLUMN lifetime_sec INTEGER NOT NULL DEFAULT 0;
  ALTER TABLE capsules ADD COLUMN expires_at INTEGER;
  ALTER TABLE capsules ADD COLUMN on_expiry TEXT NOT NULL DEFAULT 'destroy';
  ALTER TABLE capsules ADD COLUMN retention_sec INTEGER NOT NULL DEFAULT 0;
  ALTER TABLE capsules ADD COLUMN due_at INTEGER GENERATED ALWAYS AS (
    CASE
      WHEN intent = 'destroy' THEN NULL
      WHEN status IN ('starting', 'running') THEN expires_at
      WHEN retention_sec > 0 AND status IN ('paused', 'stopped', 'error') THEN last_updated + retention_sec * 1000
    END
  ) VIRTUAL;
  CREATE INDEX capsules_by_deadline ON capsules (due_at) WHERE due_at IS NOT NULL;
  `,
  // Environment variables of a capsule, sealed under secret.key; null: none.
  `
  ALTER TABLE capsules ADD COLUMN envs BLOB;
  `,
  // Requests may resume a capsule.
  `
  ALTER TABLE capsules ADD COLUMN auto_resume INTEGER NOT NULL DEFAULT 0;
  `,
  // The bytes of a team's kept answers up to a row, that one included.
  `
  ALTER TABLE idempotency ADD COLUMN ends_at INTEGER NOT NULL DEFAULT 0;
  `,
  // Metrics of five minutes each, of capsules and teams. `sequence` orders those of an owner, newest last.
  `
  CREATE TABLE metrics (
    sequence INTEGER PRIMARY KEY,
    owner    TEXT NOT NULL,
    at       INTEGER NOT NULL,
    point    TEXT NOT NULL
  ) STRICT;
  CREATE INDEX metrics_of_owner ON metrics (owner, sequence);
  `,
  // Sizes of disks in MiB; 0: read from the files at the next start. Whether the agent in a template can make its disk larger.
  `
  ALTER TABLE capsules ADD COLUMN disk_mb INTEGER NOT NULL DEFAULT 0;
  ALTER TABLE templates ADD COLUMN disk_mb INTEGER NOT NULL DEFAULT 0;
  ALTER TABLE templates ADD COLUMN can_grow INTEGER NOT NULL DEFAULT 0;
  `,
  // Keys are looked up by team, and the ended ones are removed by time.
  `
  CREATE INDEX api_keys_of_team ON api_keys (team_id, revoked_at);
  CREATE INDEX api_keys_revoked ON api_keys (revoked_at) WHERE revoked_at IS NOT NULL;
  CREATE INDEX api_keys_expiring ON api_keys (expires_at) WHERE expires_at IS NOT NULL;
  `,
  // The network that a capsule asked for, a JSON object; null: none. The secret under which tokens of its ports are signed; null: none
  // was made yet.
  `
  ALTER TABLE capsules ADD COLUMN network TEXT;
  ALTER TABLE capsules ADD COLUMN port_secret BLOB;
  `,
  // Connections of a capsule since its create, those that were denied, and their bytes.
  `
  ALTER TABLE capsules ADD COLUMN connections INTEGER NOT NULL DEFAULT 0;
  ALTER TABLE capsules ADD COLUMN connections_denied INTEGER NOT NULL DEFAULT 0;
  ALTER TABLE capsules ADD COLUMN bytes_out INTEGER NOT NULL DEFAULT 0;
  ALTER TABLE capsules ADD COLUMN bytes_in INTEGER NOT NULL DEFAULT 0;
  `,
  // The values of headers that requests of a capsule get, a JSON object of sealed texts by host and name; null: none.
  `
  ALTER TABLE capsules ADD COLUMN inject TEXT;
  `,
  // The exit code of an entry's command; null: none is known. It is added once, and nothing else of an entry changes.
  `
  ALTER TABLE audit ADD COLUMN exit_code INTEGER;
  DROP TRIGGER audit_is_never_changed;
  CREATE TRIGGER audit_takes_an_exit_code_and_nothing_else BEFORE UPDATE ON audit
    WHEN OLD.exit_code IS NOT NULL OR NEW.id IS NOT OLD.id OR NEW.at IS NOT OLD.at OR NEW.team_id IS NOT OLD.team_id
      OR NEW.key_id IS NOT OLD.key_id OR NEW.key_name IS NOT OLD.key_name OR NEW.address IS NOT OLD.address
      OR NEW.action IS NOT OLD.action OR NEW.capsule_id IS NOT OLD.capsule_id OR NEW.subject IS NOT OLD.subject
      OR NEW.status IS NOT OLD.status
    BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
  `,
  // A capsule's epoch in its cluster; its release that may be under way, a JSON object, or null. Prefixes in the bucket of uploads that
  // have begun.
  `
  ALTER TABLE capsules ADD COLUMN epoch INTEGER NOT NULL DEFAULT 1;
  ALTER TABLE capsules ADD COLUMN releasing TEXT;
  CREATE INDEX capsules_releasing ON capsules (id) WHERE releasing IS NOT NULL;
  CREATE TABLE uploads (
    prefix   TEXT PRIMARY KEY,
    noted_at INTEGER NOT NULL
  ) STRICT, WITHOUT ROWID;
  `,
  // The last decisions about the connections of a running capsule, a JSON array; `started_at` is that of its run.
  `
  CREATE TABLE network_decisions (
    capsule_id TEXT PRIMARY KEY,
    started_at INTEGER NOT NULL,
    decisions  TEXT NOT NULL
  ) STRICT;
  `,
  // Releases of the last day, as they were sent: `columns` is the row of PostgreSQL, a JSON object. `ends_at` are the bytes of all up to
  // a row, that one included.
  `
  CREATE TABLE released (
    id              TEXT NOT NULL,
    epoch           INTEGER NOT NULL,
    revision        INTEGER NOT NULL,
    prefix          TEXT NOT NULL,
    manifest_sha256 TEXT NOT NULL,
    columns         TEXT NOT NULL,
    released_at     INTEGER NOT NULL,
    ends_at         INTEGER NOT NULL,
    PRIMARY KEY (id, epoch)
  ) STRICT;
  CREATE INDEX released_by_time ON released (released_at);
  CREATE INDEX released_by_bytes ON released (ends_at);
  CREATE INDEX released_by_prefix ON released (prefix);
  `,
  // 1: the capsule was running, and is paused for its way to another host of the cluster, which resumes it.
  `
  ALTER TABLE capsules ADD COLUMN moving INTEGER;
  `,
  // Audit entries up to these ids were sent to clusters that this folder has left.
  `
  CREATE TABLE audit_sent (
    through INTEGER PRIMARY KEY
  ) STRICT;
  `,
];

/** Two processes may open a new file at once, so counting and running the migrations is one transaction. */
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
    if (database.isTransaction) database.exec("ROLLBACK"); // a full disk has rolled it back already
    throw error;
  }
}
