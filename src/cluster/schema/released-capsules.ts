/**
 * Paused capsules that no host holds. A row of one names a checkpoint in the bucket, and has all that its last holder had of
 * it. The holder changes by release_capsule and acquire_capsule alone, each one conditional UPDATE behind the team's lock.
 * Prefixes in the bucket that a row has named are garbage once it names another, or is gone.
 */
import { capsuleColumns } from "./capsule-functions.ts";

/** Columns of capsules in PostgreSQL alone, which describe the checkpoint, and what the holder has beside its row. */
export const checkpointColumns = [
  ...["checkpoint", "checkpoint_sha256", "checkpoint_bytes", "checkpoint_at", "checkpoint_revision"],
  ...["machine", "record", "qemu_build", "format", "kept"],
];

/** Columns that neither a status copy nor a release sets: they are decided here, or never change. */
const decided = new Set(["id", "team_id", "name", "created_at", "template", "storage", "blocked_by"]);
const told = capsuleColumns.filter((name) => !decided.has(name));
export const released = [...told.filter((name) => name !== "intent"), ...checkpointColumns];
export const assigned = (names: readonly string[]) => names.map((name) => `${name} = n.${name}`).join(", ");

/** A template that is deleted blocks paused capsules here first: what the holder says before it has heard of it takes nothing back. */
export const blocked = `CASE WHEN n.intent IS NULL AND n.status IN ('paused', 'stopped', 'error')
      THEN COALESCE(n.blocked_by, c.blocked_by) ELSE n.blocked_by END`;

