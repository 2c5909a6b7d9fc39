/** Hosts that are drained: they take no capsules, and what they hold goes on there. */
export const drains = `
-- The host takes a capsule.
CREATE OR REPLACE FUNCTION require_host(p_host text, p_host_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE s text;
BEGIN
  SELECT state INTO s FROM hosts WHERE name = p_host AND epoch = p_host_epoch;
  IF s = 'up' THEN RETURN; END IF;
  IF s IN ('draining', 'drained') THEN PERFORM fail('CP004', format('host %s is drained, and takes no capsules', p_host)); END IF;
  PERFORM fail('CP004', format('host %s is not up with epoch %s', p_host, p_host_epoch));
END $$;

-- The host changes a capsule that it holds.
CREATE FUNCTION require_holder(p_host text, p_host_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM hosts WHERE name = p_host AND epoch = p_host_epoch AND state IN ('up', 'draining', 'drained');
  IF NOT FOUND THEN PERFORM fail('CP004', format('host %s is not up with epoch %s', p_host, p_host_epoch)); END IF;
END $$;

CREATE OR REPLACE FUNCTION admit_resume(p_id text, p_epoch bigint, p_host text, p_host_epoch bigint, p_intent text, p_copy bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE r capsules; v bigint; what text := p_intent || ' a capsule';
BEGIN
  PERFORM require_holder(p_host, p_host_epoch);
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

CREATE OR REPLACE FUNCTION capture_capsule(p_id text, p_epoch bigint, p_host text, p_host_epoch bigint, p_template jsonb,
  p_overwrites boolean, p_keyed jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE t templates; old templates; v bigint;
BEGIN
  t := jsonb_populate_record(NULL::templates, p_template);
  -- An earlier call had no answer: one that has run, or one that runs at this moment.
  IF EXISTS (SELECT 1 FROM templates WHERE storage = t.storage AND team_id = t.team_id) THEN RETURN; END IF;
  v := lock_team(t.team_id);
  IF EXISTS (SELECT 1 FROM templates WHERE storage = t.storage AND team_id = t.team_id) THEN RETURN; END IF;
  PERFORM require_holder(p_host, p_host_epoch);
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

-- Returns the host's state.
CREATE FUNCTION drain_host(p_name text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE h hosts;
BEGIN
  SELECT * INTO h FROM hosts WHERE name = p_name FOR NO KEY UPDATE;
  IF NOT FOUND THEN PERFORM fail('CP003', format('the cluster has no host %s', p_name)); END IF;
  IF h.state = 'gone' THEN PERFORM fail('CP013', format('host %s was declared gone', p_name)); END IF;
  IF h.state = 'up' THEN UPDATE hosts SET state = 'draining' WHERE name = p_name; RETURN 'draining'; END IF;
  RETURN h.state;
END $$;

-- A host that holds nothing any more is drained; one that holds something again, by a create that came late, is being drained.
CREATE FUNCTION follow_drain(p_name text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE s text := CASE WHEN EXISTS (SELECT 1 FROM capsules WHERE host = p_name) THEN 'draining' ELSE 'drained' END;
BEGIN
  UPDATE hosts SET state = s WHERE name = p_name AND state IN ('draining', 'drained') AND state <> s;
END $$;
`;
