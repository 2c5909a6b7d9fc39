/**
 * A cluster of real daemons while something of it is away: PostgreSQL, a host's way to it or to the others, a daemon, a machine.
 * Each test leaves the cluster whole.
 */
import assert from "node:assert/strict";
import { cpSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { after, afterEach, before, describe, test } from "node:test";
import type { Call, Client, Reply, TestCapsule } from "../client.ts";
import { lastingPort } from "../lasting-port.ts";
import { processesOf, Server } from "../server.ts";
import { waitFor } from "../wait-for.ts";
import { bare, type Daemon, Daemons, isCutOff } from "./daemons.ts";
import { lacksPostgres } from "./postgres-server.ts";

const skip = lacksPostgres;

/** Requests that are refused as unavailable, and what is behind them. */
const refused = [/"code":"unavailable"/, /the cluster's database is away/, /cannot be reached now/];

describe("a cluster of which something is away", { concurrency: false }, () => {
  let daemons: Daemons;
  let one: Daemon;
  let two: Daemon;
  let three: Daemon;
  before(async () => {
    if (skip !== false) return;
    daemons = await Daemons.start({ errors: refused });
    [one, two, three] = ["one", "two", "three"].map((name) => daemons.host(name)) as [Daemon, Daemon, Daemon];
  });
  after(() => daemons?.[Symbol.asyncDispose]());
  afterEach(() => {
    for (const { database, peers } of daemons?.hosts ?? []) for (const link of [database, peers]) link.open();
  });

  /** A running capsule of this host with a file in its memory, which the hosts `known` have asked for. */
  async function made(host: Daemon, ...known: Daemon[]): Promise<TestCapsule> {
    const capsule = await waitFor(`a capsule on ${host.name}`, async () => {
      const made = await host.client.capsule({ timeout_sec: 0 }); // none is paused however long a fault lasts
      if ((await made.view()).host === host.name) return made;
      await made.destroy(); // by the memory of this machine, which others use, another host has clearly more
      return undefined;
    });
    await capsule.sh("echo kept > /dev/shm/kept");
    for (const { client } of known) await client.known(capsule.id).view();
    return capsule;
  }

  async function assertRuns({ client }: Daemon, { id }: TestCapsule): Promise<void> {
    assert.equal(await client.known(id).sh("cat /dev/shm/kept"), "kept");
  }

  async function assertPauses(host: Daemon, capsule: TestCapsule): Promise<void> {
    const known = host.client.known(capsule.id);
    assert.equal((await known.pause()).status, "paused");
    assert.equal((await known.resume()).status, "running");
    await assertRuns(host, capsule);
  }

  /** The requests that need a decision, on a capsule of the host: each is refused, and nothing of it is done. */
  /** A statement of it may have been sent, and run when PostgreSQL answers again: nothing is known of the capsule behind that. */
  async function assertDecidesNothing({ client }: Daemon, { id, path }: TestCapsule): Promise<void> {
    const refuses = async (method: string, of: string, json?: object) => {
      const call: Call = json === undefined ? {} : { json };
      assertUnavailable(await client.call(method, of, call), `${method} ${of}`);
    };
    const ofCapsule = async () => {
      await refuses("DELETE", path);
      await refuses("PATCH", path, { name: "never" });
      await refuses("POST", "/v1/snapshots", { sandbox_id: id, name: "never" });
    };
    await Promise.all([
      ofCapsule(), // each takes 5 s
      refuses("POST", "/v1/capsules", {}),
      refuses("POST", "/v1/keys", { name: "never" }),
      refuses("GET", "/v1/capsules"),
      refuses("GET", "/v1/audit"),
    ]);
    const { status, name } = await client.known(id).view();
    assert.deepEqual([status, name], ["running", null]);
  }

  /** 503 with the name of the host, once its requests are given up. */
  async function untilUnavailable({ client }: Daemon, host: string, capsule: TestCapsule): Promise<void> {
    await waitFor(`${host} to be unavailable`, async () => {
      const reply = await client.call("GET", capsule.path);
      return reply.status !== 200 && isNamed(reply, "GET", host);
    });
  }

  /** The request is refused, and the answer names the host that it would go to. */
  async function assertNamed({ client }: Daemon, host: string, path: string, json?: object): Promise<void> {
    await waitFor(`POST ${path} to name ${host}`, async () => {
      return isNamed(await client.call("POST", path, json === undefined ? {} : { json }), path, host);
    });
  }

  async function untilCutOff(host: Daemon): Promise<void> {
    await waitFor(`${host.name} to count PostgreSQL as away`, () => isCutOff(host));
    const { status, json } = await host.client.call("GET", "/healthz");
    assert.deepEqual([status, json.creates], [200, false]);
  }

  async function untilListed({ client }: Daemon, expected: Record<string, string>): Promise<void> {
    let seen = {};
    await waitFor(
      () => `${JSON.stringify(expected)} to be listed, not ${JSON.stringify(seen)}`,
      async () => {
        const { json } = await client.expect(200, "GET", "/v1/capsules");
        seen = Object.fromEntries(json.map(({ id, status }: { id: string; status: string }) => [id, status]));
        return Object.entries(expected).every(([id, status]) => (seen as Record<string, string>)[id] === status);
      },
    );
  }

  async function restart({ server }: Daemon): Promise<void> {
    await server.kill("SIGKILL");
    await server.start();
    await server.adopted();
  }

  const ways = {
    "PostgreSQL has ended": {
      begin: () => daemons.postgres.stop(),
      end: () => daemons.postgres.resume(),
    },
    "PostgreSQL answers nothing": {
      begin: async () => {
        for (const { database } of daemons.hosts) database.hold();
      },
      end: async () => {
        for (const { database } of daemons.hosts) database.open();
      },
    },
  };

  for (const [what, { begin, end }] of Object.entries(ways)) {
    test(`${what}: capsules go on at every host that knows their holder, and nothing is decided`, {
      skip,
    }, async () => {
      const capsule = await made(one, two);
      const paused = await made(one);
      await paused.pause();
      const refused = await made(one);
      await begin();
      try {
        for (const host of [one, two]) await untilCutOff(host);
        await assertDecidesNothing(one, refused);
        for (const host of [one, two]) await assertRuns(host, capsule);
        await assertPauses(two, capsule);
        assert.equal((await two.client.known(capsule.id).view()).status, "running");
        await restart(one);
        await assertRuns(one, capsule);
        await assertRuns(two, capsule);
        await paused.resume();
        await assertRuns(one, paused);
        await capsule.pause();
      } finally {
        await end();
      }
      await daemons.known();
      await untilListed(three, { [capsule.id]: "paused", [paused.id]: "running" });
      for (const { id } of [capsule, paused]) await three.client.known(id).destroy();
      await waitFor("the capsule of the refused requests to be gone", async () => {
        const { status } = await three.client.call("DELETE", refused.path);
        return status === 204 || status === 404;
      });
    });
  }

  test("a host cut off from PostgreSQL keeps its capsules, also through the others, which decide", {
    skip,
  }, async () => {
    const capsule = await made(one, two);
    const other = await made(two, one);
    one.database.cut();
    await untilCutOff(one);
    await assertDecidesNothing(one, capsule);
    await assertPauses(one, capsule);
    await assertRuns(one, other);
    await untilExpired("one");
    await assertPauses(two, capsule);
    assertUnavailable(await two.client.call("DELETE", capsule.path), "its holder cannot decide");
    const elsewhere = await made(two, three);
    await three.client.known(elsewhere.id).destroy();
    await daemons.known();
    for (const { id } of [capsule, other]) await waitedFor(three.client, id, (known) => known.destroy());
  });

  test("hosts that do not reach each other answer for their own capsules, and name the other one", {
    skip,
  }, async () => {
    const [capsule, other] = [await made(one, two), await made(two, one)];
    for (const { peers } of [one, two]) peers.cut();
    await untilUnavailable(two, "one", capsule);
    await untilUnavailable(one, "two", other);
    await assertNamed(two, "one", `${capsule.path}/exec`, { cmd: "true" });
    await assertPauses(one, capsule);
    const third = await made(three, one);
    await assertRuns(one, third);
    await one.client.known(third.id).destroy();
    await (await made(one)).destroy();
    await daemons.known();
    await assertRuns(two, capsule);
    await assertRuns(one, other);
    for (const each of [capsule, other]) await each.destroy();
  });

  test("packets to a host that are lost end in 503 with its name", { skip }, async () => {
    const capsule = await made(one);
    one.peers.hold();
    await untilUnavailable(three, "one", capsule);
    await daemons.known();
    await assertRuns(three, capsule);
    await capsule.destroy();
  });

  test("an isolated host serves who reaches it, and is unavailable elsewhere", { skip }, async () => {
    const [capsule, paused] = [await made(one, two), await made(one)];
    await paused.pause();
    for (const link of [one.database, one.peers, two.peers, three.peers]) link.cut();
    await untilCutOff(one);
    await assertDecidesNothing(one, capsule);
    await assertPauses(one, capsule);
    await one.client.known(paused.id).resume();
    await assertRuns(one, paused);
    await untilUnavailable(two, "one", capsule);
    await daemons.known();
    await untilListed(two, { [capsule.id]: "running", [paused.id]: "running" });
    for (const { id } of [capsule, paused]) await waitedFor(two.client, id, (known) => known.destroy());
  });

  test("while a daemon is stopped its VMs run, and the other hosts answer for the rest", { skip }, async () => {
    const [capsule, other] = [await made(one, two), await made(two)];
    await capsule.sh("nohup sh -c 'while :; do date +%s%N > /dev/shm/tick; sleep 0.1; done' >/dev/null 2>&1 &");
    const before = await capsule.sh("until [ -s /dev/shm/tick ]; do sleep 0.1; done; cat /dev/shm/tick");
    const { pid } = one.server;
    process.kill(pid!, "SIGSTOP");
    try {
      await untilUnavailable(two, "one", capsule);
      await untilUnavailable(three, "one", capsule);
      await assertPauses(three, other);
      await (await made(two)).destroy();
      await untilListed(two, { [capsule.id]: "running", [other.id]: "running" });
      assert.ok(vmOf(one, capsule.id));
    } finally {
      process.kill(pid!, "SIGCONT");
    }
    await daemons.known();
    await waitedFor(two.client, capsule.id, (known) => known.view());
    await assertRuns(two, capsule);
    assert.notEqual(await capsule.sh("until [ -s /dev/shm/tick ]; do sleep 0.1; done; cat /dev/shm/tick"), before);
    for (const each of [capsule, other]) await each.destroy();
  });

  test("what a machine held is unavailable by its name until it is back: paused whole, and the rest in error", {
    skip,
  }, async () => {
    const [capsule, paused, other] = [await made(one, two), await made(one, two), await made(two)];
    await paused.pause();
    await untilListed(two, { [paused.id]: "paused" });
    await killMachine(one);
    for (const each of [capsule, paused]) await untilUnavailable(two, "one", each);
    await assertNamed(two, "one", `${paused.path}/resume`);
    await untilListed(two, { [capsule.id]: "running", [paused.id]: "paused", [other.id]: "running" });
    await assertPauses(three, other);
    await (await made(two)).destroy();
    await one.server.start();
    await daemons.known();
    await untilListed(three, { [capsule.id]: "error", [paused.id]: "paused" });
    await two.client.known(paused.id).resume();
    await assertRuns(two, paused);
    for (const each of [capsule, paused, other]) await each.destroy();
  });

  test("a second daemon of a name is refused at its start, and the first one goes on", { skip }, async () => {
    const capsule = await made(one, two);
    const file = one.server.environment.CAPSULE_CLUSTER!;
    await assert.rejects(one.server.operate("serve"), /already|in use|another/);
    const own = { CAPSULE_HOST_NAME: "one", CAPSULE_PEER_PORT: await lastingPort() };
    const starting = (copied: readonly string[]) =>
      Server.start({
        env: { ...bare, ...own, CAPSULE_CLUSTER: file },
        prepare: async ({ dataDir }) => {
          for (const name of copied) cpSync(join(one.server.dataDir, name), join(dataDir, name));
          return {};
        },
      });
    await assert.rejects(starting([]), /another data folder has joined as host one/);
    const all = readdirSync(one.server.dataDir).filter((name) => /^(host\.json|api-key|capsule\.db.*)$/.test(name));
    assert.ok(all.includes("host.json"));
    await assert.rejects(starting(all), /is a copy, or was moved/);
    for (const host of [one, two]) await assertRuns(host, capsule);
    await (await made(one)).destroy();
    await capsule.destroy();
  });

  /** PostgreSQL has seen no heartbeat of it for a while, and so the others have not. */
  async function untilExpired(name: string): Promise<void> {
    await waitFor(`${name} to be expired`, async () => {
      const listed = JSON.parse(await two.server.operate("admin", "hosts", "--json")) as Record<string, string>[];
      return listed.find((each) => each.name === name)?.state === "expired";
    });
  }
});

function assertUnavailable({ status, json, text }: Reply, what: string): void {
  assert.deepEqual([status, json?.error.code], [503, "unavailable"], `${what}: ${text}`);
}

/** False: the lookup of the capsule had no answer in its 2 s, and no host is named. */
function isNamed(reply: Reply, what: string, host: string): boolean {
  assertUnavailable(reply, what);
  const { details } = reply.json.error;
  if (details !== undefined) assert.deepEqual(details, { host }, what);
  return details !== undefined;
}

/** A host that is back is known to the others with their next heartbeats. */
async function waitedFor(client: Client, id: string, act: (capsule: TestCapsule) => Promise<unknown>): Promise<void> {
  const known = client.known(id);
  await waitFor(`${id} to be reached`, async () => (await client.call("GET", known.path)).status === 200);
  await act(known);
}

function vmOf({ server }: Daemon, id: string): { pid: number } | undefined {
  return processesOf(server.dataDir).find(({ command }) => command.includes(`guest=${id} `));
}

/** Its daemon and everything that it has started. */
async function killMachine({ server }: Daemon): Promise<void> {
  await server.kill("SIGKILL");
  await waitFor("all processes of the machine have ended", () => {
    const left = processesOf(server.dataDir);
    for (const { pid } of left) {
      try {
        process.kill(pid, "SIGKILL");
      } catch {} // it has just ended
    }
    return left.length === 0;
  });
}
