/**
 * Versions after a database was put back: it has forgotten some, and would give them again to other changes. So a confirmation raises every
 * team's version to the time in milliseconds, beyond any that was given before, and streams of events begin anew below that minimum.
 */
export const versionMinimum = `
ALTER TABLE teams ADD COLUMN version_min bigint NOT NULL DEFAULT 0;

CREATE OR REPLACE FUNCTION confirm_place() RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE now_at text := database_place(); silent text[];
BEGIN
  IF is_own_place() THEN RETURN jsonb_build_object('place', now_at, 'was', 'own'); END IF;
  PERFORM 1 FROM teams ORDER BY id FOR NO KEY UPDATE;
  PERFORM 1 FROM cluster FOR UPDATE;
  IF is_own_place() THEN RETURN jsonb_build_object('place', now_at, 'was', 'own'); END IF;
  SELECT array_agg(name ORDER BY name) INTO silent FROM hosts WHERE state <> 'gone' AND asserted_timeline IS DISTINCT FROM now_at;
  IF silent IS NOT NULL THEN RETURN jsonb_build_object('place', now_at, 'was', 'other', 'silent', to_jsonb(silent)); END IF;
  UPDATE teams SET version = GREATEST(version + 1, now_ms()), version_min = GREATEST(version + 1, now_ms());
  UPDATE cluster SET system_id = split_part(now_at, '/', 1), timeline = split_part(now_at, '/', 2), catalog = catalog + 1;
  RETURN jsonb_build_object('place', now_at, 'was', 'confirmed');
END $$;
`;
