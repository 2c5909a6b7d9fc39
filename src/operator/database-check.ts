/** The database of a cluster, as `capsule doctor` tries it: whether it answers, what its failover may forget, and its clock. */
import { readClusterFile } from "../cluster/cluster-file.ts";
import { Postgres } from "../cluster/postgres.ts";
import { messageOf } from "../wire/errors.ts";
import { clockOf } from "./clock-check.ts";

interface DatabaseFinding {
  word: "ok" | "warning";
  name: string;
  text: string;
}

const about = { what: "reach it" };

interface Answer {
  version: string;
  standbys: string;
  now: number;
}

/** None where the cluster's file cannot be read, which its bucket's finding says. `now`: this machine's clock, epoch milliseconds. */
export async function databaseFindings(clusterFile: string, now = Date.now): Promise<DatabaseFinding[]> {
  let url: string;
  try {
    url = readClusterFile(clusterFile).postgres;
  } catch {
    return [];
  }
  const sql = await Postgres.open({ url, ticks: () => performance.now() });
  try {
    const before = now();
    const [answer] = await sql.query<Answer>(
      `SELECT current_setting('server_version') AS version, current_setting('synchronous_standby_names') AS standbys,
         (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now`,
      [],
      about,
    );
    return findingsOf(answer!, before, now());
  } catch (error) {
    const text = `the cluster's database does not answer here: ${messageOf(error)}`;
    return [{ word: "warning", name: "database", text }];
  } finally {
    await sql.close();
  }
}

/** The database has read its clock between these two times of this machine. */
function findingsOf({ version, standbys, now }: Answer, before: number, after: number): DatabaseFinding[] {
  return [
    { word: "ok", name: "database", text: `PostgreSQL ${version} answers` },
    standbys === ""
      ? {
          word: "warning",
          name: "replication",
          text: "the database has no synchronous replica (synchronous_standby_names): a failover may forget what was answered",
        }
      : { word: "ok", name: "replication", text: `synchronous: ${standbys}` },
    clockOf("database", { from: now, to: now }, { from: before, to: after }),
  ];
}
