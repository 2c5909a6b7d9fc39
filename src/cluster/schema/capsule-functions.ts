/**
 * The functions that change capsules in PostgreSQL. Each may be repeated with the same arguments after its answer was lost, and then
 * succeeds again. Locks are taken in one order: team, capsule, catalog. Errors have the codes of ../failures.ts.
 */
import { columns } from "../../db/capsule-columns.ts";
import { liveRow } from "./tables.ts";

/** Columns that the holder's status copies do not set: they are decided here, or never change. */
const decided = new Set(["id", "team_id", "name", "created_at", "template", "storage"]);

/** Names of a capsule's columns in PostgreSQL. */
export const capsuleColumns = Object.values(columns).map((name) => (name === "generation" ? "revision" : name));
const copied = [...capsuleColumns.filter((name) => !decided.has(name)), "copy"];

export const capsuleFunctions = `
CREATE FUNCTION fail(p_code text, p_message text, p_detail jsonb DEFAULT '{}') RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = p_code, MESSAGE = p_message, DETAIL = p_detail::text;
END $$;

CREATE FUNCTION now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;

CREATE FUNCTION limit_of(p_name text) RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT (limits ->> p_name)::bigint FROM cluster $$;

CREATE FUNCTION next_catalog() RETURNS bigint LANGUAGE sql AS $$ UPDATE cluster SET catalog = catalog + 1 RETURNING catalog $$;

-- Its version after this change: changes of one team have an order that readers can follow.
CREATE FUNCTION lock_team(p_team text) RETURNS bigint LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE v bigint;
BEGIN
  UPDATE teams SET version = version + 1 WHERE id = p_team AND deleted_at IS NULL RETURNING version INTO v;
  IF NOT FOUND THEN PERFORM fail('CP003', 'there is no such team'); END IF;
  RETURN v;
END $$;

CREATE FUNCTION require_host(p_host text, p_host_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM hosts WHERE name = p_host AND epoch = p_host_epoch AND state = 'up';
  IF NOT FOUND THEN PERFORM fail('CP004', format('host %s is not up with epoch %s', p_host, p_host_epoch)); END IF;
END $$;

CREATE FUNCTION require_within(p_what text, p_unit text, p_used bigint, p_more bigint, p_limit bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF p_used + p_more > p_limit THEN
    PERFORM fail('CP002', format('cannot %s: the team has %s %s and may have %s', p_what, p_used, p_unit, p_limit),
      jsonb_build_object('quota', p_unit, 'used', p_used, 'limit', p_limit));
  END IF;
END $$;

CREATE FUNCTION require_running(p_what text, p_team text, p_id text, p_vcpus integer, p_memory_mb integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE used_vcpus bigint; used_memory bigint;
BEGIN
  SELECT COALESCE(SUM(vcpus), 0), COALESCE(SUM(memory_mb), 0) INTO used_vcpus, used_memory
    FROM capsules WHERE team_id = p_team AND id <> p_id AND ${liveRow};
  PERFORM require_within(p_what, 'running vCPUs', used_vcpus, p_vcpus, limit_of('running_vcpus_max'));
  PERFORM require_within(p_what, 'MiB of running memory', used_memory, p_memory_mb, limit_of('running_memory_max_mb'));
END $$;

-- p_keyed: team_id, route, key, body_hash, status, answer, keep_ms of a request with an Idempotency-Key, or NULL.
CREATE FUNCTION keep_key(p_keyed jsonb, p_subject text, p_host text, p_host_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE k idempotency; other idempotency;
BEGIN
  IF p_keyed IS NULL THEN RETURN; END IF;
  k := jsonb_populate_record(NULL::idempotency, p_keyed);
  SELECT * INTO other FROM idempotency WHERE team_id = k.team_id AND route = k.route AND key = k.key AND expires_at > now_ms();
  IF FOUND AND other.subject = p_subject THEN RETURN; END IF;
  IF FOUND THEN
    PERFORM fail('CP007', 'the Idempotency-Key was used', to_jsonb(other) - 'team_id' - 'host' - 'host_epoch');
  END IF;
  DELETE FROM idempotency WHERE team_id = k.team_id AND route = k.route AND key = k.key;
  k.subject := p_subject; k.expires_at := now_ms() + (p_keyed ->> 'keep_ms')::bigint;
  k.host := p_host; k.host_epoch := p_host_epoch;
  INSERT INTO idempotency SELECT k.*;
END $$;

CREATE FUNCTION create_capsule(p_row jsonb, p_host text, p_host_epoch bigint, p_copy bigint, p_keyed jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE r capsules; v bigint;
BEGIN
  r := jsonb_populate_record(NULL::capsules, p_row);
  PERFORM require_host(p_host, p_host_epoch);
  v := lock_team(r.team_id);
  IF EXISTS (SELECT 1 FROM capsules WHERE id = r.id AND host = p_host AND epoch = 1 AND team_id = r.team_id) THEN RETURN; END IF;
  IF EXISTS (SELECT 1 FROM tombstones WHERE id = r.id) THEN PERFORM fail('CP008', 'the capsule was destroyed'); END IF;
  PERFORM keep_key(p_keyed, r.id, p_host, p_host_epoch);
  IF r.name IS NOT NULL AND EXISTS (SELECT 1 FROM capsules WHERE team_id = r.team_id AND name = r.name) THEN
    PERFORM fail('CP001', format('the team has a capsule named %s', r.name));
  END IF;
  IF r.storage IS NOT NULL AND NOT EXISTS
    (SELECT 1 FROM templates WHERE storage = r.storage AND team_id = r.team_id AND retired_at IS NULL) THEN
    PERFORM fail('CP005', format('the template %s was replaced or deleted meanwhile', r.template));
  END IF;
  PERFORM require_within('create a capsule', 'capsules', (SELECT COUNT(*) FROM capsules WHERE team_id = r.team_id), 1,
    limit_of('capsules_max'));
  PERFORM require_running('create a capsule', r.team_id, r.id, r.vcpus, r.memory_mb);
  r.host := p_host; r.epoch := 1; r.copy := p_copy; r.version := v; r.seq := nextval('capsules_seq_seq');
  INSERT INTO capsules SELECT r.*;
END $$;

CREATE FUNCTION held_capsule(p_id text, p_epoch bigint, p_host text) RETURNS capsules LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE r capsules;
BEGIN
  SELECT * INTO r FROM capsules WHERE id = p_id AND epoch = p_epoch AND host = p_host FOR NO KEY UPDATE;
  IF NOT FOUND THEN PERFORM fail('CP008', format('host %s does not hold capsule %s', p_host, p_id)); END IF;
  RETURN r;
END $$;

CREATE FUNCTION team_of(p_id text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE t text;
BEGIN
  SELECT team_id INTO t FROM capsules WHERE id = p_id;
  IF NOT FOUND THEN PERFORM fail('CP003', format('there is no capsule %s', p_id)); END IF;
  RETURN t;
END $$;

CREATE FUNCTION admit_resume(p_id text, p_epoch bigint, p_host text, p_host_epoch bigint, p_intent text, p_copy bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE r capsules; v bigint; what text := p_intent || ' a capsule';
BEGIN
  PERFORM require_host(p_host, p_host_epoch);
  v := lock_team(team_of(p_id));
  r := held_capsule(p_id, p_epoch, p_host);
  IF r.copy = p_copy THEN RETURN; END IF;
  IF r.copy > p_copy THEN PERFORM fail('CP009', 'a later status of the capsule is known'); END IF;
  IF r.blocked_by IS NOT NULL THEN
    PERFORM fail('CP006', format('cannot %s: its template %s was deleted', what, r.blocked_by),
      jsonb_build_object('template', r.blocked_by));
  END IF;
  PERFORM require_running(what, r.team_id, r.id, r.vcpus, r.memory_mb);
  UPDATE capsules SET intent = p_intent, copy = p_copy, version = v WHERE id = p_id;
END $$;

CREATE FUNCTION rename_capsule(p_id text, p_epoch bigint, p_host text, p_name text, p_copy bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE r capsules; v bigint;
BEGIN
  v := lock_team(team_of(p_id));
  r := held_capsule(p_id, p_epoch, p_host);
  IF r.copy = p_copy AND r.name IS NOT DISTINCT FROM p_name THEN RETURN; END IF;
  IF r.copy > p_copy THEN PERFORM fail('CP009', 'a later status of the capsule is known'); END IF;
  IF EXISTS (SELECT 1 FROM capsules WHERE team_id = r.team_id AND name = p_name AND id <> p_id) THEN
    PERFORM fail('CP001', format('the team has a capsule named %s', p_name));
  END IF;
  UPDATE capsules SET name = p_name, copy = p_copy, version = v WHERE id = p_id;
END $$;

CREATE FUNCTION remove_capsule(p_id text, p_epoch bigint, p_host text, p_version bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE r capsules;
BEGIN
  DELETE FROM capsules WHERE id = p_id AND epoch = p_epoch AND host IS NOT DISTINCT FROM p_host RETURNING * INTO r;
  IF NOT FOUND THEN PERFORM fail('CP008', format('capsule %s is held by another host', p_id)); END IF;
  INSERT INTO tombstones (id, team_id, version, host, epoch, at) VALUES (p_id, r.team_id, p_version, p_host, p_epoch, now_ms());
END $$;

CREATE FUNCTION delete_capsule(p_id text, p_epoch bigint, p_host text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v bigint;
BEGIN
  IF EXISTS (SELECT 1 FROM tombstones WHERE id = p_id) THEN RETURN; END IF;
  v := lock_team(team_of(p_id));
  IF EXISTS (SELECT 1 FROM tombstones WHERE id = p_id) THEN RETURN; END IF;
  PERFORM remove_capsule(p_id, p_epoch, p_host, v);
END $$;

-- A create whose capsule has no row on its host: a repeat with its Idempotency-Key makes another one.
CREATE FUNCTION undo_create(p_id text, p_epoch bigint, p_host text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM delete_capsule(p_id, p_epoch, p_host);
  DELETE FROM idempotency WHERE subject = p_id;
END $$;

-- Copies of rows of several teams at once; a copy that is older than the one known, or of another holder, changes nothing. The names of
-- columns are those of capsules. Returns how many rows were changed.
CREATE FUNCTION copy_status(p_rows jsonb, p_host text) RETURNS bigint LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE changed bigint; listed text[];
BEGIN
  SELECT array_agg(DISTINCT value ->> 'team_id') INTO listed FROM jsonb_array_elements(p_rows);
  PERFORM 1 FROM teams WHERE id = ANY(listed) ORDER BY id FOR NO KEY UPDATE;
  UPDATE teams SET version = version + 1 WHERE id = ANY(listed);
  UPDATE capsules c SET ${copied.map((name) => `${name} = r.${name}`).join(", ")}, version = t.version, lost_at = NULL
    FROM jsonb_populate_recordset(NULL::capsules, p_rows) r JOIN teams t ON t.id = r.team_id
    WHERE c.id = r.id AND c.team_id = r.team_id AND c.host = p_host AND c.epoch = r.epoch
      AND c.copy < r.copy AND c.revision <= r.revision;
  GET DIAGNOSTICS changed = ROW_COUNT;
  RETURN changed;
END $$;
`;
