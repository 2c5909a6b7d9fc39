/** Requests that meet at one capsule: waits of one request, two changes, a start during a stop. */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { fakeService, running } from "../../test/fakes/fake-service.ts";
import { waitFor } from "../../test/wait-for.ts";

const minuteMs = 60_000;

describe("a request that waits for an adoption and then for a resume", () => {
  it("has one deadline for both", async () => {
    const service = fakeService();
    const { capsules, adoptions, transitions, store, host, clock, team } = service;
    const id = await running(service, 0, { autoResume: true });
    adoptions.begin(id);
    let end: unknown;
    const used = capsules.use(team, id, "files", () => {});
    used.catch((error: unknown) => {
      end = error;
    });
    clock.advance(4_000);
    await transitions.pause(store.setIntentUnsynced(store.require(team, id), "pause"));
    host.isHanging = true;
    adoptions.end(id);
    await waitFor("a resume is under way", () => store.get(id)?.intent === "resume");
    clock.advance(minuteMs - 4_001);
    await new Promise(setImmediate);
    assert.equal(end, undefined);
    clock.advance(1);
    await assert.rejects(used, { code: "timeout" });
    host.stopHanging();
    await service.settled();
  });
});

describe("two changes at once", () => {
  it("are both whole, and labels of both are there", async () => {
    const service = fakeService();
    const { capsules, team } = service;
    const id = await running(service);
    await Promise.all([
      (async () => capsules.update(team, id, { name: "one", labels: { a: "1", shared: "one" }, timeoutSec: 10 }))(),
      (async () => capsules.update(team, id, { name: "two", labels: { b: "2", shared: "two" }, timeoutSec: 20 }))(),
    ]);
    const { name, labels, timeoutSec } = capsules.get(team, id);
    assert.deepEqual(
      { name, labels, timeoutSec },
      {
        ...{ name: "two", timeoutSec: 20 },
        labels: { a: "1", b: "2", shared: "two" },
      },
    );
  });

  it("leave all of one when the other is refused", async () => {
    const service = fakeService();
    const { capsules, team } = service;
    const [id, other] = [await running(service), await running(service)];
    const changes = [id, other].map(async (each) => {
      return capsules.update(team, each, { name: "same", labels: { of: each }, timeoutSec: 7 });
    });
    const results = await Promise.allSettled(changes);
    assert.deepEqual(
      results.map(({ status }) => status),
      ["fulfilled", "rejected"],
    );
    const { name, labels, timeoutSec } = capsules.get(team, other);
    assert.deepEqual({ name, labels, timeoutSec }, { name: null, labels: {}, timeoutSec: 0 });
  });
});

describe("a start while a stop is under way", () => {
  it("is 409, and the stop goes on as if it had not been there", async () => {
    const service = fakeService();
    const { capsules, host, team } = service;
    const id = await running(service);
    const [begun, mayEnd] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    host.shuttingDown = () => {
      begun.resolve();
      return mayEnd.promise;
    };
    const stopping = capsules.stop(team, id);
    await begun.promise;
    const before = [...host.owners];
    await assert.rejects(capsules.start(team, id), { code: "invalid_state" });
    assert.deepEqual([host.owners, host.admitted], [before, 0]);
    mayEnd.resolve();
    assert.equal((await stopping).status, "stopped");
    assert.equal((await capsules.start(team, id)).status, "running");
  });
});
