/** Runs in namespaces of its own: as root (whole.test.ts), and as an ordinary user (whole-rootless.test.ts). */
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { get } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import type { TestCapsule } from "../client.ts";
import { waitFor } from "../wait-for.ts";
import { ask, askOverTls, echoes, flood, questions, reset } from "./guest-programs.ts";
import { borrowInternet, bytesOf, type LentInternet, unroutedAddress, world } from "./internet.ts";
import {
  connected,
  connectionsMax,
  Held,
  killGateway,
  python,
  type Target,
  useResolver,
  WholeWorld,
} from "./whole-world.ts";

const timeout = 600_000;
const isRootless = process.argv.includes("rootless");
const megabytes = 3_000_001;
const clones = isRootless ? 2 : 16;
const nothing = { connections: [], questions: [], resets: 0 };
const get80 = (host: string) => `GET / HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`;

const folder = mkdtempSync(join(tmpdir(), "whole-"));
/** A test to which the users and the jail of the service make no difference. */
const testAsRoot: typeof test = isRootless ? (((..._: unknown[]) => Promise.resolve()) as typeof test) : test;
let whole: WholeWorld<LentInternet>;

before(
  async () => {
    if (isRootless) whole = await WholeWorld.beside(borrowInternet());
    else {
      useResolver(folder);
      whole = await WholeWorld.open();
    }
  },
  { timeout },
);
after(async () => {
  await whole?.[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true });
});

const overTls = (capsule: TestCapsule, host: string, name = host, path = "/") =>
  python(capsule, askOverTls, host, name, path, whole.internet.certificate);

const times = (count: number, text: string) => Array.from({ length: count }, () => text);

describe("under public", () => {
  let capsule: TestCapsule;
  before(
    async () => {
      capsule = await whole.client.capsule();
    },
    { timeout },
  );
  after(async () => capsule?.destroy());

  test("a name is resolved, and megabytes come by HTTP and TLS as they were sent", { timeout }, async () => {
    const wanted = createHash("sha256").update(bytesOf(megabytes)).digest("hex");
    await whole.arrived();
    assert.equal(await overTls(capsule, "a.example", "a.example", `/bytes/${megabytes}`), wanted);
    const { connections, questions } = await whole.arrived();
    assert.deepEqual([connections, new Set(questions)], [[`${world.a}:443`], new Set(["A a.example"])]);
  });

  testAsRoot("150 connections at once keep every byte both ways, and their half-close", { timeout }, async () => {
    const sizes = [megabytes, ...Array.from({ length: 149 }, (_, index) => index * 100)];
    // By address: so many questions at once are beyond a limit.
    const results = JSON.parse(await python(capsule, echoes, world.a, 7, JSON.stringify(sizes)));
    assert.deepEqual(results, times(150, "exact"));
    assert.deepEqual((await whole.arrived()).connections, times(150, `${world.a}:7`));
  });

  testAsRoot("the server may speak first, and either side may reset", { timeout }, async () => {
    assert.equal(await python(capsule, ask, world.b, 9_100, ""), "printer");
    assert.equal(await python(capsule, ask, world.b, 9, "x"), "ECONNRESET");
    await whole.arrived();
    await python(capsule, reset, world.a, 7);
    await waitFor("the server has seen the reset", async () => (await whole.arrived()).resets === 1);
  });

  testAsRoot("refused and unreachable are told as they are", { timeout }, async () => {
    const outcomes = await connected(capsule, [
      [world.a, 11],
      [unroutedAddress, 80],
    ]);
    assert.deepEqual(outcomes, ["ECONNREFUSED", "EHOSTUNREACH"]);
  });

  test("reserved ranges, this machine, mail and names that lead there are shut, and nothing arrives", {
    timeout,
  }, async () => {
    const targets: [string, number][] = [
      [world.printer, 9_100],
      [world.metadata, 80],
      [world.machine, 8_080],
      [world.machine, Number(new URL(whole.server.url).port)],
      ["192.0.0.1", 8_080],
      ["172.17.0.1", 80],
      ["192.168.1.1", 80],
      [world.a, 25],
      [world.router, 25],
    ];
    await whole.arrived();
    assert.deepEqual(await connected(capsule, targets), times(targets.length, "EHOSTUNREACH"));
    assert.deepEqual(await whole.arrived(), nothing);
    const loopback: [string, number][] = ["127.0.0.1", "127.1.2.3", "localhost"].map((host) => [host, 8_080]);
    assert.deepEqual(await connected(capsule, loopback), times(3, "ECONNREFUSED"), "it is the guest's own");
    const names = ["private", "alias", "loopback", "machine", "metadata"];
    const named = names.map((name): [string, number] => [`${name}.example`, 8_080]);
    assert.deepEqual(await connected(capsule, named), times(names.length, "no name"));
    assert.deepEqual((await whole.arrived()).connections, []);
  });

  test("the URL of another capsule is shut, which is open to others", { timeout }, async () => {
    await using other = await whole.client.capsule({ network: { public_ports: [8_000] } });
    const server = { cmd: "python3", args: ["-u", "-m", "http.server", "8000"], background: true, tag: "web" };
    assert.equal((await other.exec(server)).status, 202);
    const port = Number(new URL(whole.server.url).port);
    const host = `8000-${other.id}.apps.example`;
    const opened = () =>
      new Promise<number | undefined>((resolve, reject) => {
        const url = { host: "127.0.0.1", port, headers: { host: `${host}:${port}` } };
        get(url, (response) => resolve(response.resume().statusCode)).on("error", reject);
      });
    await waitFor("the page is there for others", async () => (await opened()) === 200);
    const log = async () =>
      (await whole.client.expect(200, "GET", `${other.path}/processes/web/logs`)).bytes.toString();
    await waitFor("the request is logged", async () => (await log()).includes('" 200 -'));
    const before = await log();
    assert.equal(await python(capsule, ask, host, port, get80(host)), "no name");
    assert.equal(await python(capsule, ask, world.machine, port, get80(host)), "EHOSTUNREACH");
    assert.equal(await log(), before);
  });
});

