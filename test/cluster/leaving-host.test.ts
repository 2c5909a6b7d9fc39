/** A host that leaves its cluster, serves alone and joins again: real daemons, and PostgreSQL. */
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { type Daemon, Daemons } from "./daemons.ts";
import { lacksPostgres } from "./postgres-server.ts";

/** A start for which the template is booted anew, on a busy machine, and two without. */
const deadline = { timeout: 600_000 };

describe("a host leaves", { skip: lacksPostgres }, () => {
  let daemons: Daemons | undefined;
  before(async () => {
    daemons = await Daemons.start({ names: ["one", "two"] });
  });
  after(() => daemons?.[Symbol.asyncDispose]());

  const namesBy = async ({ server }: Daemon) =>
    (JSON.parse(await server.operate("admin", "hosts", "--json")) as { name: string }[]).map(({ name }) => name);

  test("its server ends, and its folder serves alone with the cluster's keys, and joins again", deadline, async () => {
    const [one, two] = daemons!.hosts as [Daemon, Daemon];
    const ended = two.server.exited();
    await two.server.operateWithin(deadline.timeout, "admin", "cluster", "leave");
    assert.equal(await ended, null); // no signal: it has exited
    assert.deepEqual(await namesBy(one), ["one"]);
    await assert.rejects(two.server.start(), /has left its cluster: start it without CAPSULE_CLUSTER/);

    await two.server.start({ CAPSULE_CLUSTER: "" });
    assert.equal(existsSync(join(two.server.dataDir, "left.json")), false);
    const made = await two.client.expect(201, "POST", "/v1/capsules", { json: { timeout_sec: 0 } });
    assert.equal(made.json.host, null);
    await one.client.expect(404, "GET", `/v1/capsules/${made.json.id}`);
    await two.server.kill("SIGTERM");
    await assert.rejects(two.server.start(), /has a capsule, which the cluster does not have/);
    await two.server.start({ CAPSULE_CLUSTER: "" });
    await two.client.expect(204, "DELETE", `/v1/capsules/${made.json.id}`);
    await two.server.kill("SIGTERM");

    await two.server.start();
    await daemons!.known();
    assert.deepEqual(await namesBy(two), ["one", "two"]);
  });
});
