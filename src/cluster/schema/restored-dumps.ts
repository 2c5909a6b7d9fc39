/**
 * A step: a dump that was restored into the same server is another place (docs/adr/0135). Its tables are made anew, so the timeline in
 * `cluster`, and in the place of the database, has the OIDs of the database and of that table behind it.
 */
export const restoredDumps = `
-- No maintenance changes these OIDs. A copy by CREATE DATABASE … TEMPLATE has the tables' and another one of its own.
CREATE FUNCTION table_oids() RETURNS text LANGUAGE sql VOLATILE AS $$
  SELECT oid || '.' || to_regclass('cluster')::oid FROM pg_database WHERE datname = current_database()
$$;

CREATE OR REPLACE FUNCTION database_place() RETURNS text LANGUAGE sql VOLATILE AS $$
  SELECT system_identifier::text || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '.' || table_oids()
    FROM pg_control_system()
$$;

-- A place that is not confirmed stays so.
UPDATE cluster SET timeline = timeline || '.' || table_oids();
`;