describe("under a list", () => {
  let capsule: TestCapsule;
  before(
    async () => {
      capsule = await whole.client.capsule({ network: { egress: "allowlist", allow: ["a.example"] } });
    },
    { timeout },
  );
  after(async () => capsule?.destroy());

  test("what is listed works, and another name is none and shown as denied", { timeout }, async () => {
    await whole.arrived();
    assert.match(await overTls(capsule, "a.example"), /^[0-9a-f]{64}$/);
    assert.match(await python(capsule, ask, "a.example", 80, get80("a.example")), /^HTTP\/1\.1 200 /);
    assert.deepEqual((await whole.arrived()).connections, [`${world.a}:443`, `${world.a}:80`]);
    assert.equal(await overTls(capsule, "b.example"), "no name");
    assert.deepEqual(await connected(capsule, [[world.b, 7]]), ["EHOSTUNREACH"]);
    assert.deepEqual(await whole.arrived(), nothing);
    await whole.shows(
      capsule,
      ({ verdict, host, reason }) => verdict === "denied" && host === "b.example" && reason === "not listed",
      ({ verdict, address, port }) => verdict === "denied" && address === world.b && port === 7,
    );
  });

  testAsRoot("another name at a listed address is refused, by SNI and by Host", { timeout }, async () => {
    await whole.arrived();
    assert.match(await overTls(capsule, world.a, "b.example"), /ACCESS_DENIED/);
    assert.match(await python(capsule, ask, world.a, 80, get80("b.example")), /^HTTP\/1\.1 403 /);
    assert.deepEqual(await whole.arrived(), nothing);
  });

  testAsRoot("no question carries anything out, of any type, to any resolver", { timeout }, async () => {
    const resolvers = JSON.stringify(["192.0.0.1", world.dns, world.b, "10.0.0.5"]);
    await whole.arrived();
    const types = JSON.stringify([1, 2, 5, 6, 12, 15, 16, 28, 33, 64, 65, 99, 255, 257]);
    assert.equal(await python(capsule, questions, "secret.data.b.example", resolvers, types), "[3]");
    assert.deepEqual(await whole.arrived(), nothing);
  });

  testAsRoot("a PUT resets what it forbids of a hundred and leaves the rest, there and back", { timeout }, async () => {
    await whole.setNetwork(capsule, { egress: "public" });
    const pairs = Array.from({ length: 50 }, (): Target[] => [
      ["permitted", world.a, 13],
      ["forbidden", world.b, 13],
    ]);
    const held = await Held.open(capsule, pairs.flat());
    await whole.setNetwork(capsule, { egress: "allowlist", allow: [world.a] });
    const ended = times(50, "forbidden ECONNRESET");
    await waitFor("the forbidden ones end", async () => (await held.lines()).length === 150);
    assert.deepEqual(await connected(capsule, [[world.b, 13]]), ["EHOSTUNREACH"]);
    await whole.setNetwork(capsule, { egress: "public" });
    assert.deepEqual(await connected(capsule, [[world.b, 7]]), ["connected"]);
    const isRest = async () => (await whole.network(capsule)).counters.connections_open === 50;
    await waitFor("the rest is counted", isRest);
    assert.deepEqual((await held.lines()).slice(100), ended);
  });
});

