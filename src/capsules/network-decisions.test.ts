/** The last decisions about running capsules: through restarts of the server, to the end of the run. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { FakeHost } from "../../test/fakes/fake-host.ts";
import { type FakeServiceOptions, fakeService, running } from "../../test/fakes/fake-service.ts";
import { Statements } from "../../test/teams/statements.ts";
import type { NetworkDecision } from "../wire/network.ts";

const at = "2026-11-28T12:00:00.000Z";
const decision = (port: number, host = "a.example"): NetworkDecision => ({
  ...{ at, verdict: "denied", reason: "not listed", host, port, count: 1 },
});

function world(options: FakeServiceOptions = {}) {
  const host = options.host ?? new FakeHost();
  host.networkSocket = "/vm/net.sock";
  const service = fakeService({ ...options, host });
  const { capsules, team, networkDecisions, database, clock } = service;
  return {
    ...service,
    create: () => running(service),
    recent: async (id: string) => (await capsules.networks.view(team, id)).recent,
    add: (id: string, ...ports: number[]) =>
      networkDecisions.add(
        id,
        ports.map((port) => decision(port)),
      ),
    /** The server's next life. */
    restart: async () => {
      const next = world({ host, database, clock });
      await next.recover();
      await next.settled();
      return next;
    },
    stored: () =>
      database
        .prepare("SELECT capsule_id AS id FROM network_decisions")
        .all()
        .map(({ id }) => id),
  };
}

describe("the last decisions", () => {
  test("are shown at once, and outlive the server, where they are added to", async () => {
    const first = world();
    const id = await first.create();
    first.add(id, 1, 2);
    assert.deepEqual(await first.recent(id), [decision(1), decision(2)]);
    await first.networkDecisions.flushInParts();
    first.add(id, 3); // within a second of the server's death
    const second = await first.restart();
    second.add(id, 1);
    const expected = [decision(2), { ...decision(1), count: 2 }];
    assert.deepEqual(await second.recent(id), expected);
    second.networkDecisions.flush();
    const third = await second.restart();
    assert.deepEqual(await third.recent(id), expected);
  });

  test("are 100 different ones of each capsule", async () => {
    const service = world();
    const [id, other] = [await service.create(), await service.create()];
    for (let port = 1; port <= 250; port++) service.add(id, port);
    service.add(other, 1);
    service.networkDecisions.flush();
    const next = await service.restart();
    assert.deepEqual(
      (await next.recent(id)).map(({ port }) => port),
      Array.from({ length: 100 }, (_, index) => index + 151),
    );
    assert.deepEqual(await next.recent(other), [decision(1)]);
  });

  test("go with a pause, a stop and a destroy, and what comes late is nobody's", async () => {
    const service = world();
    const { capsules, team, networkDecisions, settled } = service;
    const ends = { pause: "resume", stop: "start", destroy: undefined } as const;
    for (const [end, begin] of Object.entries(ends)) {
      const id = await service.create();
      service.add(id, 1);
      await networkDecisions.flushInParts();
      assert.deepEqual(service.stored(), [id]);
      await capsules[end as keyof typeof ends](team, id);
      await settled();
      service.add(id, 2);
      assert.deepEqual(networkDecisions.of(id), []);
      if (begin !== undefined) {
        await capsules[begin](team, id);
        await settled();
        assert.deepEqual(await service.recent(id), [], begin);
      }
      await networkDecisions.flushInParts();
      assert.deepEqual(service.stored(), []);
    }
  });

  test("stay where a pause fails", async () => {
    const service = world();
    const id = await service.create();
    service.add(id, 1);
    service.host.before = (verb) => assert.notEqual(verb, "save");
    await assert.rejects(service.capsules.pause(service.team, id));
    await service.settled();
    assert.deepEqual(await service.recent(id), [decision(1)]);
  });

  for (const isRunning of [false, true]) {
    test(`of a run that ended before the server died are forgotten, the capsule ${isRunning ? "runs again" : "is paused"}`, async () => {
      const service = world();
      const id = await service.create();
      service.add(id, 1);
      service.networkDecisions.flush();
      service.clock.advance(1_000);
      await service.capsules.pause(service.team, id);
      if (isRunning) await service.capsules.resume(service.team, id);
      await service.settled();
      assert.deepEqual(service.stored(), [id], "it has not been removed yet");
      const next = await service.restart();
      assert.deepEqual([next.stored(), await next.recent(id)], [[], []]);
    });
  }

  test("that cannot be read are none", async () => {
    const service = world();
    const id = await service.create();
    service.add(id, 1);
    service.networkDecisions.flush();
    const good = JSON.stringify([7, decision(1), { verdict: "maybe" }]);
    for (const [text, expected] of [
      ["[", []],
      ["7", []],
      [good, [decision(1)]],
    ] as const) {
      service.database.prepare("UPDATE network_decisions SET decisions = ?").run(text);
      const next = await service.restart();
      assert.deepEqual(await next.recent(id), expected);
    }
  });
});

describe("their writing", () => {
  test("costs nothing where nothing was decided, and one statement for each capsule, without a sync", async () => {
    const statements = new Statements();
    const service = world({ database: statements.database });
    const ids = [await service.create(), await service.create()];
    await service.capsules.pause(service.team, await service.create());
    await service.settled();
    statements.take();
    await service.networkDecisions.flushInParts();
    assert.deepEqual(statements.take(), []);
    for (const id of [...ids, ...ids]) service.add(id, 1, 2, 3);
    assert.deepEqual(statements.take(), [], "nor when it is decided");
    await service.networkDecisions.flushInParts();
    const taken = statements.take();
    assert.equal(taken.filter((sql) => sql.startsWith("INSERT INTO network_decisions")).length, 2);
    assert.deepEqual(
      taken.filter((sql) => !sql.startsWith("INSERT")),
      ["PRAGMA synchronous = NORMAL", "BEGIN IMMEDIATE", "COMMIT", "PRAGMA synchronous = FULL"],
    );
  });

  test("is of 1 MiB at once, in parts; the capsule that waits longest comes first", async () => {
    const service = world();
    const { networkDecisions } = service;
    const long = (port: number) => decision(port, "x".repeat(250));
    const ids: string[] = [];
    for (let count = 0; count < 60; count++) ids.push(await service.create());
    const addAll = () => {
      for (const id of ids)
        networkDecisions.add(
          id,
          Array.from({ length: 100 }, (_, port) => long(port)),
        );
    };
    addAll();
    await networkDecisions.flushInParts();
    const first = service.stored();
    assert.ok(first.length >= 25 && first.length < 50, `${first.length}`);
    addAll();
    await networkDecisions.flushInParts();
    assert.deepEqual(new Set(service.stored()), new Set(ids));
  });

  test("is tried again where it fails", async () => {
    const service = world();
    const id = await service.create();
    service.add(id, 1);
    service.database.exec(
      "CREATE TRIGGER full BEFORE INSERT ON network_decisions BEGIN SELECT RAISE(ABORT, 'full'); END",
    );
    await assert.rejects(service.networkDecisions.flushInParts());
    assert.deepEqual(await service.recent(id), [decision(1)]);
    service.database.exec("DROP TRIGGER full");
    await service.networkDecisions.flushInParts();
    assert.deepEqual(service.stored(), [id]);
  });
});
