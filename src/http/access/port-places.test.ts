/** Places of connections to ports: those of a capsule, and those of a team. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { PortPlaces } from "./port-places.ts";

const refused = { code: "quota_exceeded" };

test("a capsule and a team have so many places, and each is given back once", () => {
  const places = new PortPlaces({ port_connections_max: 2, port_team_connections_max: 3 });
  const first = places.take("red", "cl-a");
  places.take("red", "cl-a");
  assert.throws(() => places.take("red", "cl-a"), refused, "the capsule has two");
  places.take("red", "cl-b");
  assert.throws(() => places.take("red", "cl-b"), refused, "the team has three");
  places.take("blue", "cl-c");
  first[Symbol.dispose]();
  first[Symbol.dispose]();
  places.take("red", "cl-b");
  assert.throws(() => places.take("red", "cl-a"), refused, "one place was free");
});
