/**
 * A step: a cluster whose last host leaves (docs/adr/0128). That host first gathers what no host holds. From its leave on nothing is decided
 * in the cluster, and no host joins it.
 */
export const endedCluster = `
-- ended_as: a random text, which the folder of the last host has too.
ALTER TABLE cluster ADD COLUMN ended_at bigint, ADD COLUMN ended_as text;
-- gathers: the host, the last one, brings here what is in the bucket alone, and releases nothing.
ALTER TABLE hosts ADD COLUMN gathers boolean;

CREATE FUNCTION require_last(p_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM hosts WHERE name <> p_name AND state <> 'gone') THEN
    PERFORM fail('CP012', format('host %s is not the last one of its cluster', p_name));
  END IF;
END $$;

-- Until another host has joined, or the operator resumes or drains the host.
CREATE FUNCTION begin_gathering(p_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM require_known_place();
  PERFORM require_last(p_name);
  UPDATE hosts SET gathers = true, state = 'up', drain_until = NULL WHERE name = p_name AND state <> 'gone';
  IF NOT FOUND THEN PERFORM fail('CP003', format('the cluster has no host %s', p_name)); END IF;
END $$;

CREATE FUNCTION is_gathering(p_name text) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT COALESCE((SELECT gathers FROM hosts WHERE name = p_name), false)
    AND NOT EXISTS (SELECT 1 FROM hosts WHERE name <> p_name AND state <> 'gone')
$$;

ALTER FUNCTION heartbeat(text, bigint, text, jsonb) RENAME TO count_heartbeat;
CREATE FUNCTION heartbeat(p_name text, p_epoch bigint, p_nonce text, p_load jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  RETURN count_heartbeat(p_name, p_epoch, p_nonce, p_load) || jsonb_build_object('isGathering', is_gathering(p_name));
END $$;

ALTER FUNCTION begin_drain(text, bigint) RENAME TO begin_moves;
CREATE FUNCTION begin_drain(p_name text, p_ms bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  UPDATE hosts SET gathers = NULL WHERE name = p_name;
  RETURN begin_moves(p_name, p_ms);
END $$;

-- Of the last host, whose server has ended and whose folder has all that it gets. Locks: host, teams, cluster; a create or a join that was
-- sent before is seen, and one that comes later is refused.
CREATE FUNCTION end_cluster(p_name text, p_nonce text, p_as text) RETURNS void LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE h hosts;
BEGIN
  IF EXISTS (SELECT 1 FROM cluster WHERE ended_as = p_as) THEN RETURN; END IF;
  PERFORM require_known_place();
  SELECT * INTO h FROM hosts WHERE name = p_name FOR UPDATE;
  IF NOT FOUND OR h.nonce <> p_nonce THEN PERFORM fail('CP003', format('the cluster has no host %s of this data folder', p_name)); END IF;
  IF h.state = 'gone' THEN PERFORM fail('CP013', format('host %s was declared gone', p_name)); END IF;
  LOCK TABLE teams IN SHARE ROW EXCLUSIVE MODE;
  PERFORM 1 FROM cluster FOR UPDATE;
  PERFORM require_last(p_name);
  IF EXISTS (SELECT 1 FROM capsules WHERE host IS NULL) THEN
    PERFORM fail('CP012', 'there are capsules that no host holds');
  END IF;
  INSERT INTO left_hosts (nonce, name, epoch, at) VALUES (h.nonce, h.name, h.epoch, now_ms());
  DELETE FROM hosts WHERE name = p_name;
  UPDATE cluster SET ended_at = now_ms(), ended_as = p_as;
END $$;

CREATE FUNCTION require_not_ended() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM cluster WHERE ended_at IS NOT NULL) THEN
    PERFORM fail('CP019', 'the cluster has ended, since its last host has left it');
  END IF;
END $$;

ALTER FUNCTION require_known_place() RENAME TO require_own_place;
CREATE FUNCTION require_known_place() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM require_own_place();
  PERFORM require_not_ended();
END $$;

ALTER FUNCTION join_host(text, text, text, bigint, text, integer, text, integer, jsonb) RENAME TO admit_host;
CREATE FUNCTION join_host(p_name text, p_nonce text, p_place text, p_known_epoch bigint, p_address text, p_port integer,
  p_version text, p_format integer, p_machine jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM cluster FOR SHARE;
  PERFORM require_not_ended();
  RETURN admit_host(p_name, p_nonce, p_place, p_known_epoch, p_address, p_port, p_version, p_format, p_machine);
END $$;
`;
