/**
 * A cluster whose hosts get this version one after the other, from an earlier commit, and are then started anew, while clients go on: real
 * daemons with VMs, PostgreSQL and Ceph. No request fails. The images are this version's from the beginning.
 */
import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { Postgres } from "../../src/cluster/postgres.ts";
import { steps } from "../../src/cluster/schema/migration.ts";
import { readVm } from "../../src/host/disk/capsule-folder.ts";
import type { Capsule, Client } from "../../src/sdk/sdk.ts";
import type { TestCapsule } from "../client.ts";
import { isLong } from "../faults/faults-form.ts";
import { hasCommit, unpackCommit } from "../past-sources.ts";
import { waitFor } from "../wait-for.ts";
import { CephServer, lacksCeph } from "./ceph-server.ts";
import { bare, type Daemon, Daemons, untilConnected } from "./daemons.ts";
import { lacksPostgres } from "./postgres-server.ts";
import { Balancer, type Round, Traffic } from "./traffic.ts";

/** An earlier commit with a lower schema of PostgreSQL's and of SQLite's, whose clusters this version takes over. */
const commitBefore = "7426506ce9a91da6f0cac9d0957614000635949e";
/** Hosts of the version before wait so long for one that is started anew, and this version's for one that tells them. */
const [waitedBeforeMs, waitedMs] = [5_000, 30_000];
/** Within the drain time of 10 s, and longer than hosts of the version before waited. */
const longSec = 8;
const deadline = { timeout: 1_200_000 };

const lacked = lacksPostgres || lacksCeph || (!hasCommit(commitBefore) && `the history back to ${commitBefore}`);
const skip = lacked || (!isLong && "only with CAPSULE_FAULTS=long");

interface Ticks {
  /** The numbers of the output so far. */
  seen: () => number[];
  states: string[];
  end: () => Promise<void>;
}

/** A terminal that counts aloud, through every break of its connection. */
async function ticking(capsule: Capsule): Promise<Ticks> {
  const states: string[] = [];
  const pty = await capsule.pty({ args: ["--norc"], envs: { PS1: "" }, onState: (state) => states.push(state) });
  let text = "";
  const reading = (async () => {
    for await (const bytes of pty) text += new TextDecoder().decode(bytes);
  })();
  reading.catch(() => {}); // a test that has failed reads no longer
  await pty.write("stty -echo; i=0; while :; do echo tick-$((i++)); sleep 0.2; done\n");
  const seen = () => [...text.matchAll(/tick-(\d+)\r/g)].map((found) => Number(found[1]));
  await waitFor("the first tick", () => seen().length > 0);
  const end = async () => {
    pty.detach();
    await reading;
  };
  return { seen, states, end };
}

/** A command that a stop waits for. Resolves when it has begun. */
async function longCommand(capsule: Capsule): Promise<{ done: Promise<{ stdout: string }> }> {
  const mark = "/run/long";
  await capsule.exec("rm", ["-f", mark]);
  const done = capsule.exec("sh", ["-c", `echo begun; touch ${mark}; sleep ${longSec}; echo ended`]);
  done.catch(() => {}); // a test that has failed waits no longer
  await waitFor("the command to have begun", async () => (await capsule.exec("test", ["-e", mark])).exitCode === 0);
  return { done };
}

/** The clients' requests, about capsules of both hosts. */
function roundsOf(client: Client, steady: readonly string[], resting: string): Record<string, Round> {
  const of = (count: number) => client.capsule(steady[count % steady.length]!);
  return {
    async commands(count) {
      const { stdout } = await of(count).exec("echo", [`said-${count}`]);
      assert.equal(stdout, `said-${count}\n`);
    },
    async work(count) {
      const { stdout } = await of(count).exec("sh", ["-c", `sleep 0.5; echo done-${count}`]);
      assert.equal(stdout, `done-${count}\n`);
    },
    async files(count) {
      const { files } = of(count);
      await files.write("/root/count", String(count));
      assert.equal(await files.readText("/root/count"), String(count));
    },
    async looks() {
      const listed = (await client.list()).map(({ id }) => id);
      assert.deepEqual(
        steady.filter((id) => listed.includes(id)),
        steady,
      );
      for (const id of steady) assert.equal((await client.connect(id)).status, "running");
    },
    async makes(count) {
      const capsule = await client.create();
      const { stdout } = await capsule.exec("echo", [`made-${count}`]);
      assert.equal(stdout, `made-${count}\n`);
      await capsule.destroy();
    },
    async rests() {
      const capsule = client.capsule(resting);
      await capsule.pause();
      await capsule.resume();
      assert.equal((await capsule.exec("cat", ["/run/mark"])).stdout, "memory\n");
    },
  };
}

