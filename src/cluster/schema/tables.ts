/**
 * The cluster's tables in PostgreSQL. Columns of capsules are those of a host's own table (src/db/capsule-columns.ts), and who holds
 * it. Times are epoch milliseconds. A released step is never edited; migration.ts appends.
 */

/** Statuses and intents of a capsule that has a VM or is being given one, as a condition on its row. */
export const liveRow = "(status IN ('starting', 'running') OR COALESCE(intent, '') IN ('resume', 'start'))";

export const tables = `
CREATE TABLE cluster (
  one        boolean PRIMARY KEY DEFAULT true CHECK (one),
  id         text NOT NULL,
  schema     integer NOT NULL,
  schema_min integer NOT NULL,
  catalog    bigint NOT NULL DEFAULT 1,
  system_id  text NOT NULL,
  timeline   text NOT NULL,
  limits     jsonb NOT NULL,
  created_at bigint NOT NULL
);

CREATE TABLE hosts (
  name      text PRIMARY KEY,
  epoch     bigint NOT NULL,
  nonce     text NOT NULL,
  place     text NOT NULL,
  address   text NOT NULL,
  port      integer NOT NULL,
  version   text NOT NULL,
  format    integer NOT NULL,
  machine   jsonb NOT NULL DEFAULT '{}',
  state     text NOT NULL DEFAULT 'up',
  heartbeat bigint NOT NULL DEFAULT 0,
  load      jsonb NOT NULL DEFAULT '{}',
  asserted_timeline text,
  joined_at bigint NOT NULL
);

CREATE TABLE teams (
  id         text PRIMARY KEY,
  name       text NOT NULL,
  created_at bigint NOT NULL,
  deleted_at bigint,
  version    bigint NOT NULL DEFAULT 0,
  catalog    bigint NOT NULL
);
CREATE UNIQUE INDEX team_names ON teams (name) WHERE deleted_at IS NULL;
CREATE INDEX teams_changed ON teams (catalog);

CREATE TABLE keys (
  id         text PRIMARY KEY,
  team_id    text NOT NULL REFERENCES teams(id),
  label      text NOT NULL,
  prefix     text,
  hash       text NOT NULL UNIQUE,
  created_at bigint NOT NULL,
  revoked_at bigint,
  expires_at bigint,
  made_by    text,
  is_session integer NOT NULL DEFAULT 0,
  catalog    bigint NOT NULL
);
CREATE INDEX keys_of_team ON keys (team_id, revoked_at);
CREATE INDEX keys_made_by ON keys (made_by) WHERE made_by IS NOT NULL;
CREATE INDEX keys_changed ON keys (catalog);

CREATE TABLE capsules (
  id             text PRIMARY KEY,
  team_id        text NOT NULL REFERENCES teams(id),
  name           text,
  labels         text NOT NULL,
  status         text NOT NULL,
  revision       bigint NOT NULL,
  intent         text,
  template       text NOT NULL,
  storage        text,
  blocked_by     text,
  vcpus          integer NOT NULL,
  memory_mb      integer NOT NULL,
  disk_mb        integer NOT NULL,
  timeout_sec    bigint NOT NULL,
  created_at     bigint NOT NULL,
  last_updated   bigint NOT NULL,
  started_at     bigint,
  last_active_at bigint,
  error_reason   text,
  on_timeout     text NOT NULL,
  lifetime_sec   bigint NOT NULL,
  expires_at     bigint,
  on_expiry      text NOT NULL,
  retention_sec  bigint NOT NULL,
  auto_resume    integer NOT NULL,
  network        text,
  host           text,
  epoch          bigint NOT NULL,
  seq            bigserial,
  copy           bigint NOT NULL,
  last_host      text,
  lost_at        bigint,
  version        bigint NOT NULL
);
CREATE UNIQUE INDEX capsule_names ON capsules (team_id, name) WHERE name IS NOT NULL;
CREATE UNIQUE INDEX capsules_in_sequence ON capsules (team_id, seq);
CREATE INDEX capsules_changed ON capsules (team_id, version);
CREATE INDEX capsules_live ON capsules (team_id) INCLUDE (vcpus, memory_mb) WHERE ${liveRow};
CREATE INDEX capsules_of_host ON capsules (host, id);
CREATE INDEX capsules_on_storage ON capsules (storage) WHERE storage IS NOT NULL;

CREATE TABLE tombstones (
  id      text PRIMARY KEY,
  team_id text NOT NULL,
  version bigint NOT NULL,
  host    text,
  epoch   bigint NOT NULL,
  at      bigint NOT NULL,
  captured_as text -- storage of the template that it became
);
CREATE INDEX tombstones_changed ON tombstones (team_id, version);
CREATE INDEX tombstones_by_time ON tombstones (at);

CREATE TABLE idempotency (
  team_id    text NOT NULL,
  route      text NOT NULL,
  key        text NOT NULL,
  body_hash  text NOT NULL,
  subject    text NOT NULL,
  status     integer,
  answer     text,
  host       text NOT NULL,
  host_epoch bigint NOT NULL,
  expires_at bigint NOT NULL,
  PRIMARY KEY (team_id, route, key)
);
CREATE INDEX idempotency_by_time ON idempotency (expires_at);

CREATE TABLE templates (
  storage    text PRIMARY KEY,
  team_id    text NOT NULL REFERENCES teams(id),
  name       text NOT NULL,
  vcpus      integer NOT NULL,
  memory_mb  integer NOT NULL,
  disk_mb    integer NOT NULL,
  can_grow   integer NOT NULL,
  size_bytes bigint NOT NULL,
  created_at bigint NOT NULL,
  retired_at bigint,
  is_deleted boolean NOT NULL DEFAULT false,
  made_on    text NOT NULL,
  version    bigint NOT NULL,
  catalog    bigint NOT NULL
);
CREATE UNIQUE INDEX template_names ON templates (team_id, name) WHERE retired_at IS NULL;
CREATE INDEX templates_changed ON templates (team_id, version);
CREATE INDEX templates_in_catalog ON templates (catalog);

CREATE TABLE audit (
  seq        bigserial PRIMARY KEY,
  host       text NOT NULL,
  host_seq   bigint NOT NULL,
  at         bigint NOT NULL,
  team_id    text NOT NULL,
  key_id     text NOT NULL,
  key_name   text NOT NULL,
  address    text NOT NULL,
  action     text NOT NULL,
  capsule_id text,
  subject    text,
  status     integer NOT NULL,
  exit_code  integer,
  UNIQUE (host, host_seq)
);
CREATE INDEX audit_of_team ON audit (team_id, seq);
CREATE INDEX audit_of_capsule ON audit (team_id, capsule_id, seq) WHERE capsule_id IS NOT NULL;
`;
