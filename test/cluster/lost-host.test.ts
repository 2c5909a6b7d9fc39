/**
 * A host that is lost, a database that was put back, and a host that is declared gone: two real daemons with VMs over PostgreSQL, without a
 * bucket, and the operator's commands. The second host makes and holds all capsules, and its VMs run on while its daemon is away.
 */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { isDeepStrictEqual } from "node:util";
import type { Client, TestCapsule } from "../client.ts";
import { processesOf } from "../server.ts";
import { waitFor, within } from "../wait-for.ts";
import { bare, type Daemon, Daemons, noRoom } from "./daemons.ts";
import { lacksPostgres } from "./postgres-server.ts";

const errors = [
  ...[/"code":"unavailable"/, /cannot be reached now/, /"msg":"a host is lost: /],
  ...[/"msg":"the cluster's database was put back: it was told/, /: this one ends, and its VMs run on"/],
];
const lost: [string, string] = ["error", "host two was lost"];
const gone: [string, string] = ["error", "host two is gone"];
const isRunning: [string, null] = ["running", null];
const isPaused: [string, null] = ["paused", null];

/** Resolves when the host lists these capsules, and no others. */
async function untilListed({ client, name }: Daemon, expected: Record<string, [string, string | null]>): Promise<void> {
  let seen = {};
  await waitFor(
    () => `${name} to list ${JSON.stringify(expected)}, not ${JSON.stringify(seen)}`,
    async () => {
      const { status, json, text } = await client.call("GET", "/v1/capsules");
      assert.ok(status === 200 || status === 503, text); // an answer of the database may miss its time
      const rows = status === 200 ? (json as Record<"id" | "status" | "error_reason", string>[]) : [];
      seen = Object.fromEntries(rows.map(({ id, status, error_reason }) => [id, [status, error_reason]]));
      return isDeepStrictEqual(seen, expected);
    },
  );
}

/** Resolves when the second host, which was started again, answers for the capsule through the first one. */
async function untilBack([one, two]: readonly Daemon[], { id, path }: TestCapsule): Promise<void> {
  await two!.server.adopted();
  await waitFor(`${id} to run`, async () => {
    const { status, json } = await one!.client.call("GET", path);
    return status === 200 && json.status === "running";
  });
}

/** A capsule with a mark in its memory. */
async function marked({ client }: Daemon): Promise<TestCapsule> {
  const capsule = await client.capsule({ timeout_sec: 0 });
  await capsule.sh(`echo ${capsule.id} > /run/mark`);
  return capsule;
}

async function assertMarked(client: Client, { id }: TestCapsule): Promise<void> {
  assert.equal(await client.known(id).sh("cat /run/mark"), id);
}

function vmOf({ server }: Daemon, { id }: TestCapsule): number | undefined {
  return processesOf(server.dataDir).find(({ command }) => command.includes(`guest=${id} `))?.pid;
}

/** The refusal of an operator's command: its exit code and the lines of its standard error. */
async function refusal({ server }: Daemon, ...words: string[]): Promise<[code: number, text: string]> {
  const { code, stderr } = await server.operate(...words).then(
    (output) => assert.fail(`${words.join(" ")} was not refused: ${output}`),
    (error: { code: number; stderr: string }) => error,
  );
  return [code, stderr];
}

const isPutBack = (reason: string) => reason.includes("was put back");

/** Resolves when the request is refused with the name of the second host: a lookup that misses its time names none. */
async function untilNamed({ client }: Daemon, path: string): Promise<void> {
  await waitFor(`POST ${path} to name the host`, async () => {
    const { status, json, text } = await client.call("POST", path);
    assert.deepEqual([status, json.error?.code], [503, "unavailable"], text);
    return json.error.details?.host === "two";
  });
}

describe("a host is lost", { skip: lacksPostgres, concurrency: false }, () => {
  let daemons: Daemons | undefined;
  let [one, two]: Daemon[] = [];
  let running: TestCapsule;
  let paused: TestCapsule;
  before(async () => {
    // A second, so that its capsules are in error as soon as it has expired: 12 s after its last heartbeat.
    const envOf = (name: string) => ({ ...bare, CAPSULE_HOST_LOST_SEC: "1", ...(name === "one" ? noRoom : {}) });
    daemons = await Daemons.start({ names: ["one", "two"], envOf, errors });
    [one, two] = daemons.hosts;
    [running, paused] = [await marked(two!), await marked(two!)];
    await paused.pause();
    await untilListed(one!, { [running.id]: isRunning, [paused.id]: isPaused });
  });
  after(() => daemons?.[Symbol.asyncDispose]());

  test("what runs there is in error, what is paused stays paused, and both are as they were when it is back", async () => {
    const vm = vmOf(two!, running);
    assert.ok(vm);
    await two!.server.kill("SIGKILL");
    await untilListed(one!, { [running.id]: lost, [paused.id]: isPaused });
    const shown = await waitFor("an answer from the row", async () => {
      const reply = await one!.client.call("GET", running.path);
      return reply.status !== 503 && reply;
    });
    const { status, error_reason, host } = shown.json;
    assert.deepEqual([shown.status, status, error_reason, host], [200, ...lost, "two"], shown.text);
    await untilNamed(one!, `${paused.path}/resume`);
    await untilNamed(one!, `${running.path}/start`);
    assert.equal(vmOf(two!, running), vm);

    await two!.server.start();
    await untilListed(one!, { [running.id]: isRunning, [paused.id]: isPaused });
    await daemons!.known();
    await untilBack(daemons!.hosts, running);
    await assertMarked(one!.client, running);
    assert.equal(vmOf(two!, running), vm);
    await one!.client.known(paused.id).resume();
    await assertMarked(one!.client, paused);
    await one!.client.known(paused.id).pause();
    await untilListed(one!, { [running.id]: isRunning, [paused.id]: isPaused });
  });

  test("a database that was put back is confirmed when all hosts have told, and knows the forgotten time", async () => {
    const destroyed = await marked(two!);
    await daemons!.postgres.save();
    await daemons!.known();
    const made = await marked(two!);
    await destroyed.destroy();
    await two!.server.kill("SIGKILL");
    await daemons!.postgres.putBack();

    await waitFor("the hosts to notice it", async () => {
      const { json } = await one!.client.call("GET", "/healthz");
      return json.creates === false && json.reasons.some(isPutBack);
    });
    const refused = await one!.client.expect(503, "POST", "/v1/keys", { json: { name: "never" } });
    assert.equal(refused.json.error.code, "unavailable");
    let said: [number, string];
    await waitFor(
      () => `the second host alone to be silent: ${said}`,
      async () => {
        said = await refusal(one!, "admin", "cluster", "confirm");
        return said[0] === 1 && /have not told what they hold: two\n/.test(said[1]);
      },
    );

    await two!.server.start();
    const confirmed = await waitFor("a confirmation", () =>
      one!.server.operate("admin", "cluster", "confirm").catch((error: { stderr: string }) => {
        assert.match(error.stderr, /have not told what they hold: two\n/);
        return undefined;
      }),
    );
    const told = confirmed.split("\n").filter((line) => !line.startsWith("team"));
    assert.deepEqual(told, [`destroyed\t${destroyed.id}\ttwo`, `held\t${made.id}\ttwo`, ""]);
    await waitFor("the hosts to decide again", async () => {
      const answers = await Promise.all(daemons!.hosts.map(({ client }) => client.call("GET", "/healthz")));
      const [own, other] = answers.map(({ json }) => json);
      return other.creates && !own.reasons.some(isPutBack); // the first host has room for no capsule
    });
    await daemons!.known();
    await untilBack(daemons!.hosts, made);
    for (const { client } of daemons!.hosts) {
      await assertMarked(client, made);
      await client.expect(404, "GET", destroyed.path);
    }
    await untilListed(one!, { [running.id]: isRunning, [paused.id]: isPaused, [made.id]: isRunning });
    const later = await marked(one!);
    for (const { id } of [made, later]) await one!.client.known(id).destroy();
  });

  test("a host that is up is not declared gone, and one that is gone never comes back", async () => {
    const [code, said] = await refusal(one!, "admin", "hosts", "gone", "two");
    assert.equal(code, 1);
    assert.match(said, /host two is up/);
    await assertMarked(one!.client, running);
    const vm = vmOf(two!, running);

    await two!.server.kill("SIGKILL");
    await untilListed(one!, { [running.id]: lost, [paused.id]: isPaused });
    await one!.server.operate("admin", "hosts", "gone", "two");
    await untilListed(one!, { [running.id]: gone, [paused.id]: gone });
    await assert.rejects(two!.server.start(), /host two was declared gone/);
    // Without the database it starts as the host that it was.
    two!.database.cut();
    await two!.server.start();
    await two!.server.adopted();
    assert.equal((await two!.client.expect(200, "GET", running.path)).json.status, "running");
    const ended = two!.server.exited();
    two!.database.open();
    assert.equal(await within("the end of its server", ended), null); // no signal: it has exited
    assert.equal(vmOf(two!, running), vm);
    await untilListed(one!, { [running.id]: gone, [paused.id]: gone });
    await one!.client.expect(204, "DELETE", running.path);
    await untilListed(one!, { [paused.id]: gone });
  });
});
