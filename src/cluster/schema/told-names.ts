/**
 * A step: names that are told to a database that was put back, while another capsule has them by it (docs/adr/0133). That one may have been
 * renamed in the forgotten time, and its host tells of it later: so a name is given when the place is confirmed, for all hosts have told then.
 */
const wrapped = (name: string, inner: string) => `
ALTER FUNCTION ${name}(text, bigint, jsonb) RENAME TO ${inner};
CREATE FUNCTION ${name}(p_host text, p_host_epoch bigint, p_rows jsonb) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE odd text[] := ${inner}(p_host, p_host_epoch, p_rows);
BEGIN
  PERFORM keep_told_names(p_rows, odd);
  RETURN odd;
END $$;
`;

export const toldNames = `
CREATE TABLE told_names (
  place text NOT NULL,
  id    text NOT NULL,
  name  text NOT NULL,
  PRIMARY KEY (place, id)
);

-- Of each row that counts, since the capsule has its epoch and p_odd does not name it: the name, unless the capsule has it.
CREATE FUNCTION keep_told_names(p_rows jsonb, p_odd text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE r record; now_at text := database_place();
BEGIN
  FOR r IN SELECT t.id, t.name, c.name AS given FROM jsonb_to_recordset(p_rows) AS t(id text, name text, epoch bigint)
    JOIN capsules c ON c.id = t.id AND c.epoch = t.epoch WHERE c.id <> ALL(p_odd)
  LOOP
    DELETE FROM told_names WHERE place = now_at AND id = r.id;
    IF r.name IS DISTINCT FROM r.given AND r.name IS NOT NULL THEN
      INSERT INTO told_names (place, id, name) VALUES (now_at, r.id, r.name);
    END IF;
  END LOOP;
END $$;
${wrapped("assert_held", "enter_held")}${wrapped("assert_released", "enter_released")}
-- Behind the confirmation, in its transaction. A name that two hosts tell stays with the one that told it first.
CREATE FUNCTION give_told_names() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE t told_names;
BEGIN
  FOR t IN SELECT * FROM told_names WHERE place = database_place() ORDER BY id LOOP
    UPDATE capsules c SET name = t.name, version = (SELECT version FROM teams WHERE id = c.team_id)
      WHERE c.id = t.id AND c.name IS NULL
        AND NOT EXISTS (SELECT 1 FROM capsules WHERE team_id = c.team_id AND name = t.name);
  END LOOP;
  DELETE FROM told_names;
  RETURN NULL;
END $$;
CREATE TRIGGER give_told_names AFTER UPDATE OF system_id, timeline ON cluster FOR EACH ROW
  WHEN (OLD.system_id <> NEW.system_id OR OLD.timeline <> NEW.timeline) EXECUTE FUNCTION give_told_names();
`;

/** A step: a rename to the name that the row has already is a decision, too, and a database that was put back makes none. */
export const decidedNames = `
ALTER FUNCTION rename_capsule(text, bigint, text, text, bigint) RENAME TO set_name;
CREATE FUNCTION rename_capsule(p_id text, p_epoch bigint, p_host text, p_name text, p_copy bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM require_known_place();
  PERFORM set_name(p_id, p_epoch, p_host, p_name, p_copy);
END $$;
`;
