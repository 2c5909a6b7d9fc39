/**
 * A step: hosts that have left (docs/adr/0127). The row of such a host is gone, and its folder's nonce is kept: a copy of the folder does
 * not become that host again. The next host of its name goes on with its epochs, and sends its audit entries under another name.
 */
export const leftHosts = `
CREATE TABLE left_hosts (
  nonce text PRIMARY KEY,
  name  text NOT NULL,
  epoch bigint NOT NULL,
  at    bigint NOT NULL
);
CREATE INDEX left_hosts_by_name ON left_hosts (name);

-- Templates that would be lost with the host: the bucket does not have them.
CREATE FUNCTION templates_only_on(p_name text) RETURNS SETOF templates LANGUAGE sql STABLE AS $$
  SELECT t.* FROM templates t WHERE t.made_on = p_name AND t.retired_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM artifacts WHERE kind = 'template' AND key = t.storage)
$$;

-- Of a drained host whose server has ended, and which is not the last one. Locks: host, teams; a create or an acquire of before that is
-- still under way ends first, and of two hosts one leaves after the other.
CREATE FUNCTION leave_host(p_name text, p_nonce text) RETURNS void LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE h hosts; n bigint;
BEGIN
  IF EXISTS (SELECT 1 FROM left_hosts WHERE nonce = p_nonce) THEN RETURN; END IF;
  PERFORM require_known_place();
  SELECT * INTO h FROM hosts WHERE name = p_name FOR UPDATE;
  IF NOT FOUND OR h.nonce <> p_nonce THEN PERFORM fail('CP003', format('the cluster has no host %s of this data folder', p_name)); END IF;
  IF h.state = 'gone' THEN PERFORM fail('CP013', format('host %s was declared gone', p_name)); END IF;
  LOCK TABLE teams IN SHARE ROW EXCLUSIVE MODE;
  IF NOT EXISTS (SELECT 1 FROM hosts WHERE name <> p_name AND state <> 'gone') THEN
    PERFORM fail('CP012', format('host %s is the last one of its cluster', p_name));
  END IF;
  IF h.state = 'up' THEN PERFORM fail('CP012', format('host %s takes capsules', p_name)); END IF;
  IF EXISTS (SELECT 1 FROM capsules WHERE host = p_name OR (host IS NULL AND moving AND last_host = p_name)) THEN
    PERFORM fail('CP012', format('host %s holds capsules', p_name));
  END IF;
  IF EXISTS (SELECT 1 FROM templates_only_on(p_name)) THEN
    PERFORM fail('CP012', format('host %s has templates that no other host could get', p_name));
  END IF;
  IF EXISTS (SELECT 1 FROM templates WHERE made_on = p_name) THEN
    n := next_catalog();
    UPDATE templates SET made_on = '', catalog = n WHERE made_on = p_name;
  END IF;
  INSERT INTO left_hosts (nonce, name, epoch, at) VALUES (h.nonce, h.name, h.epoch, now_ms());
  DELETE FROM hosts WHERE name = p_name;
END $$;

CREATE OR REPLACE FUNCTION join_host(p_name text, p_nonce text, p_place text, p_known_epoch bigint, p_address text, p_port integer,
  p_version text, p_format integer, p_machine jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE h hosts; e bigint;
BEGIN
  IF EXISTS (SELECT 1 FROM left_hosts WHERE nonce = p_nonce) THEN
    PERFORM fail('CP018', format('the data folder has left the cluster as host %s', p_name));
  END IF;
  INSERT INTO hosts (name, epoch, nonce, place, address, port, version, format, joined_at)
    VALUES (p_name, COALESCE((SELECT MAX(epoch) FROM left_hosts WHERE name = p_name), 0), p_nonce, p_place, '', 0, '', 0, now_ms())
    ON CONFLICT (name) DO NOTHING;
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

-- Under which name a host's audit entries are told apart: another folder that had the name before has counted its own.
CREATE FUNCTION audit_source(p_name text) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT COALESCE((SELECT name || '/' || joined_at FROM hosts
    WHERE name = p_name AND EXISTS (SELECT 1 FROM left_hosts WHERE left_hosts.name = p_name)), p_name)
$$;
`;