describe("hosts are upgraded one after the other", { skip }, () => {
  const folder = mkdtempSync(join(tmpdir(), "capsule-upgraded-hosts-"));
  const sources = join(folder, "before");
  let ceph: CephServer | undefined;
  let daemons: Daemons | undefined;
  before(async () => {
    mkdirSync(sources);
    await unpackCommit(commitBefore, sources);
    ceph = await CephServer.startIn(join(folder, "ceph"));
    daemons = await Daemons.start({
      ...{ names: ["one", "two"], bucket: await ceph.newBucket(), isDirect: true },
      envOf: () => ({ ...bare, CAPSULE_RELEASE_AFTER_SEC: "5" }),
      filesOf: () => ({ program: join(sources, "src/main.ts") }),
    });
  }, deadline);
  after(async () => {
    try {
      await daemons?.[Symbol.asyncDispose]();
    } finally {
      await ceph?.remove();
      rmSync(folder, { recursive: true });
    }
  });

  const isOld = ({ server }: Daemon) => readFileSync(`/proc/${server.pid}/cmdline`, "utf8").includes(sources);
  const vmOf = async ({ server }: Daemon, { id }: TestCapsule) =>
    (await readVm(join(server.dataDir, "capsules", id)))!.process;

  async function schema(): Promise<number> {
    const { postgres: url } = JSON.parse(
      readFileSync(daemons!.host("one").server.environment.CAPSULE_CLUSTER!, "utf8"),
    );
    const sql = await Postgres.open({ url, ticks: () => performance.now() });
    try {
      const [row] = await sql.query<{ schema: number }>("SELECT schema FROM cluster", [], { what: "the schema" });
      return row!.schema;
    } finally {
      await sql.close();
    }
  }

  /** A capsule of that host, with a mark in its memory. */
  async function marked({ client, name }: Daemon): Promise<TestCapsule> {
    const capsule = await client.capsule({ timeout_sec: 0 });
    assert.equal((await capsule.view()).host, name);
    await capsule.sh("echo memory > /run/mark");
    return capsule;
  }

  /**
   * With this version's program. Resolves with the time in which it took no connection. The version before ends requests of other hosts that
   * are under way when it stops, so none is then.
   */
  async function startAnew(host: Daemon, traffic: Traffic): Promise<number> {
    const { name, server } = host;
    const letGo = isOld(host) ? await traffic.hold() : undefined;
    const beganMs = performance.now();
    await server.kill("SIGTERM");
    letGo?.();
    await daemons!.start(name);
    const awayMs = performance.now() - beganMs;
    await server.adopted();
    await untilConnected(daemons!.host(name));
    return Math.round(awayMs);
  }

  test("no request fails, no VM ends, and the schema is this version's", deadline, async (t) => {
    const hosts = daemons!.hosts as [Daemon, Daemon];
    assert.deepEqual(hosts.map(isOld), [true, true]);
    const schemaBefore = await schema();
    const steady = [await marked(hosts[0]), await marked(hosts[1])];
    const [resting, released] = [await marked(hosts[0]), await marked(hosts[1])];
    await released.pause();
    const vms = await Promise.all(steady.map((capsule, index) => vmOf(hosts[index]!, capsule)));
    const balancer = new Balancer(hosts.map(({ server }) => server.url));
    const client = balancer.client(hosts[0].server.apiKey);
    const ids = steady.map(({ id }) => id);
    const terminals = await Promise.all(ids.map((id) => ticking(client.capsule(id))));
    await waitFor(
      "the paused capsule to be released",
      async () => (await client.connect(released.id)).info.host === null,
    );

    const traffic = new Traffic(roundsOf(client, ids, resting.id));
    const awayMs: number[] = [];
    for (const host of hosts) {
      await traffic.goesOn();
      awayMs.push(await startAnew(host, traffic));
    }
    for (const [index, host] of hosts.entries()) {
      await traffic.goesOn();
      const command = await longCommand(client.capsule(ids[index]!));
      awayMs.push(await startAnew(host, traffic));
      assert.equal((await command.done).stdout, "begun\nended\n");
    }
    await traffic.goesOn();
    await traffic.end();
    t.diagnostic(JSON.stringify({ awayMs, ...balancer.counts, rounds: traffic.done }));
    const late = awayMs.filter((ms, index) => ms >= (index < hosts.length ? waitedBeforeMs : waitedMs));
    assert.deepEqual(late, [], "this machine is too busy: hosts wait no longer for one that is started anew");
    assert.ok(
      awayMs.slice(hosts.length).every((ms) => ms > waitedBeforeMs),
      "the drain waits for the command",
    );
    assert.deepEqual(traffic.failures, []);

    assert.deepEqual(hosts.map(isOld), [false, false]);
    assert.ok(schemaBefore < steps.length);
    assert.equal(await schema(), steps.length);
    assert.deepEqual(await Promise.all(steady.map((capsule, index) => vmOf(hosts[index]!, capsule))), vms);
    for (const [index, { seen, states, end }] of terminals.entries()) {
      const count = seen().length;
      await waitFor(`terminal ${index} to go on`, () => seen().length > count);
      assert.deepEqual(seen(), [...seen().keys()], "each number once, in order");
      assert.ok(states.includes("reconnecting"));
      await end();
    }
    const back = client.capsule(released.id);
    await back.resume();
    assert.equal((await back.exec("cat", ["/run/mark"])).stdout, "memory\n", "released by the version before");
  });
});
