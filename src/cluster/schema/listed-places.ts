/**
 * The place of a capsule in its team's list: 1000 for each millisecond of its `created_at`, and one more for each capsule of that
 * millisecond that has been decided before. Hosts read `created_at` before PostgreSQL decides, in any order. A row of an earlier step keeps
 * its small number, and so comes last.
 */
export const listedPlaces = `
CREATE FUNCTION listed_place() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE first bigint := NEW.created_at * 1000;
BEGIN
  SELECT COALESCE(MAX(seq) + 1, first) INTO NEW.seq FROM capsules
    WHERE team_id = NEW.team_id AND seq >= first AND seq < first + 1000;
  IF NEW.seq = first + 1000 THEN SELECT MAX(seq) + 1 INTO NEW.seq FROM capsules WHERE team_id = NEW.team_id; END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER listed_place BEFORE INSERT ON capsules FOR EACH ROW EXECUTE FUNCTION listed_place();
`;
