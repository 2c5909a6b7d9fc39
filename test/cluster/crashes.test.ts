/**
 * A daemon is killed between a commit of PostgreSQL and its own rows, at each named step. Started again it agrees with PostgreSQL and with
 * the other hosts: nothing acknowledged is lost, nothing destroyed runs, and what nobody was told of is gone or as PostgreSQL has it.
 */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { type ClusterStepName, clusterSteps } from "../../src/host/steps.ts";
import type { Call, Client, Reply } from "../client.ts";
import { processesOf } from "../server.ts";
import { waitFor } from "../wait-for.ts";
import { bare, type Daemon, Daemons, noRoom, untilConnected } from "./daemons.ts";
import { lacksPostgres } from "./postgres-server.ts";

const skip = lacksPostgres;
/** Requests of host two to host one, which it counts as expired for a moment. */
const refused = [/"code":"unavailable"/];

describe("a daemon that is killed when PostgreSQL has decided", { concurrency: false }, () => {
  let daemons: Daemons;
  let one: Daemon;
  let two: Daemon;
  before(async () => {
    if (skip !== false) return;
    const envOf = (name: string) => (name === "one" ? bare : noRoom);
    daemons = await Daemons.start({ names: ["one", "two"], envOf, errors: refused });
    [one, two] = [daemons.host("one"), daemons.host("two")];
  });
  after(() => daemons?.[Symbol.asyncDispose]());

  /** Host one dies at the step while `act` asks it, and is started again. */
  async function crash(step: ClusterStepName, act: (client: Client) => Promise<unknown>): Promise<void> {
    await one.server.kill("SIGTERM");
    await one.server.start({ CAPSULE_CRASH_AT: step });
    await untilConnected(one);
    const ended = one.server.exited();
    await act(one.client).catch(() => {});
    assert.equal(await ended, "SIGKILL", "the daemon did not reach its step");
    await one.server.start();
    await untilConnected(one);
    covered.add(step);
  }

  /** All that a team sees of its capsules. */
  const listed = async ({ client }: Daemon): Promise<Reply["json"][]> =>
    (await client.expect(200, "GET", "/v1/capsules")).json;

  /** The answer of the host that it goes to: host two counts host one as expired until it has seen its heartbeat move. */
  const untilReached = ({ client }: Daemon, method: string, path: string, call?: Call): Promise<Reply> =>
    waitFor(`${method} ${path} reaches its host`, async () => {
      const reply = await client.call(method, path, call);
      return reply.status !== 503 && reply;
    });

  /** Both hosts list exactly these capsules, and host one has a VM for each that runs. */
  async function untilAgreed(expected: { id: string; status: string; name?: string }[]): Promise<void> {
    let seen: unknown;
    const wanted = JSON.stringify(expected.map(({ id, status, name = null }) => [id, status, name]));
    await waitFor(
      () => `both hosts list ${wanted}; the last one lists ${JSON.stringify(seen)}`,
      async () => {
        for (const host of [one, two]) {
          const rows = await listed(host);
          seen = rows.map(({ id, status, name }) => [id, status, name]);
          if (JSON.stringify(seen) !== wanted) return false;
        }
        return true;
      },
      { deadlineMs: 300_000 },
    );
    const running = expected.filter(({ status }) => status === "running").map(({ id }) => id);
    await waitFor("a VM for each that runs", () => vmsOf(one).join() === running.sort().join());
  }

  test("a create that nobody was told of is undone, and its name is free", { skip }, async () => {
    await crash("create.decided", (client) => client.call("POST", "/v1/capsules", { json: { name: "web" } }));
    await untilAgreed([]);
    const { status, json } = await untilReached(two, "POST", "/v1/capsules", { json: { name: "web" } });
    assert.equal(status, 201);
    await one.client.expect(204, "DELETE", `/v1/capsules/${json.id}`);
  });

  test("a delete is finished, and its capsule is listed nowhere meanwhile", { skip }, async () => {
    const { id } = await one.client.capsule();
    await crash("destroy.decided", (client) => client.call("DELETE", `/v1/capsules/${id}`));
    assert.deepEqual(await listed(two), []);
    await untilAgreed([]);
    for (const { client } of [one, two]) await client.expect(404, "GET", `/v1/capsules/${id}`);
  });

  test("a name that was decided is the capsule's on both hosts", { skip }, async () => {
    const capsule = await one.client.capsule({ name: "old" });
    const { id } = capsule;
    await crash("rename.decided", (client) => client.call("PATCH", `/v1/capsules/${id}`, { json: { name: "new" } }));
    await untilAgreed([{ id, status: "running", name: "new" }]);
    for (const host of [one, two]) {
      const { status, json } = await untilReached(host, "GET", "/v1/capsules/new");
      assert.deepEqual([status, json.id], [200, id]);
      await host.client.expect(404, "GET", "/v1/capsules/old");
    }
    await capsule.destroy();
  });

  test("a capture that was decided is finished: the template is there, and the capsule is gone", { skip }, async () => {
    const capsule = await one.client.capsule();
    await capsule.sh("echo kept > /root/kept; sync");
    const json = { sandbox_id: capsule.id, name: "made" };
    await crash("capture.decided", (client) => client.call("POST", "/v1/snapshots", { json }));
    await untilAgreed([]);
    await two.client.expect(404, "GET", `/v1/capsules/${capsule.id}`);
    const made = await one.client.capsule({ template: "made" });
    assert.equal((await untilReached(two, "GET", `/v1/capsules/${made.id}`)).status, 200);
    assert.equal(await two.client.known(made.id).sh("cat /root/kept"), "kept");
    await made.destroy();
    await two.client.expect(204, "DELETE", "/v1/snapshots/made");
    for (const { client } of [one, two]) {
      assert.deepEqual((await client.expect(200, "GET", "/v1/snapshots?type=snapshot")).json, []);
      await client.expect(404, "POST", "/v1/capsules", { json: { template: "made" } });
    }
  });

  test("a key that was decided is listed on both hosts, and can be revoked", { skip }, async () => {
    await crash("key.decided", (client) => client.call("POST", "/v1/keys", { json: { name: "of nobody" } }));
    const named = async ({ client }: Daemon) => {
      const { json } = await client.expect(200, "GET", "/v1/keys");
      return json.keys.filter(({ name }: { name: string }) => name === "of nobody");
    };
    for (const host of [one, two]) await waitFor("the key is listed", async () => (await named(host)).length === 1);
    const [{ id }] = await named(two);
    await two.client.expect(204, "DELETE", `/v1/keys/${id}`);
    for (const host of [one, two]) await waitFor("the key is gone", async () => (await named(host)).length === 0);
  });

  test("a create whose first status was copied goes on", { skip }, async () => {
    // The daemon may end before the client has its answer.
    await crash("status.copied", (client) => client.call("POST", "/v1/capsules", { json: { name: "web" } }));
    const [made] = await listed(two);
    assert.equal((await untilReached(two, "GET", `/v1/capsules/${made.id}`)).status, 200);
    for (const { client } of [one, two]) await client.known(made.id).until("running");
    await untilAgreed([{ id: made.id, status: "running", name: "web" }]);
    await two.client.known(made.id).destroy();
    await untilAgreed([]);
  });
});

const covered = new Set<ClusterStepName>();

test("every named step of a cluster has a test", { skip }, () => {
  assert.deepEqual(
    clusterSteps.filter((step) => !covered.has(step)),
    [],
  );
});

/** Sorted ids of the capsules whose VMs run. */
function vmsOf({ server }: Daemon): string[] {
  const names = processesOf(server.dataDir).map(({ command }) => /-name guest=(\S+) nonce=/.exec(command)?.[1]);
  return [...new Set(names.filter((name) => name !== undefined))].sort();
}
