/** Rows of a host that are of use in its cluster alone: its database is then that of a single host. */
import { type Database, transact } from "./database.ts";

const releases = "DELETE FROM released; DELETE FROM uploads";

/** Forgets releases, uploads, and answers to requests with an Idempotency-Key, whose capsules are elsewhere. Durable when this returns. */
export function forgetCluster(database: Database): void {
  transact(database, () => database.exec(`${releases}; DELETE FROM idempotency`));
}

/** The same where the capsules are here: their answers stay. */
export function forgetReleases(database: Database): void {
  transact(database, () => database.exec(releases));
}