export const releasedCapsules = `
ALTER TABLE capsules
  ADD COLUMN checkpoint          text,
  ADD COLUMN checkpoint_sha256   text,
  ADD COLUMN checkpoint_bytes    bigint,
  ADD COLUMN checkpoint_at       bigint,
  ADD COLUMN checkpoint_revision bigint,
  ADD COLUMN machine             jsonb,
  ADD COLUMN record              jsonb,
  ADD COLUMN qemu_build          text,
  ADD COLUMN format              integer,
  ADD COLUMN kept                text;
CREATE INDEX capsules_released ON capsules (last_updated) WHERE host IS NULL;
CREATE INDEX capsules_on_checkpoint ON capsules (checkpoint) WHERE checkpoint IS NOT NULL;
CREATE INDEX idempotency_of_subject ON idempotency (subject);

CREATE TABLE garbage (
  prefix   text PRIMARY KEY,
  at       bigint NOT NULL,
  tried_at bigint
);
CREATE INDEX garbage_by_time ON garbage (at);

-- A prefix that a row names is none.
CREATE FUNCTION add_garbage(p_prefixes text[]) RETURNS void LANGUAGE sql AS $$
  INSERT INTO garbage (prefix, at) SELECT DISTINCT p, now_ms() FROM unnest(p_prefixes) AS p
    WHERE p IS NOT NULL AND NOT EXISTS (SELECT 1 FROM capsules WHERE checkpoint = p)
    ON CONFLICT (prefix) DO UPDATE SET at = now_ms(), tried_at = NULL;
$$;

CREATE OR REPLACE FUNCTION keep_key(p_keyed jsonb, p_subject text, p_host text, p_host_epoch bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE k idempotency; other idempotency;
BEGIN
  IF p_keyed IS NULL THEN RETURN; END IF;
  k := jsonb_populate_record(NULL::idempotency, p_keyed);
  SELECT * INTO other FROM idempotency WHERE team_id = k.team_id AND route = k.route AND key = k.key AND expires_at > now_ms();
  IF FOUND AND other.subject = p_subject THEN RETURN; END IF;
  IF FOUND THEN PERFORM fail('CP007', 'the Idempotency-Key was used', jsonb_build_object('body_hash', other.body_hash)); END IF;
  DELETE FROM idempotency WHERE team_id = k.team_id AND route = k.route AND key = k.key;
  k.subject := p_subject; k.expires_at := now_ms() + (p_keyed ->> 'keep_ms')::bigint;
  k.host := p_host; k.host_epoch := p_host_epoch;
  INSERT INTO idempotency SELECT k.*;
END $$;

CREATE OR REPLACE FUNCTION remove_capsule(p_id text, p_epoch bigint, p_host text, p_version bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE r capsules;
BEGIN
  DELETE FROM capsules WHERE id = p_id AND epoch = p_epoch AND host IS NOT DISTINCT FROM p_host RETURNING * INTO r;
  IF NOT FOUND THEN PERFORM fail('CP008', format('capsule %s is held by another host', p_id)); END IF;
  INSERT INTO tombstones (id, team_id, version, host, epoch, at) VALUES (p_id, r.team_id, p_version, p_host, p_epoch, now_ms());
  PERFORM add_garbage(ARRAY[r.checkpoint]);
END $$;

CREATE OR REPLACE FUNCTION copy_status(p_rows jsonb, p_host text) RETURNS bigint LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE changed bigint; listed text[];
BEGIN
  SELECT array_agg(DISTINCT value ->> 'team_id') INTO listed FROM jsonb_array_elements(p_rows);
  PERFORM 1 FROM teams WHERE id = ANY(listed) ORDER BY id FOR NO KEY UPDATE;
  UPDATE teams SET version = version + 1 WHERE id = ANY(listed);
  UPDATE capsules c SET ${assigned([...told, "copy"])}, blocked_by = ${blocked}, version = t.version, lost_at = NULL
    FROM jsonb_populate_recordset(NULL::capsules, p_rows) n JOIN teams t ON t.id = n.team_id
    WHERE c.id = n.id AND c.team_id = n.team_id AND c.host = p_host AND c.epoch = n.epoch
      AND c.copy < n.copy AND c.revision <= n.revision;
  GET DIAGNOSTICS changed = ROW_COUNT;
  RETURN changed;
END $$;

-- p_row: the capsule's columns, and those of its checkpoint; the row that acquire_capsule returned gives it back as it was. A repeat
-- finds its checkpoint in a released row of the same epoch.
CREATE FUNCTION release_capsule(p_id text, p_epoch bigint, p_host text, p_row jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE r capsules; n capsules; v bigint;
BEGIN
  n := jsonb_populate_record(NULL::capsules, p_row);
  IF n.status <> 'paused' OR n.checkpoint IS NULL OR n.checkpoint_revision IS DISTINCT FROM n.revision THEN
    PERFORM fail('CP012', format('capsule %s is not paused in the checkpoint that its release names', p_id));
  END IF;
  PERFORM require_known_place();
  v := lock_team(team_of(p_id));
  SELECT * INTO r FROM capsules WHERE id = p_id FOR NO KEY UPDATE;
  IF r.epoch < p_epoch THEN PERFORM fail('CP016', format('the database has forgotten who holds capsule %s', p_id)); END IF;
  IF r.epoch = p_epoch AND r.host IS NULL AND r.checkpoint = n.checkpoint THEN RETURN; END IF;
  IF r.epoch IS DISTINCT FROM p_epoch OR r.host IS DISTINCT FROM p_host THEN
    PERFORM fail('CP008', format('host %s does not hold capsule %s', p_host, p_id));
  END IF;
  IF r.revision > n.revision THEN
    PERFORM fail('CP009', 'a later status of the capsule is known', jsonb_build_object('revision', r.revision));
  END IF;
  n.intent := NULL;
  UPDATE capsules c SET ${assigned(released)}, intent = NULL, blocked_by = ${blocked}, host = NULL, version = v, lost_at = NULL,
    last_host = CASE WHEN c.checkpoint = n.checkpoint THEN c.last_host ELSE p_host END, copy = GREATEST(c.copy, n.copy)
    WHERE c.id = p_id;
  IF r.checkpoint <> n.checkpoint THEN PERFORM add_garbage(ARRAY[r.checkpoint]); END IF;
END $$;

-- A released capsule, or one of this host whose release had no answer: the epoch that rises makes a late release of it, and what is
-- said of its former holding, change nothing. p_intent: it is to get a VM, which the team's quotas have to allow. p_copy: the number
-- of this call, by which a repeat is known. Returns the row.
CREATE FUNCTION acquire_capsule(p_id text, p_epoch bigint, p_host text, p_host_epoch bigint, p_intent text, p_copy bigint)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE r capsules; v bigint; what text := p_intent || ' a capsule';
BEGIN
  PERFORM require_host(p_host, p_host_epoch);
  v := lock_team(team_of(p_id));
  SELECT * INTO r FROM capsules WHERE id = p_id FOR NO KEY UPDATE;
  IF r.id IS NULL THEN PERFORM fail('CP003', format('there is no capsule %s', p_id)); END IF;
  IF r.host = p_host AND r.epoch = p_epoch + 1 AND r.copy = p_copy THEN RETURN to_jsonb(r); END IF;
  IF r.epoch <> p_epoch OR r.host <> p_host THEN
    PERFORM fail('CP008', format('capsule %s is held by another host', p_id));
  END IF;
  IF p_intent IS NOT NULL THEN
    IF r.blocked_by IS NOT NULL THEN
      PERFORM fail('CP006', format('cannot %s: its template %s was deleted', what, r.blocked_by),
        jsonb_build_object('template', r.blocked_by));
    END IF;
    PERFORM require_running(what, r.team_id, r.id, r.vcpus, r.memory_mb);
  END IF;
  UPDATE capsules SET host = p_host, epoch = epoch + 1, intent = p_intent, copy = p_copy, version = v, lost_at = NULL
    WHERE id = p_id RETURNING * INTO r;
  RETURN to_jsonb(r);
END $$;
`;
