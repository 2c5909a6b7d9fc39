/**
 * A step: folders of hosts in the bucket, by kind and key. An upload's prefix is garbage until the upload is whole, so that one that was
 * cut off is collected whatever becomes of its host. A template's folder becomes garbage as soon as the template is retired and no capsule
 * stands on it.
 */

/** An upload that takes longer is not believed to be whole: the collector may have begun with it. */
const uploadMaxMs = 12 * 3_600_000;
/** A template's folder comes before the template, and belongs to none when its capture was cut off. */
const pendingMaxMs = 7 * 86_400_000;

export const artifacts = `
CREATE TABLE artifacts (
  kind            text NOT NULL,
  key             text NOT NULL,
  prefix          text NOT NULL,
  manifest_sha256 text NOT NULL,
  sha256          text,
  bytes           bigint NOT NULL,
  created_at      bigint NOT NULL,
  is_pending      boolean NOT NULL,
  PRIMARY KEY (kind, key)
);
CREATE UNIQUE INDEX artifacts_by_prefix ON artifacts (prefix);
CREATE INDEX artifacts_pending ON artifacts (created_at) WHERE is_pending;

CREATE FUNCTION begin_upload(p_prefix text) RETURNS void LANGUAGE sql AS $$
  INSERT INTO garbage (prefix, at) VALUES (p_prefix, now_ms()) ON CONFLICT (prefix) DO NOTHING;
$$;

-- The upload is whole. Of two uploads of one folder the first one counts, and the other's prefix stays garbage. p_content: the hash by
-- which what stands on the folder knows it, where it has one. Returns that of the upload that counts.
CREATE FUNCTION note_artifact(p_kind text, p_key text, p_prefix text, p_sha256 text, p_bytes bigint, p_content text DEFAULT NULL)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE t templates; isPending boolean := false; content text;
BEGIN
  IF p_kind = 'template' THEN
    SELECT * INTO t FROM templates WHERE storage = p_key;
    isPending := NOT FOUND;
    IF NOT isPending THEN
      PERFORM lock_team(t.team_id);
      IF NOT template_is_needed(p_key) THEN PERFORM fail('CP003', format('template %s is gone', t.name)); END IF;
    END IF;
  END IF;
  SELECT sha256 INTO content FROM artifacts WHERE kind = p_kind AND key = p_key;
  IF FOUND THEN RETURN content; END IF;
  DELETE FROM garbage WHERE prefix = p_prefix AND at > now_ms() - ${uploadMaxMs};
  IF NOT FOUND THEN PERFORM fail('CP004', format('the upload of %s %s has taken too long', p_kind, p_key)); END IF;
  INSERT INTO artifacts (kind, key, prefix, manifest_sha256, sha256, bytes, created_at, is_pending)
    VALUES (p_kind, p_key, p_prefix, p_sha256, p_content, p_bytes, now_ms(), isPending) ON CONFLICT (kind, key) DO NOTHING;
  IF NOT FOUND THEN PERFORM begin_upload(p_prefix); END IF;
  SELECT sha256 INTO content FROM artifacts WHERE kind = p_kind AND key = p_key;
  RETURN content;
END $$;

CREATE FUNCTION template_is_needed(p_storage text) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT EXISTS (SELECT 1 FROM templates WHERE storage = p_storage AND retired_at IS NULL)
    OR EXISTS (SELECT 1 FROM capsules WHERE storage = p_storage);
$$;

-- Behind the lock of the template's team, where it has one: also after a capture that failed.
CREATE FUNCTION drop_template_files(p_storage text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE dropped text;
BEGIN
  IF template_is_needed(p_storage) THEN RETURN; END IF;
  DELETE FROM artifacts WHERE kind = 'template' AND key = p_storage RETURNING prefix INTO dropped;
  IF FOUND THEN PERFORM begin_upload(dropped); END IF;
END $$;

CREATE FUNCTION template_begins() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE artifacts SET is_pending = false WHERE kind = 'template' AND key = NEW.storage;
  RETURN NULL;
END $$;
CREATE TRIGGER template_begins AFTER INSERT ON templates FOR EACH ROW EXECUTE FUNCTION template_begins();

CREATE FUNCTION template_ends() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM drop_template_files(OLD.storage);
  RETURN NULL;
END $$;
CREATE TRIGGER template_ends AFTER UPDATE ON templates FOR EACH ROW
  WHEN (OLD.retired_at IS NULL AND NEW.retired_at IS NOT NULL) EXECUTE FUNCTION template_ends();
CREATE TRIGGER capsule_leaves_template AFTER DELETE ON capsules FOR EACH ROW
  WHEN (OLD.storage IS NOT NULL) EXECUTE FUNCTION template_ends();

-- A bounded number of folders whose captures were cut off.
CREATE FUNCTION forget_artifacts() RETURNS void LANGUAGE plpgsql AS $$
DECLARE old record;
BEGIN
  FOR old IN SELECT key FROM artifacts WHERE is_pending AND created_at < now_ms() - ${pendingMaxMs}
    ORDER BY created_at LIMIT 100 FOR UPDATE SKIP LOCKED
  LOOP
    PERFORM drop_template_files(old.key);
  END LOOP;
END $$;
`;
