/** Rows of a host that are of use in its cluster alone: its database is then that of a single host. */
import { type Database, transact } from "./database.ts";

/** Forgets releases, uploads, and answers to requests with an Idempotency-Key, whose capsules are elsewhere. Durable when this returns. */
export function forgetCluster(database: Database): void {
  transact(database, () => database.exec("DELETE FROM released; DELETE FROM uploads; DELETE FROM idempotency"));
}
