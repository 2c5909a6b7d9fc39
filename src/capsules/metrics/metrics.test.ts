import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { fakeService, running } from "../../../test/fakes/fake-service.ts";
import { PointRing } from "./point-ring.ts";

type Service = ReturnType<typeof fakeService>;

const stepMs = 10_000;

/** A pass after ten seconds, in which the capsule's VM has used `spentMs` of CPU. */
async function pass({ clock, host, metrics }: Service, id?: string, spentMs = 0): Promise<void> {
  const guest = id === undefined ? undefined : host.guests.get(id);
  if (guest !== undefined) guest.spentMs = (guest.spentMs ?? 0) + spentMs;
  clock.advance(stepMs);
  await metrics.pass();
}

const agentOf = (service: Service, id: string) => service.host.guests.get(id)!.agent;

describe("metrics of a capsule", () => {
  it("have a point of each pass, and ask an idle guest once in a run", async () => {
    const service = fakeService();
    const id = await running(service);
    for (let count = 0; count < 5; count++) await pass(service, id);
    const agent = agentOf(service, id);
    assert.equal(agent.asked, 1);
    agent.asked = 0;
    for (let count = 0; count < 5; count++) await pass(service, id, 99);
    service.clock.advance(stepMs);
    const points = await service.metrics.ofCapsule(id, 10, 0);
    assert.equal(agent.asked, 0, "no frame to an idle guest, for an answer neither");
    assert.equal(points.length, 11, "ten that are kept, and one for the answer");
    assert.deepEqual(points[5]!.values, [1, 1, 64, 512, 1_024, 4_096]);
    assert.equal((await service.metrics.ofCapsule(id, 10, points[9]!.at)).length, 1);
  });

  it("ask a guest that was active, and repeat what is known when it does not answer", async () => {
    const service = fakeService();
    const id = await running(service);
    await pass(service, id, 20_000);
    await pass(service, id, 5_000);
    const agent = agentOf(service, id);
    assert.equal(agent.asked, 2);
    agent.usageNow = () => Promise.reject(new Error("no answer"));
    await pass(service, id, 5_000);
    const points = await service.metrics.ofCapsule(id, 10, 0);
    assert.deepEqual(
      points.map(({ values }) => values[0]),
      [200, 50, 50],
    );
    assert.equal(points.at(-1)!.values[2], 64);
  });

  it("have null for memory and disk of an agent that lacks the verb", async () => {
    const service = fakeService();
    const id = await running(service);
    agentOf(service, id).usageNow = () => Promise.reject(new Error("conflict"));
    await pass(service, id, 5_000);
    const [point] = await service.metrics.ofCapsule(id, 10, 0);
    assert.deepEqual(point!.values, [50, 1, null, null, null, null]);
  });

  it("believe a guest no more than it was given, and no use beyond that", async () => {
    const service = fakeService();
    const id = await running(service);
    const most = Number.MAX_SAFE_INTEGER; // as 2^64 - 1 is decoded
    agentOf(service, id).usageNow = async () => ({
      ...{ memoryTotalBytes: most, memoryUsedBytes: most, diskTotalBytes: 100 << 20, diskUsedBytes: most },
    });
    await pass(service, id, 5_000);
    const [point] = await service.metrics.ofCapsule(id, 10, 0);
    assert.deepEqual(point!.values, [50, 1, 512, 512, 100, 100]);
  });

  it("go on while the clock is set back, in the order in which they came", async () => {
    const service = fakeService();
    const id = await running(service);
    await pass(service, id);
    service.clock.step(-900_000);
    await pass(service, id);
    const points = await service.metrics.ofCapsule(id, 10, 0);
    assert.equal(points.length, 2);
    assert.ok(points[1]!.at < points[0]!.at);
  });

  it("are the last hour's, and means of five minutes outlive a pause and the daemon", async () => {
    const service = fakeService();
    const id = await running(service);
    for (let count = 0; count < 400; count++) await pass(service, id, count % 2 === 0 ? 0 : 2_000);
    assert.equal((await service.metrics.ofCapsule(id, 10, 0)).length, 360);
    await service.capsules.pause(service.team, id);
    const kept = await service.metrics.ofCapsule(id, 300, 0);
    assert.equal(kept.length, 13);
    assert.deepEqual(kept[3]!.values.slice(0, 2), [10, 1]);
    service.clock.advance(3_600_001);
    assert.deepEqual(await service.metrics.ofCapsule(id, 10, 0), []);
    await service.capsules.close(0);
    const { database, host, clock, secret } = service;
    const next = fakeService({ database, host, clock, secret });
    await next.recover();
    const after = await next.metrics.ofCapsule(id, 300, 0);
    assert.deepEqual(after.slice(0, 13), kept);
    assert.equal(after.length, 14, "what was not five minutes yet is written at the end");
    clock.advance(86_400_000);
    assert.deepEqual(await next.metrics.ofCapsule(id, 300, 0), []);
  });

  it("go with the capsule", async () => {
    const service = fakeService();
    const id = await running(service);
    for (let count = 0; count < 31; count++) await pass(service, id);
    assert.equal((await service.metrics.ofCapsule(id, 300, 0)).length, 1);
    await service.capsules.destroy(service.team, id);
    for (let count = 0; count < 31; count++) await pass(service);
    assert.deepEqual(await service.metrics.ofCapsule(id, 300, 0), []);
  });

  it("are complete when the service has closed during a pass", async () => {
    const service = fakeService();
    const id = await running(service);
    const agent = agentOf(service, id);
    const { promise, resolve } = Promise.withResolvers<void>();
    agent.usageNow = async () => {
      await promise;
      throw new Error("closed");
    };
    service.clock.advance(stepMs);
    const passed = service.metrics.pass();
    const closed = service.capsules.close(0);
    let hasClosed = false;
    void closed.then(() => {
      hasClosed = true;
    });
    await new Promise((later) => setTimeout(later, 0));
    assert.equal(hasClosed, false);
    resolve();
    await Promise.all([closed, passed]);
    assert.equal(service.metricRows.of(id, 0).length, 1);
  });
});

describe("metrics of a team", () => {
  it("count creates and refusals since the point before, of capsules that are gone too", async () => {
    const service = fakeService();
    await pass(service);
    const id = await running(service);
    await service.capsules.pause(service.team, await running(service));
    await service.capsules.destroy(service.team, id);
    service.metrics.refused(service.team);
    await pass(service);
    await pass(service);
    const points = service.metrics.ofTeam(service.team, 10, 0);
    assert.deepEqual(
      points.map(({ values }) => values),
      [
        [0, 1, 2, 0, 0, 1],
        [0, 1, 0, null, null, 0],
      ],
    );
    assert.deepEqual(service.metrics.ofTeam(service.other, 10, 0), []);
  });

  it("have sums and means of five minutes", async () => {
    const service = fakeService();
    for (let count = 0; count < 31; count++) {
      if (count === 15) await running(service);
      await pass(service);
    }
    const [point] = service.metrics.ofTeam(service.team, 300, 0);
    assert.deepEqual(point!.values.slice(0, 3), [1, 0, 1]);
  });
});

describe("PointRing", () => {
  it("has the last points of its size", () => {
    const ring = new PointRing(3, 2);
    for (let index = 0; index < 10; index++) ring.add(index, { at: 100 - index, values: [index, null] });
    assert.deepEqual(
      ring.since(-1).map(({ at, values }) => [at, ...values]),
      [
        [93, 7, null],
        [92, 8, null],
        [91, 9, null],
      ],
    );
    assert.equal(ring.since(8).length, 1);
  });
});
