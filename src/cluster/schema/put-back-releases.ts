/**
 * A step: hosts tell a database that was put back also what they have released. The checkpoints of those capsules are in the bucket alone,
 * so nothing is removed from it until a day after the place is confirmed.
 */
import { capsuleColumns } from "./capsule-functions.ts";
import { checkpointColumns } from "./released-capsules.ts";

const kept = ["id", "team_id", "created_at", "copy"];
const told = [...capsuleColumns, ...checkpointColumns, "last_host", "lost_at", "host", "epoch", "version"];
export const toldColumns = told
  .filter((name) => !kept.includes(name))
  .map((name) => `${name} = r.${name}`)
  .join(", ");

/** `set`: the columns of a row that is there already. */
export const assertReleased = (create: string, set: string) => `
-- p_rows: what the host has released, or is releasing: the rows of release_capsule, with their epochs. A later epoch has been acquired
-- since, and a tombstone is the end. With the same epoch it is this host's release where the row names this host, or the same checkpoint.
-- Returns the ids of rows that neither one does: there are none.
${create} assert_released(p_host text, p_host_epoch bigint, p_rows jsonb) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE r capsules; c capsules; odd text[] := '{}';
BEGIN
  PERFORM begin_asserting(p_host, p_host_epoch, ARRAY(SELECT DISTINCT value ->> 'team_id' FROM jsonb_array_elements(p_rows)));
  FOR r IN SELECT * FROM jsonb_populate_recordset(NULL::capsules, p_rows) ORDER BY id, epoch LOOP
    IF r.status <> 'paused' OR r.checkpoint IS NULL OR r.checkpoint_revision IS DISTINCT FROM r.revision THEN
      odd := odd || r.id;
      CONTINUE;
    END IF;
    SELECT version INTO r.version FROM teams WHERE id = r.team_id;
    CONTINUE WHEN NOT FOUND; -- it was deleted
    SELECT * INTO c FROM capsules WHERE id = r.id FOR NO KEY UPDATE;
    IF c.epoch > r.epoch OR EXISTS (SELECT 1 FROM tombstones WHERE id = r.id) THEN
      PERFORM add_garbage(ARRAY[r.checkpoint]);
      CONTINUE;
    END IF;
    IF EXISTS (SELECT 1 FROM capsules WHERE team_id = r.team_id AND name = r.name AND id <> r.id) THEN r.name := NULL; END IF;
    r.host := NULL; r.intent := NULL; r.lost_at := NULL; r.last_host := COALESCE(r.last_host, p_host);
    r.blocked_by := COALESCE(r.blocked_by, c.blocked_by, (SELECT name FROM templates WHERE storage = r.storage AND is_deleted));
    IF c.id IS NULL THEN
      r.seq := nextval('capsules_seq_seq');
      INSERT INTO capsules SELECT r.*;
      PERFORM note_assertion(r.id, 'released', p_host);
    ELSIF c.epoch < r.epoch OR (c.host = p_host AND c.revision <= r.revision) THEN
      UPDATE capsules SET ${set}, copy = GREATEST(copy, r.copy) WHERE id = r.id;
      IF c.checkpoint <> r.checkpoint THEN PERFORM add_garbage(ARRAY[c.checkpoint]); END IF;
      PERFORM note_assertion(r.id, 'released', p_host);
    ELSIF c.host IS NULL AND c.checkpoint = r.checkpoint THEN
      UPDATE capsules SET name = r.name, version = r.version WHERE id = r.id AND name IS DISTINCT FROM r.name;
    ELSE odd := odd || r.id;
    END IF;
  END LOOP;
  RETURN odd;
END $$;
`;

export const putBackReleases = `${assertReleased("CREATE FUNCTION", toldColumns)}
-- Capsules that the host has destroyed. One that is not there gets a tombstone, too: another host may tell of it later.
CREATE OR REPLACE FUNCTION assert_destroyed(p_host text, p_host_epoch bigint, p_ids text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE r capsules;
BEGIN
  PERFORM begin_asserting(p_host, p_host_epoch, ARRAY(SELECT DISTINCT team_id FROM capsules WHERE id = ANY(p_ids)));
  FOR r IN DELETE FROM capsules WHERE id = ANY(p_ids) RETURNING * LOOP
    INSERT INTO tombstones (id, team_id, version, host, epoch, at)
      SELECT r.id, r.team_id, version, p_host, r.epoch, now_ms() FROM teams WHERE id = r.team_id ON CONFLICT DO NOTHING;
    PERFORM add_garbage(ARRAY[r.checkpoint]);
    PERFORM note_assertion(r.id, 'destroyed', p_host);
  END LOOP;
  INSERT INTO tombstones (id, team_id, version, host, epoch, at)
    SELECT id, '', 0, p_host, 0, now_ms() FROM unnest(p_ids) AS id ON CONFLICT DO NOTHING;
END $$;

CREATE OR REPLACE FUNCTION take_garbage(p_keep_ms bigint, p_again_ms bigint, p_most integer) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE g record; taken jsonb := '[]';
BEGIN
  IF NOT is_own_place() THEN RETURN taken; END IF;
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

-- The place is confirmed. The time of all garbage begins anew: it is that of the database's former place.
CREATE FUNCTION garbage_begins() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE garbage SET at = now_ms(), tried_at = NULL;
  RETURN NULL;
END $$;
CREATE TRIGGER garbage_begins AFTER UPDATE OF system_id, timeline ON cluster FOR EACH ROW
  WHEN (OLD.system_id <> NEW.system_id OR OLD.timeline <> NEW.timeline) EXECUTE FUNCTION garbage_begins();
`;