test("the jail has the users of its form", { timeout }, async () => {
  const { jail } = (await whole.client.expect(200, "GET", "/healthz")).json;
  assert.equal(jail.mode, isRootless ? "rootless" : "full");
  const usersOf = (pid: number) => /^Uid:\t(.*)$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1];
  assert.equal(usersOf(await whole.relay()) === usersOf(whole.server.pid!), isRootless);
});

const ways: Target[] = [
  ["half-closed", world.a, 13],
  ["reading", world.a, 12],
  ["waiting", world.a, 13],
  ["writing", world.a, 10],
];
const allReset = ways.map(([way]) => `${way} ECONNRESET`);
/** A program that writes to a connection that was reset may also see this. */
const ends = async (held: Held) => (await held.ends()).map((line) => line.replace("EPIPE", "ECONNRESET"));

describe("open connections are reset, and new ones work,", () => {
  async function works(capsule: TestCapsule): Promise<void> {
    await waitFor("a new one works", async () => (await connected(capsule, [["a.example", 7]]))[0] === "connected");
  }

  test("after a pause, and in every clone", { timeout }, async () => {
    await using capsule = await whole.client.capsule();
    const held = await Held.open(capsule, ways);
    await capsule.pause();
    await capsule.resume();
    assert.deepEqual(await ends(held), allReset, "the capsule");
    await works(capsule);
    const kept = await Held.open(capsule, ways);
    await whole.client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: capsule.id, name: "connected" } });
    for (let count = 0; count < clones; count++) {
      await using clone = await whole.client.capsule({ template: "connected" });
      assert.deepEqual(await ends(kept.in(clone)), allReset, "a clone");
      await works(clone);
    }
    await whole.client.expect(204, "DELETE", "/v1/snapshots/connected");
  });

  test("after the deaths of server, relay and gateway, and commands live on", { timeout }, async () => {
    const { id } = await whole.client.capsule();
    const capsule = () => whole.client.known(id);
    const deaths: [string, () => unknown][] = [
      ["SIGTERM", () => whole.restart("SIGTERM")],
      ["SIGKILL", () => whole.restart("SIGKILL")],
      ["relay", async () => process.kill(await whole.relay(), "SIGKILL")],
      ["gateway", () => killGateway(capsule())],
    ];
    for (const [name, die] of deaths) {
      const held = await Held.open(capsule(), ways);
      await die();
      assert.deepEqual(await ends(held.in(capsule())), allReset, name);
      await works(capsule());
    }
    await capsule().destroy();
  });
});

testAsRoot("a pause that fails leaves connections open", { timeout }, async () => {
  await using capsule = await whole.client.capsule();
  const held = await Held.open(capsule, ways);
  whole.signalVm(capsule.id, "SIGSTOP");
  await whole.client.expect(502, "POST", `${capsule.path}/pause`);
  whole.signalVm(capsule.id, "SIGCONT");
  const isThere = async () => (await whole.network(capsule)).counters.connections_open === ways.length;
  await waitFor("the connections are counted", isThere);
  assert.equal((await held.lines()).length, ways.length, "none has ended");
  await whole.setNetwork(capsule, { egress: "none" });
  assert.deepEqual(await ends(held), allReset, "now");
});

testAsRoot("a capsule's flood of connections and names leaves its neighbour's working", { timeout }, async () => {
  await using loud = await whole.client.capsule();
  await using quiet = await whole.client.capsule();
  const flooding = python(loud, flood, world.a, 13, connectionsMax + 100, 400);
  const results: string[] = [];
  for (let count = 0; count < 4; count++)
    results.push(...JSON.parse(await python(quiet, echoes, "a.example", 7, "[1,1000,100000]")));
  assert.deepEqual(results, times(results.length, "exact"));
  const counts = JSON.parse(await flooding);
  assert.deepEqual([counts.connected, counts.EHOSTUNREACH], [connectionsMax, 100]);
  await whole.shows(loud, ({ reason }) => reason === "limit");
});
