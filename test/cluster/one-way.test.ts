/**
 * Links of which one way is lost: requests arrive and their answers do not, or the reverse. Two real daemons with VMs over PostgreSQL; the
 * first one makes all capsules. Each test leaves the cluster whole.
 */
import assert from "node:assert/strict";
import { after, afterEach, before, describe, test } from "node:test";
import type { Reply, TestCapsule } from "../client.ts";
import { processesOf } from "../server.ts";
import { waitFor, within } from "../wait-for.ts";
import { bare, type Daemon, Daemons, noRoom } from "./daemons.ts";
import type { Way } from "./link.ts";
import { lacksPostgres } from "./postgres-server.ts";

const skip = lacksPostgres;
const ways: readonly Way[] = ["requests", "answers"];
/** Requests that are refused as unavailable, and what is behind them. */
const errors = [/"code":"unavailable"/, /the cluster's database is away/, /cannot be reached now/];

describe("a link of which one way is lost", { skip, concurrency: false }, () => {
  let daemons: Daemons | undefined;
  let [one, two]: Daemon[] = [];
  let capsule: TestCapsule;
  before(async () => {
    const envOf = (name: string) => ({ ...bare, ...(name === "two" ? noRoom : {}) });
    daemons = await Daemons.start({ names: ["one", "two"], envOf, errors });
    [one, two] = daemons.hosts;
    capsule = await one!.client.capsule({ timeout_sec: 0 });
    await capsule.sh("touch /dev/shm/runs");
    await two!.client.known(capsule.id).view();
  });
  afterEach(() => {
    for (const { database, peers } of daemons?.hosts ?? []) for (const link of [database, peers]) link.open();
  });
  after(() => daemons?.[Symbol.asyncDispose]());

  /** How often the command of the tests has run. */
  const runs = async () => Number(await capsule.sh("wc -l < /dev/shm/runs"));
  /** The command through the host that does not hold the capsule. */
  const counted = (more = "") => {
    const args = ["-c", `echo run >> /dev/shm/runs; ${more}`];
    return two!.client.known(capsule.id).exec({ cmd: "sh", args, timeout: 0 });
  };

  function assertUnavailable({ status, json, text }: Reply, what: string): void {
    assert.deepEqual([status, json?.error.code], [503, "unavailable"], `${what}: ${text}`);
  }

  for (const way of ways)
    test(`${way} between hosts are lost: a command through the other host is 503 and runs never, late or not`, async () => {
      const before = await runs();
      one!.peers.cut(); // no connection is kept
      one!.peers.hold(way);
      const reply = await counted();
      assertUnavailable(reply, way);
      assert.deepEqual(reply.json.error.details, { host: "one" });
      assert.equal(await runs(), before);
      one!.peers.open();
      await waitFor("the host to be reached", async () => (await counted()).status === 200);
      assert.equal(await runs(), before + 1);
    });

  test("answers are lost of a command that runs: its client loses the connection, and nothing runs it again", async () => {
    const before = await runs();
    const lost = counted("until [ -e /dev/shm/go ]; do sleep 0.1; done; touch /dev/shm/gone").then(
      ({ status }) => status,
      () => "lost",
    );
    await waitFor("the command to run", async () => (await runs()) === before + 1);
    one!.peers.hold("answers");
    await capsule.sh("touch /dev/shm/go; until [ -e /dev/shm/gone ]; do sleep 0.1; done");
    assert.equal(await within("the end of the connection", lost), "lost");
    one!.peers.open();
    await waitFor("the host to be reached", async () => (await counted()).status === 200);
    assert.equal(await runs(), before + 2);
  });

  for (const way of ways)
    test(`${way} of PostgreSQL are lost: a create is 503, and made once when it is repeated`, async () => {
      const json = { name: `once-${way}`, timeout_sec: 0 };
      const create = () => one!.client.call("POST", "/v1/capsules", { json });
      await one!.client.expect(200, "GET", "/v1/capsules"); // by a connection that the create takes
      one!.database.hold(way);
      assertUnavailable(await create(), way);
      const through = two!.client.known(capsule.id);
      assert.equal(await through.sh("echo on"), "on");
      assert.equal((await through.pause()).status, "paused");
      assert.equal((await through.resume()).status, "running");
      one!.database.open();
      const made = await waitFor("the create", async () => {
        const reply = await create();
        if (reply.status === 201) return reply.json;
        // The first one was decided, and is not undone yet; or its statement comes late.
        assert.ok([409, 503].includes(reply.status), reply.text);
        return undefined;
      });
      await one!.client.known(made.id).until("running");
      const all = [capsule.id, made.id].sort();
      for (const { client } of daemons!.hosts)
        await waitFor("the capsules that there are", async () => {
          const { status, json } = await client.call("GET", "/v1/capsules");
          return status === 200 && String(json.map(({ id }: { id: string }) => id).sort()) === String(all);
        });
      const guests = processesOf(one!.server.dataDir).flatMap(
        ({ command }) => /guest=(cl-\w+) /.exec(command)?.[1] ?? [],
      );
      assert.deepEqual([...new Set(guests)].sort(), all);
      await one!.client.known(made.id).destroy();
      await daemons!.known();
    });
});
