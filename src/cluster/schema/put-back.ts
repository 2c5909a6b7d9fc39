/**
 * A database that was put back: a replica that was promoted, or a dump that was restored, and may have forgotten what it had committed. Its
 * place in time, PostgreSQL's system identifier and timeline, is another one than the cluster's then. Until every host has told what it
 * holds and has destroyed, and an operator confirms the place, nothing is decided.
 */
import { capsuleColumns } from "./capsule-functions.ts";

const changing = [...capsuleColumns.filter((name) => !["id", "team_id", "name"].includes(name)), "copy"];
const setTo = (row: string) => changing.map((name) => `${name} = ${row}.${name}`).join(", ");

export const putBack = `
CREATE TABLE assertions (
  place text NOT NULL,
  id    text NOT NULL,
  what  text NOT NULL,
  host  text NOT NULL,
  PRIMARY KEY (place, id, what)
);

-- pg_control_checkpoint() would name the old timeline until the next checkpoint.
CREATE FUNCTION database_place() RETURNS text LANGUAGE sql VOLATILE AS $$
  SELECT system_identifier::text || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) FROM pg_control_system()
$$;

CREATE FUNCTION is_own_place() RETURNS boolean LANGUAGE sql VOLATILE AS $$
  SELECT EXISTS (SELECT 1 FROM cluster WHERE system_id || '/' || timeline = database_place())
$$;

CREATE FUNCTION require_known_place() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF COALESCE(current_setting('capsule.asserts', true), '') <> 'on' AND NOT is_own_place() THEN
    PERFORM fail('CP016', 'the cluster''s database was put back, which its operator has not confirmed yet');
  END IF;
END $$;

CREATE FUNCTION require_place() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM require_known_place();
  RETURN NEW;
END $$;

-- Whatever decides: creates and deletes, acquires and new names, keys, teams and templates.
CREATE TRIGGER known_place BEFORE INSERT OR DELETE ON capsules FOR EACH STATEMENT EXECUTE FUNCTION require_place();
CREATE TRIGGER known_place_of_change BEFORE UPDATE ON capsules FOR EACH ROW
  WHEN (OLD.epoch <> NEW.epoch OR OLD.name IS DISTINCT FROM NEW.name) EXECUTE FUNCTION require_place();
CREATE TRIGGER known_place BEFORE INSERT OR UPDATE OR DELETE ON keys FOR EACH STATEMENT EXECUTE FUNCTION require_place();
CREATE TRIGGER known_place BEFORE INSERT OR UPDATE OR DELETE ON templates FOR EACH STATEMENT EXECUTE FUNCTION require_place();
CREATE TRIGGER known_place BEFORE INSERT OR UPDATE OF deleted_at ON teams FOR EACH STATEMENT EXECUTE FUNCTION require_place();

-- Returns the catalog's number, all hosts, and the database's place. A database that was put back may know an earlier life of the host, or
-- none: it goes on with this one.
CREATE OR REPLACE FUNCTION heartbeat(p_name text, p_epoch bigint, p_nonce text, p_load jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE answer jsonb; is_own boolean := is_own_place();
BEGIN
  UPDATE hosts SET heartbeat = heartbeat + 1, load = p_load
    WHERE name = p_name AND epoch = p_epoch AND nonce = p_nonce AND state <> 'gone';
  IF NOT FOUND AND NOT is_own THEN
    INSERT INTO hosts (name, epoch, nonce, place, address, port, version, format, joined_at, load, heartbeat)
      VALUES (p_name, p_epoch, p_nonce, '', '', 0, '', 0, now_ms(), p_load, 1)
      ON CONFLICT (name) DO UPDATE SET epoch = p_epoch, heartbeat = hosts.heartbeat + 1, load = p_load
      WHERE hosts.nonce = p_nonce AND hosts.epoch < p_epoch AND hosts.state <> 'gone';
  END IF;
  IF NOT EXISTS (SELECT 1 FROM hosts WHERE name = p_name AND epoch = p_epoch AND nonce = p_nonce AND state <> 'gone') THEN
    IF EXISTS (SELECT 1 FROM hosts WHERE name = p_name AND state = 'gone') THEN
      PERFORM fail('CP004', format('host %s was declared gone', p_name));
    END IF;
    PERFORM fail('CP004', format('another daemon has joined as host %s', p_name));
  END IF;
  SELECT jsonb_build_object('catalog', (SELECT catalog FROM cluster), 'hosts', jsonb_agg(jsonb_build_object(
    'name', name, 'epoch', epoch, 'state', state, 'heartbeat', heartbeat, 'address', address, 'port', port,
    'version', version, 'load', load) ORDER BY name), 'place', database_place(), 'isOwnPlace', is_own) INTO answer FROM hosts;
  RETURN answer;
END $$;

-- For the rest of the transaction. Versions of the teams rise: changes that were told before may be told again.
CREATE FUNCTION begin_asserting(p_host text, p_host_epoch bigint, p_teams text[]) RETURNS void LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
BEGIN
  PERFORM 1 FROM hosts WHERE name = p_host AND epoch = p_host_epoch AND state <> 'gone';
  IF NOT FOUND THEN PERFORM fail('CP004', format('another daemon has joined as host %s', p_host)); END IF;
  IF is_own_place() THEN PERFORM fail('CP017', 'the place of the database was confirmed meanwhile'); END IF;
  PERFORM set_config('capsule.asserts', 'on', true);
  PERFORM 1 FROM teams WHERE id = ANY(p_teams) ORDER BY id FOR NO KEY UPDATE;
  UPDATE teams SET version = version + 1 WHERE id = ANY(p_teams);
END $$;

CREATE FUNCTION note_assertion(p_id text, p_what text, p_host text) RETURNS void LANGUAGE sql AS $$
  INSERT INTO assertions (place, id, what, host) VALUES (database_place(), p_id, p_what, p_host) ON CONFLICT DO NOTHING;
$$;

-- p_teams: id, name and created_at of teams that this database may have forgotten. A name that another team has gets the id behind it.
CREATE FUNCTION assert_teams(p_host text, p_host_epoch bigint, p_teams jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE t teams;
BEGIN
  PERFORM begin_asserting(p_host, p_host_epoch, '{}');
  FOR t IN SELECT * FROM jsonb_populate_recordset(NULL::teams, p_teams) LOOP
    CONTINUE WHEN EXISTS (SELECT 1 FROM teams WHERE id = t.id);
    INSERT INTO teams (id, name, created_at, catalog) VALUES (t.id, t.name, t.created_at, 0) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
      INSERT INTO teams (id, name, created_at, catalog) VALUES (t.id, t.name || '-' || t.id, t.created_at, 0) ON CONFLICT DO NOTHING;
    END IF;
    UPDATE teams SET catalog = next_catalog() WHERE id = t.id;
    PERFORM note_assertion(t.id, 'team', p_host);
  END LOOP;
END $$;

-- Capsules that the host has destroyed.
CREATE FUNCTION assert_destroyed(p_host text, p_host_epoch bigint, p_ids text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE r capsules;
BEGIN
  PERFORM begin_asserting(p_host, p_host_epoch, ARRAY(SELECT DISTINCT team_id FROM capsules WHERE id = ANY(p_ids)));
  FOR r IN DELETE FROM capsules WHERE id = ANY(p_ids) RETURNING * LOOP
    INSERT INTO tombstones (id, team_id, version, host, epoch, at)
      SELECT r.id, r.team_id, version, p_host, r.epoch, now_ms() FROM teams WHERE id = r.team_id ON CONFLICT DO NOTHING;
    PERFORM add_garbage(ARRAY[r.checkpoint]);
    PERFORM note_assertion(r.id, 'destroyed', p_host);
  END LOOP;
END $$;

-- p_rows: the host's rows, with epoch and copy. A name that another capsule has by this database is given at a later call, once that
-- one's host has told otherwise. Returns the ids of rows that another host holds with this epoch, or any with a later one: there are none.
CREATE FUNCTION assert_held(p_host text, p_host_epoch bigint, p_rows jsonb) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE r capsules; c capsules; odd text[] := '{}';
BEGIN
  PERFORM begin_asserting(p_host, p_host_epoch, ARRAY(SELECT DISTINCT value ->> 'team_id' FROM jsonb_array_elements(p_rows)));
  FOR r IN SELECT * FROM jsonb_populate_recordset(NULL::capsules, p_rows) LOOP
    CONTINUE WHEN EXISTS (SELECT 1 FROM tombstones WHERE id = r.id);
    IF EXISTS (SELECT 1 FROM capsules WHERE team_id = r.team_id AND name = r.name AND id <> r.id) THEN r.name := NULL; END IF;
    SELECT * INTO c FROM capsules WHERE id = r.id FOR NO KEY UPDATE;
    IF c.id IS NULL THEN
      SELECT version INTO r.version FROM teams WHERE id = r.team_id;
      r.host := p_host; r.seq := nextval('capsules_seq_seq');
      INSERT INTO capsules SELECT r.*;
      PERFORM note_assertion(r.id, 'held', p_host);
    ELSIF c.epoch < r.epoch THEN
      UPDATE capsules SET ${setTo("r")}, name = r.name, host = p_host, epoch = r.epoch, lost_at = NULL,
        version = (SELECT version FROM teams WHERE id = r.team_id) WHERE id = r.id;
      PERFORM note_assertion(r.id, 'held', p_host);
    ELSIF c.epoch = r.epoch AND c.host = p_host THEN
      UPDATE capsules SET name = r.name, version = (SELECT version FROM teams WHERE id = r.team_id)
        WHERE id = r.id AND name IS DISTINCT FROM r.name;
    ELSE odd := odd || r.id;
    END IF;
  END LOOP;
  RETURN odd;
END $$;

-- Templates whose files the host has. One of the same name that is older has been replaced by it.
CREATE FUNCTION assert_templates(p_host text, p_host_epoch bigint, p_templates jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE t templates;
BEGIN
  PERFORM begin_asserting(p_host, p_host_epoch, ARRAY(SELECT DISTINCT value ->> 'team_id' FROM jsonb_array_elements(p_templates)));
  FOR t IN SELECT * FROM jsonb_populate_recordset(NULL::templates, p_templates) LOOP
    UPDATE templates SET retired_at = t.retired_at, is_deleted = true, catalog = next_catalog(),
        version = (SELECT version FROM teams WHERE id = t.team_id)
      WHERE storage = t.storage AND retired_at IS NULL AND t.retired_at IS NOT NULL;
    CONTINUE WHEN t.retired_at IS NOT NULL OR EXISTS (SELECT 1 FROM templates WHERE storage = t.storage)
      OR EXISTS (SELECT 1 FROM templates WHERE team_id = t.team_id AND name = t.name AND retired_at IS NULL AND created_at >= t.created_at);
    SELECT version INTO t.version FROM teams WHERE id = t.team_id;
    t.catalog := next_catalog(); t.made_on := p_host; t.is_deleted := false;
    UPDATE templates SET retired_at = t.created_at, version = t.version, catalog = t.catalog
      WHERE team_id = t.team_id AND name = t.name AND retired_at IS NULL;
    INSERT INTO templates SELECT t.*;
    PERFORM note_assertion(t.storage, 'template', p_host);
  END LOOP;
END $$;

-- The host has told all that it had to at this place.
CREATE FUNCTION end_asserting(p_host text, p_host_epoch bigint, p_place text) RETURNS void LANGUAGE sql AS $$
  UPDATE hosts SET asserted_timeline = p_place WHERE name = p_host AND epoch = p_host_epoch AND database_place() = p_place
$$;

-- Returns the place that is the cluster's now, with the hosts that have not told what they hold where it is not confirmed for that.
CREATE FUNCTION confirm_place() RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE now_at text := database_place(); silent text[];
BEGIN
  PERFORM 1 FROM cluster FOR UPDATE;
  IF is_own_place() THEN RETURN jsonb_build_object('place', now_at, 'was', 'own'); END IF;
  SELECT array_agg(name ORDER BY name) INTO silent FROM hosts WHERE state <> 'gone' AND asserted_timeline IS DISTINCT FROM now_at;
  IF silent IS NOT NULL THEN RETURN jsonb_build_object('place', now_at, 'was', 'other', 'silent', to_jsonb(silent)); END IF;
  UPDATE cluster SET system_id = split_part(now_at, '/', 1), timeline = split_part(now_at, '/', 2), catalog = catalog + 1;
  RETURN jsonb_build_object('place', now_at, 'was', 'confirmed');
END $$;
`;
