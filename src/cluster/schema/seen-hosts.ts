/**
 * A step: the time of each host's last heartbeat, by PostgreSQL's clock, for the operator's list. No host decides by it; null: there was no
 * heartbeat since the step.
 */
export const seenHosts = `
ALTER TABLE hosts ADD COLUMN seen_at bigint;

CREATE FUNCTION note_heartbeat() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.seen_at := now_ms();
  RETURN NEW;
END $$;

CREATE TRIGGER seen BEFORE UPDATE OF heartbeat ON hosts FOR EACH ROW
  WHEN (OLD.heartbeat <> NEW.heartbeat) EXECUTE FUNCTION note_heartbeat();
`;
