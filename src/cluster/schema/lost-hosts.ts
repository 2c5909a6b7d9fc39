/**
 * Hosts that are lost, or gone for good: the rows that they hold say so, and take no quota. Nobody else holds them: a host that comes
 * back copies what is true over it.
 */
import { liveRow } from "./tables.ts";

export const lostHosts = `
-- A bounded part of the live rows of a host that still has this epoch and counter; locks: host, team, capsule. A create without a status
-- copy keeps its intent: its host undoes it, or does not. Returns the number of rows found, and NULL when the host has moved.
CREATE FUNCTION lose_host(p_name text, p_epoch bigint, p_heartbeat bigint, p_most integer) RETURNS bigint
LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE ids text[]; listed text[];
BEGIN
  PERFORM 1 FROM hosts WHERE name = p_name AND epoch = p_epoch AND heartbeat = p_heartbeat AND state <> 'gone' FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN NULL; END IF;
  SELECT array_agg(id), array_agg(DISTINCT team_id) INTO ids, listed
    FROM (SELECT id, team_id FROM capsules WHERE host = p_name AND ${liveRow} ORDER BY id LIMIT p_most) live;
  PERFORM 1 FROM teams WHERE id = ANY(listed) ORDER BY id FOR NO KEY UPDATE;
  UPDATE teams SET version = version + 1 WHERE id = ANY(listed);
  UPDATE capsules c SET status = 'error', error_reason = format('host %s was lost', p_name), lost_at = now_ms(), last_updated = now_ms(),
      intent = CASE WHEN intent = 'create' THEN intent END, version = t.version
    FROM teams t WHERE c.id = ANY(ids) AND c.host = p_name AND ${liveRow} AND t.id = c.team_id;
  RETURN COALESCE(cardinality(ids), 0);
END $$;
`;

/** `open`: a row that is not ended yet. */
const endGone = (
  create: string,
  open: string,
) => `-- A bounded part of the rows that a host which is gone has held: nobody has their files, and no status copy is later. Returns the number of rows found.
${create} end_gone(p_name text, p_most integer) RETURNS bigint LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE ids text[]; listed text[];
BEGIN
  PERFORM 1 FROM hosts WHERE name = p_name AND state = 'gone' FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN 0; END IF;
  SELECT array_agg(id), array_agg(DISTINCT team_id) INTO ids, listed FROM
    (SELECT id, team_id FROM capsules WHERE host = p_name AND (${open}) ORDER BY id LIMIT p_most) held;
  PERFORM 1 FROM teams WHERE id = ANY(listed) ORDER BY id FOR NO KEY UPDATE;
  UPDATE teams SET version = version + 1 WHERE id = ANY(listed);
  UPDATE capsules c SET status = 'error', error_reason = format('host %s is gone', p_name), lost_at = COALESCE(lost_at, now_ms()),
      last_updated = now_ms(), intent = NULL, copy = GREATEST(copy, 1::bigint << 52), version = t.version
    FROM teams t WHERE c.id = ANY(ids) AND c.host = p_name AND t.id = c.team_id;
  RETURN COALESCE(cardinality(ids), 0);
END $$;
`;

export const goneHosts = `
-- For good: its daemon is refused from its next heartbeat on, and its folder never joins again. p_heartbeat: its counter as last seen.
CREATE FUNCTION declare_gone(p_name text, p_heartbeat bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE h hosts;
BEGIN
  SELECT * INTO h FROM hosts WHERE name = p_name FOR NO KEY UPDATE;
  IF NOT FOUND THEN PERFORM fail('CP003', format('the cluster has no host %s', p_name)); END IF;
  IF h.state = 'gone' THEN RETURN; END IF;
  IF h.heartbeat <> p_heartbeat THEN PERFORM fail('CP012', format('host %s is up', p_name)); END IF;
  UPDATE hosts SET state = 'gone', epoch = epoch + 1 WHERE name = p_name;
END $$;

${endGone("CREATE FUNCTION", "status <> 'error' OR intent IS NOT NULL")}`;

/**
 * A step: a row of a host that was lost before is in error already, and has not ended: a status copy of the host, which is gone by now, would be later.
 */
export const goneLost = endGone(
  "CREATE OR REPLACE FUNCTION",
  "status <> 'error' OR intent IS NOT NULL OR copy < 1::bigint << 52",
);
