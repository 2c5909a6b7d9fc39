/**
 * Moves of running capsules from hosts that are drained (docs/adr/0055): a mark on released rows, and the deadline of a drain. Only a
 * release and an acquire change the holder, as before.
 */
import { assigned, blocked, released } from "./released-capsules.ts";

/** A drain by a program that has named no deadline. */
const drainMs = 600_000;

/** A released row whose time is over; the index of `upkeep` has them in this order. */
const ends = "c.last_updated + c.retention_sec * 1000";
const retained = "c.host IS NULL AND c.retention_sec > 0 AND c.moving IS NULL";

export const moves = `
-- moving: the capsule was running, and is to be resumed by the host that acquires it; of a held row it says nothing. stays: why the host
-- does not move it, in its drain of that number.
ALTER TABLE capsules ADD COLUMN moving boolean, ADD COLUMN stays text, ADD COLUMN stays_in bigint;
ALTER TABLE hosts ADD COLUMN drain_ms bigint, ADD COLUMN drain_until bigint, ADD COLUMN drains bigint;
CREATE INDEX capsules_moving ON capsules (last_host, id) WHERE host IS NULL AND moving;

-- A further drain has a deadline of its own. Returns the host's state.
CREATE FUNCTION begin_drain(p_name text, p_ms bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE s text := drain_host(p_name);
BEGIN
  UPDATE hosts SET drain_ms = p_ms, drain_until = now_ms() + p_ms, drains = COALESCE(drains, 0) + 1 WHERE name = p_name;
  RETURN s;
END $$;

-- Returns the number of the host's drain, its length, and the time that is left of it; NULL: it is not drained any more.
CREATE FUNCTION follow_moves(p_name text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE h hosts;
BEGIN
  PERFORM follow_drain(p_name);
  SELECT * INTO h FROM hosts WHERE name = p_name AND state IN ('draining', 'drained');
  IF NOT FOUND THEN RETURN NULL; END IF;
  IF h.drain_until IS NULL THEN
    PERFORM begin_drain(p_name, ${drainMs});
    SELECT * INTO h FROM hosts WHERE name = p_name;
  END IF;
  RETURN jsonb_build_object('number', h.drains, 'ms', h.drain_ms, 'leftMs', h.drain_until - now_ms());
END $$;

-- Capsule by capsule, since status copies lock several at once.
CREATE FUNCTION note_stays(p_ids text[], p_host text, p_drain bigint, p_reason text) RETURNS void LANGUAGE sql SET lock_timeout = '2s' AS $$
  UPDATE capsules SET stays = p_reason, stays_in = p_drain
    WHERE id IN (SELECT id FROM capsules WHERE id = ANY(p_ids) AND host = p_host FOR NO KEY UPDATE SKIP LOCKED)
$$;

-- No host takes it: it stays paused, and is resumed as any.
CREATE FUNCTION end_move(p_id text, p_epoch bigint) RETURNS void LANGUAGE sql AS $$
  UPDATE capsules SET moving = NULL WHERE id = p_id AND epoch = p_epoch AND host IS NULL
$$;

CREATE OR REPLACE FUNCTION release_capsule(p_id text, p_epoch bigint, p_host text, p_row jsonb) RETURNS void LANGUAGE plpgsql AS $$
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
    last_host = CASE WHEN c.checkpoint = n.checkpoint THEN c.last_host ELSE p_host END, copy = GREATEST(c.copy, n.copy),
    moving = CASE WHEN n.moving THEN true END
    WHERE c.id = p_id;
  IF r.checkpoint <> n.checkpoint THEN PERFORM add_garbage(ARRAY[r.checkpoint]); END IF;
END $$;

-- As before; and the last host of a capsule that is moved takes it back although it is drained.
CREATE OR REPLACE FUNCTION acquire_capsule(p_id text, p_epoch bigint, p_host text, p_host_epoch bigint, p_intent text, p_copy bigint)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE r capsules; v bigint; what text := p_intent || ' a capsule';
BEGIN
  IF EXISTS (SELECT 1 FROM capsules WHERE id = p_id AND moving AND last_host = p_host) THEN
    PERFORM require_holder(p_host, p_host_epoch);
  ELSE
    PERFORM require_host(p_host, p_host_epoch);
  END IF;
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

-- As before; a capsule that is moved waits for nothing but its resume.
CREATE OR REPLACE FUNCTION end_released(p_most integer) RETURNS jsonb LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
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
`;
