/**
 * The second step: a capsule gets the team's version with a change that clients are shown. An intent, the end of its template and a copy of
 * the same row after an outage are none, so streams of events repeat no state.
 */
const shown = [
  ...[
    "name",
    "labels",
    "status",
    "vcpus",
    "memory_mb",
    "disk_mb",
    "timeout_sec",
    "last_updated",
    "started_at",
    "error_reason",
  ],
  ...["on_timeout", "lifetime_sec", "expires_at", "on_expiry", "retention_sec", "auto_resume", "network", "host"],
];
const rowOf = (row: string) => `(${shown.map((name) => `${row}.${name}`).join(", ")})`;

export const shownChanges = `
CREATE FUNCTION keep_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.version := OLD.version;
  RETURN NEW;
END $$;

CREATE TRIGGER unseen_change BEFORE UPDATE ON capsules FOR EACH ROW
  WHEN (${rowOf("OLD")} IS NOT DISTINCT FROM ${rowOf("NEW")}) EXECUTE FUNCTION keep_version();
`;
