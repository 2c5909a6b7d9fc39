/** Teams and keys that a host follows. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { CatalogRows } from "./catalog-rows.ts";
import { openDatabase } from "./database.ts";

test("a key that was revoked here stays so, whatever was read before", (t) => {
  const database = openDatabase(":memory:");
  t.after(() => database.close());
  const rows = new CatalogRows(database);
  const key = {
    ...{ id: "key-1", teamId: "red", label: "", prefix: null, hash: "00", createdAt: 1, revokedAt: null },
    ...{ expiresAt: null, madeBy: null, isSession: 0 },
  };
  const put = (revokedAt: number | null) =>
    rows.put([{ id: "red", name: "red", createdAt: 1 }], [{ ...key, revokedAt }], { expired: 0, revoked: 0 });
  put(null);
  rows.endKeys(["key-1"], 5);
  put(null);
  assert.equal(rows.keys()[0]?.revokedAt, 5);
  put(7);
  assert.equal(rows.keys()[0]?.revokedAt, 7, "the cluster's time of it");
});
