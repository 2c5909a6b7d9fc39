/**
 * The functions of hosts, teams, keys and templates in PostgreSQL. A change that every host follows gets the next number of the
 * catalog, whose row is locked until the commit: a host that has read up to a number has missed none below it.
 */

export const catalogFunctions = `
CREATE FUNCTION join_host(p_name text, p_nonce text, p_place text, p_known_epoch bigint, p_address text, p_port integer,
  p_version text, p_format integer, p_machine jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE h hosts; e bigint;
BEGIN
  INSERT INTO hosts (name, epoch, nonce, place, address, port, version, format, joined_at)
    VALUES (p_name, 0, p_nonce, p_place, '', 0, '', 0, now_ms()) ON CONFLICT (name) DO NOTHING;
  SELECT * INTO h FROM hosts WHERE name = p_name FOR NO KEY UPDATE;
  IF h.nonce <> p_nonce THEN
    PERFORM fail('CP014', format('another data folder has joined as host %s', p_name));
  ELSIF h.state = 'gone' THEN
    PERFORM fail('CP013', format('host %s was declared gone', p_name));
  ELSIF h.place <> '' AND h.place <> p_place THEN
    PERFORM fail('CP015', format('the data folder of host %s is a copy, or was moved', p_name));
  END IF;
  UPDATE hosts SET place = p_place, epoch = GREATEST(epoch, p_known_epoch) + 1, address = p_address, port = p_port, version = p_version,
    format = p_format, machine = p_machine, heartbeat = heartbeat + 1 WHERE name = p_name RETURNING epoch INTO e;
  RETURN e;
END $$;

-- Returns the catalog's number and all hosts.
CREATE FUNCTION heartbeat(p_name text, p_epoch bigint, p_nonce text, p_load jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE answer jsonb;
BEGIN
  UPDATE hosts SET heartbeat = heartbeat + 1, load = p_load WHERE name = p_name AND epoch = p_epoch AND nonce = p_nonce;
  IF NOT FOUND THEN PERFORM fail('CP004', format('another daemon has joined as host %s', p_name)); END IF;
  SELECT jsonb_build_object('catalog', (SELECT catalog FROM cluster), 'hosts', jsonb_agg(jsonb_build_object(
    'name', name, 'epoch', epoch, 'state', state, 'heartbeat', heartbeat, 'address', address, 'port', port,
    'version', version, 'load', load) ORDER BY name)) INTO answer FROM hosts;
  RETURN answer;
END $$;

CREATE FUNCTION ensure_team(p_id text, p_name text, p_at bigint) RETURNS teams LANGUAGE plpgsql AS $$
DECLARE t teams;
BEGIN
  SELECT * INTO t FROM teams WHERE name = p_name AND deleted_at IS NULL;
  IF FOUND THEN RETURN t; END IF;
  INSERT INTO teams (id, name, created_at, catalog) VALUES (p_id, p_name, p_at, 0) ON CONFLICT DO NOTHING;
  IF FOUND THEN UPDATE teams SET catalog = next_catalog() WHERE id = p_id; END IF;
  SELECT * INTO t FROM teams WHERE name = p_name AND deleted_at IS NULL;
  RETURN t;
END $$;

CREATE FUNCTION delete_team(p_id text, p_at bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM teams WHERE id = p_id AND deleted_at IS NOT NULL) THEN RETURN; END IF;
  PERFORM lock_team(p_id);
  IF EXISTS (SELECT 1 FROM capsules WHERE team_id = p_id)
    OR EXISTS (SELECT 1 FROM templates WHERE team_id = p_id AND retired_at IS NULL) THEN
    PERFORM fail('CP012', 'it has capsules or templates');
  END IF;
  UPDATE keys SET revoked_at = p_at, catalog = next_catalog() WHERE team_id = p_id AND revoked_at IS NULL;
  DELETE FROM idempotency WHERE team_id = p_id;
  UPDATE teams SET deleted_at = p_at, catalog = next_catalog() WHERE id = p_id;
END $$;

-- p_key: the columns of keys. p_most: of the team's live keys; NULL: any number, for the operator. Revoked keys go after p_revoked_keep ms.
CREATE FUNCTION add_key(p_key jsonb, p_most integer, p_revoked_keep bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE k keys;
BEGIN
  k := jsonb_populate_record(NULL::keys, p_key);
  PERFORM lock_team(k.team_id);
  IF EXISTS (SELECT 1 FROM keys WHERE id = k.id AND hash = k.hash) THEN RETURN; END IF;
  IF k.made_by IS NOT NULL AND NOT EXISTS (SELECT 1 FROM keys WHERE id = k.made_by AND team_id = k.team_id
    AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now_ms())) THEN
    PERFORM fail('CP011', 'the API key is no longer valid');
  END IF;
  DELETE FROM keys WHERE team_id = k.team_id AND (expires_at <= now_ms() OR revoked_at <= now_ms() - p_revoked_keep);
  IF (SELECT COUNT(*) FROM keys WHERE team_id = k.team_id AND revoked_at IS NULL) >= p_most THEN
    PERFORM fail('CP002', format('cannot make a key: the team has %s already', p_most));
  END IF;
  k.catalog := next_catalog();
  k.is_session := COALESCE(k.is_session, 0);
  INSERT INTO keys SELECT k.*;
END $$;

-- A key with all that it made, or, with p_keep_made, the key alone: what it made then counts as made by its own maker.
CREATE FUNCTION revoke_key(p_id text, p_at bigint, p_keep_made boolean) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE k keys; n bigint; ended text[];
BEGIN
  SELECT * INTO k FROM keys WHERE id = p_id;
  IF NOT FOUND THEN RETURN '{}'; END IF;
  PERFORM lock_team(k.team_id);
  n := next_catalog();
  IF p_keep_made THEN
    UPDATE keys SET made_by = k.made_by, catalog = n WHERE made_by = p_id AND k.revoked_at IS NULL;
  END IF;
  WITH RECURSIVE made (id) AS (SELECT p_id UNION SELECT b.id FROM keys b JOIN made ON b.made_by = made.id)
  UPDATE keys SET revoked_at = p_at, catalog = n WHERE revoked_at IS NULL AND id IN (SELECT id FROM made);
  -- An earlier call with the same time has revoked them already.
  WITH RECURSIVE made (id) AS (SELECT p_id UNION SELECT b.id FROM keys b JOIN made ON b.made_by = made.id)
  SELECT COALESCE(array_agg(keys.id), '{}') INTO ended FROM keys JOIN made USING (id) WHERE keys.revoked_at = p_at;
  RETURN ended;
END $$;

-- The capsule becomes the template with the columns of p_template, and is gone.
CREATE FUNCTION capture_capsule(p_id text, p_epoch bigint, p_host text, p_host_epoch bigint, p_template jsonb,
  p_overwrites boolean, p_keyed jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE t templates; old templates; v bigint;
BEGIN
  t := jsonb_populate_record(NULL::templates, p_template);
  -- An earlier call had no answer: one that has run, or one that runs at this moment.
  IF EXISTS (SELECT 1 FROM templates WHERE storage = t.storage AND team_id = t.team_id) THEN RETURN; END IF;
  v := lock_team(t.team_id);
  IF EXISTS (SELECT 1 FROM templates WHERE storage = t.storage AND team_id = t.team_id) THEN RETURN; END IF;
  PERFORM require_host(p_host, p_host_epoch);
  PERFORM held_capsule(p_id, p_epoch, p_host);
  PERFORM keep_key(p_keyed, t.storage, p_host, p_host_epoch);
  SELECT * INTO old FROM templates WHERE team_id = t.team_id AND name = t.name AND retired_at IS NULL;
  IF FOUND AND NOT p_overwrites THEN
    PERFORM fail('CP010', format('the name %s is taken; overwrite=true replaces that template', t.name));
  END IF;
  PERFORM require_within('capture a capsule', 'templates',
    (SELECT COUNT(*) FROM templates WHERE team_id = t.team_id AND retired_at IS NULL),
    CASE WHEN old.storage IS NULL THEN 1 ELSE 0 END, limit_of('templates_max'));
  PERFORM remove_capsule(p_id, p_epoch, p_host, v);
  UPDATE tombstones SET captured_as = t.storage WHERE id = p_id;
  t.catalog := next_catalog();
  UPDATE templates SET retired_at = t.created_at, version = v, catalog = t.catalog WHERE storage = old.storage;
  t.version := v; t.made_on := p_host; t.is_deleted := false;
  INSERT INTO templates SELECT t.*;
END $$;

CREATE FUNCTION retire_template(p_storage text, p_at bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE t templates; v bigint;
BEGIN
  SELECT * INTO t FROM templates WHERE storage = p_storage;
  IF NOT FOUND THEN PERFORM fail('CP003', 'there is no such template'); END IF;
  v := lock_team(t.team_id);
  UPDATE capsules SET blocked_by = t.name, version = v WHERE storage = p_storage AND intent IS NULL
    AND status IN ('paused', 'stopped', 'error') AND blocked_by IS NULL;
  UPDATE templates SET retired_at = p_at, is_deleted = true, version = v, catalog = next_catalog()
    WHERE storage = p_storage AND retired_at IS NULL;
END $$;

-- What explains nothing any longer, a bounded number of each kind; what another host removes at this moment is left to it.
-- Milliseconds; the time is the database's, since a host's clock may be wrong.
CREATE FUNCTION forget(p_tombstones_keep bigint, p_audit_keep bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM tombstones WHERE id IN
    (SELECT id FROM tombstones WHERE at < now_ms() - p_tombstones_keep ORDER BY at LIMIT 100 FOR UPDATE SKIP LOCKED);
  DELETE FROM audit WHERE seq IN
    (SELECT seq FROM audit WHERE at < now_ms() - p_audit_keep ORDER BY seq LIMIT 1000 FOR UPDATE SKIP LOCKED);
  DELETE FROM idempotency WHERE ctid IN
    (SELECT ctid FROM idempotency WHERE expires_at < now_ms() ORDER BY expires_at LIMIT 100 FOR UPDATE SKIP LOCKED);
END $$;
`;
