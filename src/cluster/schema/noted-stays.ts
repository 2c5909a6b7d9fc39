/**
 * A step: a host is told which reasons could not be noted. A status copy may lock the row of a capsule just then, and a reason that was
 * passed over would never be shown.
 */
export const notedStays = `
DROP FUNCTION note_stays(text[], text, bigint, text);

-- Capsule by capsule, since status copies lock several at once. Returns the ids of the host's capsules whose rows are locked: theirs was
-- not noted.
CREATE FUNCTION note_stays(p_ids text[], p_host text, p_drain bigint, p_reason text) RETURNS text[] LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE noted text[];
BEGIN
  WITH free AS (
    SELECT id FROM capsules WHERE id = ANY(p_ids) AND host = p_host FOR NO KEY UPDATE SKIP LOCKED
  ), done AS (
    UPDATE capsules c SET stays = p_reason, stays_in = p_drain FROM free WHERE c.id = free.id RETURNING c.id
  ) SELECT array_agg(id) INTO noted FROM done;
  RETURN ARRAY(SELECT id FROM capsules WHERE id = ANY(p_ids) AND host = p_host AND id <> ALL(COALESCE(noted, '{}')));
END $$;
`;
