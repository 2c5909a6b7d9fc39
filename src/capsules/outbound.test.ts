/** The hand-over of capsules' runs to their way out, and the counters that come back. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { FakeHost } from "../../test/fakes/fake-host.ts";
import { FakeOutbound } from "../../test/fakes/fake-outbound.ts";
import { type FakeServiceOptions, fakeService } from "../../test/fakes/fake-service.ts";
import { Statements } from "../../test/teams/statements.ts";
import { noNetwork } from "../network/policy.ts";
import type { Egress } from "../wire/network.ts";

const request = { template: "minimal", vcpus: 1, memoryMb: 512, timeoutSec: 0 };
const policyOf = (egress: Egress) => ({ ...noNetwork, egress });

interface WorldOptions extends FakeServiceOptions {
  networkSocket?: string | null;
}

function world({ networkSocket = "/vm/net.sock", ...options }: WorldOptions = {}) {
  const outbound = new FakeOutbound();
  const host = new FakeHost();
  host.networkSocket = networkSocket;
  const service = fakeService({ ...options, host, outbound });
  const create = async (egress: Egress = "public") => {
    const { id } = await service.capsules.create(service.team, { ...request, network: policyOf(egress) });
    await service.settled();
    return id;
  };
  /** The calls since the last one. */
  const told = () => outbound.told.splice(0).map(([what]) => what);
  return { ...service, host, outbound, create, told };
}

describe("a run", () => {
  test("is handed over after its commit, with its policy, whatever that is", async () => {
    const { outbound, create, store } = world();
    const statuses: unknown[] = [];
    outbound.onBegan = ({ id, socket, teamId }) => statuses.push([store.get(id)?.status, socket, teamId]);
    for (const egress of ["none", "allowlist", "public"] as const) {
      const id = await create(egress);
      assert.deepEqual(outbound.told.pop(), ["began", id, { egress, allow: [], deny: [] }]);
    }
    assert.deepEqual(statuses, Array(3).fill(["running", "/vm/net.sock", "team-blue"]));
  });

  test("ends after the commit of a pause, and begins anew with a resume", async () => {
    const { capsules, team, create, told, settled, store, outbound } = world();
    const id = await create();
    const ended = outbound.ended.bind(outbound);
    outbound.ended = (each) => {
      assert.equal(store.get(each)?.status, "paused");
      ended(each);
    };
    await capsules.pause(team, id);
    await settled();
    assert.deepEqual(told(), ["began", "ended"]);
    await capsules.resume(team, id);
    assert.deepEqual(told(), ["began"]);
  });

  test("goes on where a pause or a capture fails", async () => {
    const { capsules, templates, team, create, told, host, settled } = world();
    const id = await create();
    told();
    host.before = (verb) => assert.notEqual(verb, "save");
    await assert.rejects(capsules.pause(team, id));
    await assert.rejects(templates.capture(team, { capsuleId: id, name: "tools", overwrite: true }));
    await settled();
    assert.deepEqual(told(), []);
  });

  test("ends once with a stop, a delete, a capture and the loss of the VM", async () => {
    const { capsules, templates, team, create, told, host, settled } = world();
    const ends: ((id: string) => unknown)[] = [
      (id) => capsules.stop(team, id),
      (id) => capsules.destroy(team, id),
      (id) => templates.capture(team, { capsuleId: id, name: "tools", overwrite: true }),
      (id) => host.guests.get(id)?.endWith({ kind: "lost", reason: "its VM died" }),
    ];
    for (const end of ends) {
      const id = await create();
      told();
      await end(id);
      await new Promise(setImmediate);
      await settled();
      assert.deepEqual(told(), ["ended"]);
    }
  });

  test("begins with a start from the disk, and with an adoption", async () => {
    const { capsules, team, create, told, host, database, clock } = world();
    const id = await create();
    await capsules.stop(team, id);
    told();
    await capsules.start(team, id);
    assert.deepEqual(told(), ["began"]);
    const outbound = new FakeOutbound();
    const next = fakeService({ host, database, clock, outbound });
    await next.recover();
    await next.settled();
    assert.deepEqual(
      outbound.told.map(([what, of]) => [what, of]),
      [["began", id]],
    );
  });

  test("of a guest without a network port is not told", async () => {
    const { capsules, team, create, outbound } = world({ networkSocket: null });
    const id = await create();
    assert.deepEqual(outbound.told, []);
    assert.equal((await capsules.networks.view(team, id)).isUnsupported, true);
  });

  test("is denied everything while its policy cannot be read", async () => {
    const { capsules, team, create, outbound, database, settled } = world();
    const id = await create();
    await capsules.pause(team, id);
    await settled();
    database.prepare("UPDATE capsules SET network = '{' WHERE id = ?").run(id);
    await capsules.resume(team, id);
    assert.deepEqual(outbound.told.pop(), ["began", id, { egress: "none", allow: [], deny: [] }]);
    await assert.rejects(capsules.networks.view(team, id), /cannot be read/);
  });

  test("costs create, pause and resume no statement that a run without a network does not", async () => {
    const counted: string[][] = [];
    for (const egress of ["none", "public"] as const) {
      const statements = new Statements();
      const { capsules, team, create, settled } = world({ database: statements.database });
      statements.take();
      const id = await create(egress);
      await capsules.pause(team, id);
      await settled();
      await capsules.resume(team, id);
      counted.push(statements.take());
    }
    assert.deepEqual(counted[0], counted[1]);
  });
});

