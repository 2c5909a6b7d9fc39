/** The cost of a request at a port's URL in statements of the database, which no clock decides. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Api, keys } from "../../../test/api.ts";
import { bytesOf, GuestServer, ok, PortUrls, parsed } from "../../../test/port-urls.ts";
import { Statements } from "../../../test/teams/statements.ts";

const statements = new Statements();
const api = new Api({}, {}, { database: statements.database });
const urls = new PortUrls(api);

before(() => urls.listen());
after(() => urls.close());

test("a request reads three to five rows, and writes nothing", async () => {
  const id = await api.capsule();
  GuestServer.answering(api, id, 80, ok);
  urls.setNetwork(id, { publicPorts: [80] });
  const token = urls.token(id, 81);
  GuestServer.answering(api, id, 81, ok);
  await api.service.settled();
  const run = async (port: number, headers: string[], key: string | null) => {
    statements.take();
    const { status } = parsed(await urls.exchange(bytesOf(`${port}-${id}.localhost`, "/", headers, key)));
    return [status, statements.take().map((sql) => sql.trim().split(" ", 1)[0])];
  };
  assert.deepEqual(await run(80, [], null), [200, ["SELECT", "SELECT", "SELECT"]]);
  assert.deepEqual(await run(81, [`X-Capsule-Token: ${token}`], null), [200, ["SELECT", "SELECT", "SELECT"]]);
  assert.deepEqual(await run(81, [], keys.red), [200, Array(5).fill("SELECT")]);
  assert.deepEqual(await run(82, [], null), [401, ["SELECT"]]);
});
