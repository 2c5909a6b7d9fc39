/** The service's end of the relay, with a process in the relay's place that does what the tests tell it. */
import assert from "node:assert/strict";
import { type ChildProcess, fork } from "node:child_process";
import { readdirSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import { describe, test } from "node:test";
import { GuestPort } from "../../test/fakes/guest-port.ts";
import { waitFor } from "../../test/wait-for.ts";
import { loadConfig } from "../config.ts";
import { strictRules } from "../network/grants.ts";
import type { NetworkDecision } from "../wire/network.ts";
import type { RelayPolicy, RunCounts } from "./messages.ts";
import { Relay } from "./relay.ts";
import { relaySettings } from "./relay-settings.ts";
import { resolversIn } from "./resolv-conf.ts";

const peer = join(import.meta.dirname, "../../test/fakes/relay-peer.ts");
const open: RelayPolicy = { egress: "public", allow: [], deny: [] };
const shut: RelayPolicy = { egress: "none", allow: [], deny: [] };

/** Timers that fire when the test says so. */
class Timers {
  readonly waiting = new Map<() => void, number>();

  readonly after = (ms: number, callback: () => void): (() => void) => {
    if (ms === 0) {
      const immediate = setImmediate(callback);
      return () => clearImmediate(immediate);
    }
    this.waiting.set(callback, ms);
    return () => this.waiting.delete(callback);
  };

  /** The delays under way, but for those of answers and ends of the process. */
  delays(): number[] {
    return [...this.waiting.values()].filter((ms) => ms !== 10_000 && ms !== 120_000).sort((a, b) => a - b);
  }

  fire(ms: number): void {
    for (const [callback, each] of [...this.waiting]) {
      if (each === ms && this.waiting.delete(callback)) callback();
    }
  }
}

class World implements AsyncDisposable {
  readonly timers = new Timers();
  readonly counted: [id: string, added: RunCounts][] = [];
  readonly decided: [id: string, decided: NetworkDecision[]][] = [];
  readonly names: Record<string, number>[] = [];
  readonly logged: string[] = [];
  readonly processes: ChildProcess[] = [];
  /** An error: the process cannot be started. */
  fault: Error | undefined;
  useResolvers: (resolvers: string[]) => void = () => {};
  readonly relay: Relay;

  constructor() {
    const note = (about: object, message: string) => void this.logged.push(`${message} ${JSON.stringify(about)}`);
    this.relay = new Relay({
      start: async () => {
        if (this.fault !== undefined) throw this.fault;
        const process = fork(peer, { execArgv: [] });
        this.processes.push(process);
        return process;
      },
      settings: relaySettings({ ...strictRules, deny: ["5.6.7.8"] }, loadConfig({}).limits),
      watch: (onChange) => {
        this.useResolvers = onChange;
        return { resolvers: ["10.9.8.7"], close() {} };
      },
      onCounts: (id, added) => void this.counted.push([id, added]),
      onDecisions: (id, decided) => void this.decided.push([id, decided]),
      onNames: (results) => void this.names.push(results),
      log: { info: note, warn: note, error: note },
      after: this.timers.after,
    });
    this.relay.open();
  }

  run(id: string, port: GuestPort, policy = open): void {
    this.relay.began({ id, teamId: "team-red", socket: port.path, policy });
  }

  async up(): Promise<void> {
    await waitFor("the relay is up", () => this.relay.isUp);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.relay.close();
    assert.ok(this.processes.every(({ exitCode, signalCode }) => exitCode !== null || signalCode !== null));
  }
}

/** Descriptors of sockets in this process. */
function sockets(): number {
  const links = readdirSync("/proc/self/fd").map((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`);
    } catch {
      return ""; // that of the folder
    }
  });
  return links.filter((link) => link.startsWith("socket:")).length;
}

describe("a hand-over", () => {
  test("gives the relay the port with the policy, and its end takes it back", async () => {
    await using port = await GuestPort.listen();
    await using world = new World();
    world.run("cl-a", port);
    const { run, capsule, team, policy, settings } = await port.message("attach");
    assert.deepEqual([run, capsule, team, policy], [1, "cl-a", "team-red", open]);
    assert.deepEqual(
      [settings.resolvers, settings.reserved, settings.limits.connectionsMax],
      [["10.9.8.7"], ["5.6.7.8"], 1_024],
    );
    await waitFor("no socket is open here", () => world.relay.openSockets === 0);
    assert.equal(port.open, 1, "the relay has it");
    assert.deepEqual(await world.relay.state("cl-a"), { connectionsOpen: 7 });
    world.relay.ended("cl-a");
    await port.closed();
    assert.deepEqual(await world.relay.state("cl-a"), { connectionsOpen: 0 });
    assert.equal(port.connections, 1);
  });

  test("of a VM that does not listen is tried again after delays that double", async () => {
    await using world = new World();
    await world.up();
    world.relay.began({ id: "cl-a", teamId: "t", socket: "/nowhere/net.sock", policy: open });
    for (const ms of [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 64_000]) {
      await waitFor(`it waits for ${ms} ms`, () => world.timers.delays().join() === String(ms));
      world.timers.fire(ms);
    }
    await waitFor("it waits", () => world.timers.delays().length === 1);
    world.relay.ended("cl-a");
    assert.deepEqual(world.timers.delays(), []);
  });

  test("that the relay has lost is made anew after delays that double", async () => {
    await using port = await GuestPort.listen();
    await using world = new World();
    world.run("cl-a", port);
    for (const [index, ms] of [250, 500, 1_000].entries()) {
      await port.message("attach", index + 1);
      port.say("lose");
      await waitFor(`it waits for ${ms} ms`, () => world.timers.delays().includes(ms));
      await port.closed();
      world.timers.fire(ms);
    }
    assert.equal((await port.message("attach", 4)).run, 4);
    assert.equal(port.openMost, 1, "QEMU takes one connection at a time");
    assert.equal(world.logged.filter((line) => line.includes("the test has asked for it")).length, 1);
  });

  test("leaves no socket behind, whenever its run ends", async () => {
    await using port = await GuestPort.listen();
    await using world = new World();
    await world.up();
    const before = sockets();
    for (let round = 0; round < 60; round++) {
      world.run("cl-a", port);
      for (let turn = 0; turn < round % 6; turn++) await new Promise(setImmediate);
      world.relay.ended("cl-a");
    }
    await port.closed();
    await waitFor("no socket is open here", () => world.relay.openSockets === 0);
    assert.equal(sockets(), before);
    world.run("cl-b", port);
    await waitFor("the last one is attached", () => port.heard.some(({ capsule }) => capsule === "cl-b"));
  });

  test("of more capsules than are connected to at once reaches all", async () => {
    await using port = await GuestPort.listen();
    await using world = new World();
    await world.up();
    const ids = Array.from({ length: 100 }, (_, index) => `cl-${index}`);
    for (const id of ids) world.run(id, port);
    await waitFor("all are attached", () => port.heard.filter(({ kind }) => kind === "attach").length === 100);
    assert.deepEqual(new Set(port.heard.map(({ capsule }) => capsule).filter(Boolean)), new Set(ids));
    await waitFor("no socket is open here", () => world.relay.openSockets === 0);
  });
});

describe("a policy", () => {
  test("is obeyed when the change resolves", async () => {
    await using port = await GuestPort.listen();
    await using world = new World();
    world.run("cl-a", port);
    await port.message("attach");
    await world.relay.changed("cl-a", shut);
    assert.deepEqual((await port.message("policy")).policy, shut);
  });

  test("that the relay does not confirm ends it, and holds from the next one on", async () => {
    await using port = await GuestPort.listen();
    await using world = new World();
    world.run("cl-a", port);
    await port.message("state");
    port.say("ignore");
    const asked = world.relay.changed("cl-a", shut);
    const [first] = world.processes;
    await waitFor("the first one is killed", () => {
      world.timers.fire(10_000);
      return first!.signalCode === "SIGKILL";
    });
    await asked;
    assert.equal(world.relay.isUp, false);
    assert.deepEqual((await port.message("attach", 2)).policy, shut);
  });

  test("of a capsule that the relay does not have is taken at once", async () => {
    await using port = await GuestPort.listen();
    await using world = new World();
    await world.relay.changed("cl-a", shut);
    world.run("cl-a", port);
    await world.relay.changed("cl-a", shut);
    assert.deepEqual((await port.message("attach")).policy, shut);
  });
});

describe("the process", () => {
  test("is started again when it is killed, and gets all ports with their last policy", async () => {
    await using one = await GuestPort.listen();
    await using other = await GuestPort.listen();
    await using world = new World();
    world.run("cl-a", one);
    world.run("cl-b", other);
    await one.message("attach");
    await other.message("attach");
    await world.relay.changed("cl-b", shut);
    world.processes[0]!.kill("SIGKILL");
    assert.deepEqual((await one.message("attach", 2)).policy, open);
    assert.deepEqual((await other.message("attach", 2)).policy, shut);
    assert.deepEqual([world.relay.report().restarts, one.openMost, other.openMost], [1, 1, 1]);
    assert.ok(world.relay.report().memoryBytes > 0);
  });

  test("is started again at once, then after 1, 2, 4 and 8 s", async () => {
    await using world = new World();
    await world.up();
    world.fault = new Error("there is no jail here");
    world.processes[0]!.kill("SIGKILL");
    await waitFor("it is down", () => !world.relay.isUp);
    for (const ms of [1_000, 2_000, 4_000, 8_000, 8_000]) {
      await waitFor(`it waits for ${ms} ms`, () => world.timers.delays().join() === String(ms));
      world.timers.fire(ms);
    }
    await waitFor("it waits", () => world.timers.delays().length === 1);
    world.fault = undefined;
    world.timers.fire(8_000);
    await world.up();
    assert.equal(
      world.logged.filter((line) => line.startsWith("the relay has ended")).length,
      1,
      "not at each attempt",
    );
  });

  test("that sends a message that is none is ended", async () => {
    await using port = await GuestPort.listen();
    await using world = new World();
    world.run("cl-a", port);
    await port.message("attach");
    port.say("junk");
    await port.message("attach", 2);
    assert.equal(world.processes.length, 2);
  });

  test("is told of other resolvers", async () => {
    await using port = await GuestPort.listen();
    await using world = new World();
    world.run("cl-a", port);
    await port.message("attach");
    world.useResolvers(["10.1.1.1"]);
    assert.deepEqual((await port.message("settings")).settings.resolvers, ["10.1.1.1"]);
  });

  test("ends with the service, and takes its connections along", async () => {
    await using port = await GuestPort.listen();
    const before = sockets();
    const world = new World();
    world.run("cl-a", port);
    await port.message("attach");
    await world.relay.close();
    await port.closed();
    assert.equal(world.processes[0]!.exitCode, 0);
    assert.equal(world.processes.length, 1, "it is not started again");
    await waitFor("no socket is left", () => sockets() === before);
  });

  test("may be closed while it starts", async () => {
    const world = new World();
    await world.relay.close();
    assert.ok(world.processes.every(({ exitCode, signalCode }) => exitCode !== null || signalCode !== null));
  });
});

test("counts are added to the capsule, also after its run, and never to another", async () => {
  await using port = await GuestPort.listen();
  await using other = await GuestPort.listen();
  await using world = new World();
  world.run("cl-a", port);
  await port.message("attach");
  world.run("cl-b", other);
  await other.message("attach");
  world.relay.ended("cl-a");
  await port.closed();
  other.say("count 1");
  other.say("count 2");
  other.say("count 99");
  await waitFor("three messages", () => world.names.length === 3);
  const added = { connections: 3, denied: 2, failed: 1, bytesOut: 100, bytesIn: 200 };
  assert.deepEqual(world.counted, [
    ["cl-a", added],
    ["cl-b", added],
  ]);
  assert.deepEqual([world.names[0], world.relay.report().connectionsOpen], [{ answered: 4 }, 2]);
});

describe("decisions", () => {
  const decided = (address: string) => [
    { at: new Date(0).toISOString(), verdict: "denied", reason: "reserved", address, count: 2 },
  ];

  test("are told of the run that they were made in, and of none that has ended", async () => {
    await using port = await GuestPort.listen();
    await using other = await GuestPort.listen();
    await using world = new World();
    world.run("cl-a", port);
    await port.message("attach");
    world.run("cl-b", other);
    await other.message("attach");
    port.say("decide 1 10.0.0.1");
    port.say("decide 2 10.0.0.2");
    await waitFor("two are told", () => world.decided.length === 2);
    world.relay.ended("cl-a");
    await port.closed();
    world.run("cl-a", port); // the capsule's next run
    await port.message("attach", 2);
    for (const line of ["decide 1 10.0.0.3", "decide 99 10.0.0.4", "decide 3 10.0.0.5"]) other.say(line);
    await waitFor("the last one is told", () => world.decided.length > 2);
    assert.deepEqual(world.decided, [
      ["cl-a", decided("10.0.0.1")],
      ["cl-b", decided("10.0.0.2")],
      ["cl-a", decided("10.0.0.5")],
    ]);
  });

  test("that the relay has not told yet are told before it ends with the service", async () => {
    await using port = await GuestPort.listen();
    await using world = new World();
    world.run("cl-a", port);
    await port.message("attach");
    port.say("keep");
    port.say("count"); // tells when that line was read
    await waitFor("both lines were read", () => world.names.length === 1);
    await world.relay.close();
    assert.deepEqual(world.decided, [["cl-a", decided("10.0.0.1")]]);
  });
});

test("resolvers are the addresses that resolv.conf names, three at most", () => {
  const text = "# nameserver 9.9.9.9\nnameserver 10.0.0.1\n nameserver\t::1 \nnameserver example\nsearch a b\n";
  assert.deepEqual(resolversIn(text), ["10.0.0.1", "::1"]);
  assert.deepEqual(resolversIn("nameserver 1.1.1.1\n".repeat(5)).length, 3);
  assert.deepEqual(resolversIn(""), []);
});