describe("a change of the policy", () => {
  test("that comes before the processes run is handed over with them", async () => {
    const { capsules, team, create, host, outbound, settled } = world();
    const id = await create();
    await capsules.pause(team, id);
    await settled();
    const { promise, resolve } = Promise.withResolvers<void>();
    host.before = (verb) => {
      if (verb !== "release") return;
      capsules.update(team, id, { network: policyOf("none") });
      resolve();
    };
    await capsules.resume(team, id);
    await promise;
    assert.deepEqual(outbound.told.pop(), ["began", id, { egress: "none", allow: [], deny: [] }]);
  });

  test("is bounded by the operator's ceiling", async () => {
    const { capsules, team, create, outbound } = world({ rules: { ceiling: "allowlist" } });
    const id = await create("public");
    assert.equal(outbound.told.pop()?.[2]?.egress, "allowlist");
    capsules.update(team, id, { network: { ...policyOf("public"), deny: ["1.1.1.1"] } });
    await capsules.networks.applied(id);
    assert.deepEqual(outbound.told.pop(), ["changed", id, { egress: "allowlist", allow: [], deny: ["1.1.1.1"] }]);
  });
});

describe("counters", () => {
  const added = { connections: 3, denied: 2, bytesOut: 100, bytesIn: 200 };
  const twice = { connections: 6, denied: 4, bytesOut: 200, bytesIn: 400 };

  test("are kept for as long as the capsule, through pauses and restarts of the server", async () => {
    const { capsules, team, create, host, database, clock, networkCounters, settled } = world();
    const [id, other] = [await create(), await create()];
    networkCounters.add(id, added);
    const of = async (each: string) => (await capsules.networks.view(team, each)).counters;
    assert.deepEqual(await of(id), added, "before they are written");
    await networkCounters.flushInParts();
    networkCounters.add(id, added);
    assert.deepEqual(await of(id), twice);
    await capsules.pause(team, id);
    await settled();
    networkCounters.flush();
    const next = fakeService({ host, database, clock });
    assert.deepEqual(next.networkCounters.of(id), twice);
    assert.deepEqual(next.networkCounters.of(other), { connections: 0, denied: 0, bytesOut: 0, bytesIn: 0 });
  });

  test("of many capsules are written in parts, each without a sync", async () => {
    const statements = new Statements();
    const { networkCounters, create } = world({ database: statements.database });
    const ids = [await create(), ...Array.from({ length: 249 }, (_, index) => `cl-${index}`)];
    for (const id of ids) networkCounters.add(id, added);
    statements.take();
    await networkCounters.flushInParts();
    const taken = statements.take();
    assert.equal(taken.filter((sql) => sql.startsWith("UPDATE capsules")).length, 250);
    assert.equal(taken.filter((sql) => sql === "COMMIT").length, 3);
    assert.equal(taken.filter((sql) => sql === "PRAGMA synchronous = NORMAL").length, 3);
    await networkCounters.flushInParts();
    assert.deepEqual(statements.take(), []);
    assert.deepEqual(networkCounters.of(ids[0]!), added);
  });

  test("that cannot be written stay for the next time", async () => {
    const { networkCounters, create, database } = world();
    const id = await create();
    networkCounters.add(id, added);
    database.exec("CREATE TRIGGER full BEFORE UPDATE OF bytes_in ON capsules BEGIN SELECT RAISE(ABORT, 'full'); END");
    await assert.rejects(networkCounters.flushInParts());
    database.exec("DROP TRIGGER full");
    assert.deepEqual(networkCounters.of(id), added);
    await networkCounters.flushInParts();
    assert.deepEqual(networkCounters.of(id), added);
  });
});
