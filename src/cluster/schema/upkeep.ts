/**
 * The periodic work of every host: released capsules whose retention has ended, and prefixes in the bucket that no row names. Each may
 * run on several hosts at once, and does each thing once.
 */

/** A released row whose time is over; the index below has them in this order. */
const ends = "c.last_updated + c.retention_sec * 1000";
const retained = "c.host IS NULL AND c.retention_sec > 0";

export const upkeep = `
CREATE INDEX capsules_due ON capsules ((last_updated + retention_sec * 1000)) WHERE host IS NULL AND retention_sec > 0;
CREATE INDEX teams_deleted ON teams (id) WHERE deleted_at IS NOT NULL;

-- Destroys a bounded number of released capsules: those whose retention has ended, and those of deleted teams. Locks: team, capsule; what
-- another statement is changing is left to a later call. Returns the id and the team of each.
CREATE FUNCTION end_released(p_most integer) RETURNS jsonb LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE listed text[]; r record; ended jsonb := '[]';
BEGIN
  SELECT array_agg(DISTINCT d.team_id) INTO listed FROM
    (SELECT c.team_id FROM capsules c WHERE ${retained} AND ${ends} <= now_ms() ORDER BY ${ends} LIMIT p_most) d;
  IF listed IS NOT NULL THEN
    PERFORM 1 FROM teams WHERE id = ANY(listed) ORDER BY id FOR NO KEY UPDATE;
    UPDATE teams SET version = version + 1 WHERE id = ANY(listed);
  END IF;
  FOR r IN
    SELECT c.id, c.team_id, c.epoch, t.version FROM capsules c JOIN teams t ON t.id = c.team_id
      WHERE ${retained} AND ${ends} <= now_ms() AND c.team_id = ANY(listed) ORDER BY ${ends} LIMIT p_most
      FOR UPDATE OF c SKIP LOCKED
  LOOP
    PERFORM remove_capsule(r.id, r.epoch, NULL, r.version);
    ended := ended || jsonb_build_array(jsonb_build_array(r.id, r.team_id));
  END LOOP;
  FOR r IN
    SELECT c.id, c.team_id, c.epoch, t.version FROM teams t JOIN capsules c ON c.team_id = t.id
      WHERE t.deleted_at IS NOT NULL AND c.host IS NULL LIMIT p_most FOR UPDATE OF c SKIP LOCKED
  LOOP
    PERFORM remove_capsule(r.id, r.epoch, NULL, r.version);
  END LOOP;
  RETURN ended;
END $$;

CREATE FUNCTION is_named(p_prefix text) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT EXISTS (SELECT 1 FROM capsules WHERE checkpoint = p_prefix) OR EXISTS (SELECT 1 FROM artifacts WHERE prefix = p_prefix);
$$;

-- A bounded number of prefixes that have been garbage for p_keep_ms, and that nobody has taken within p_again_ms. One that a row names
-- again is garbage no more.
CREATE FUNCTION take_garbage(p_keep_ms bigint, p_again_ms bigint, p_most integer) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE g record; taken jsonb := '[]';
BEGIN
  FOR g IN
    SELECT prefix FROM garbage WHERE at <= now_ms() - p_keep_ms AND COALESCE(tried_at, 0) <= now_ms() - p_again_ms
      ORDER BY at LIMIT p_most FOR UPDATE SKIP LOCKED
  LOOP
    IF is_named(g.prefix) THEN
      DELETE FROM garbage WHERE prefix = g.prefix;
    ELSE
      UPDATE garbage SET tried_at = now_ms() WHERE prefix = g.prefix;
      taken := taken || to_jsonb(g.prefix);
    END IF;
  END LOOP;
  RETURN taken;
END $$;

-- Its objects are gone.
CREATE FUNCTION drop_garbage(p_prefix text) RETURNS void LANGUAGE sql AS $$
  DELETE FROM garbage WHERE prefix = p_prefix;
$$;
`;
