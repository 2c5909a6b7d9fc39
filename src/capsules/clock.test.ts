/** The host's wall clock is set while capsules run: it names moments, and decides about none. */
import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { FakeClock } from "../../test/fakes/fake-clock.ts";
import { beginExec, fakeService, running } from "../../test/fakes/fake-service.ts";

const yearMs = 365 * 86_400_000;
const ttlSec = 10;

const status = async (service: ReturnType<typeof fakeService>, id: string) => {
  await service.settled();
  return service.capsules.get(service.team, id).status;
};

for (const stepMs of [yearMs, -yearMs]) {
  test(`a clock set ${stepMs > 0 ? "forward" : "back"} by a year neither hastens a pause nor holds it off`, async () => {
    const service = fakeService();
    const id = await running(service, ttlSec);
    service.clock.advance(4_000);
    service.capsules.ping(service.team, id);
    service.clock.advance(6_000);
    service.clock.step(stepMs);
    service.clock.advance(3_999);
    assert.equal(await status(service, id), "running");
    service.clock.advance(1);
    assert.equal(await status(service, id), "paused");
  });
}

test("whatever the wall clock does, a capsule is paused after its time without activity, and not before", async () => {
  const event = fc.oneof(
    fc.record({ kind: fc.constant("advance" as const), ms: fc.nat(4_000) }),
    fc.record({ kind: fc.constant("step" as const), ms: fc.integer({ min: -yearMs, max: yearMs }) }),
    fc.record({ kind: fc.constantFrom("ping" as const, "exec" as const), ms: fc.nat(0) }),
  );
  await fc.assert(
    fc.asyncProperty(fc.array(event, { maxLength: 40 }), async (events) => {
      const service = fakeService();
      const id = await running(service, ttlSec);
      let idleMs = 0;
      for (const { kind, ms } of events) {
        if (kind === "step") service.clock.step(ms);
        else if (kind === "advance") {
          service.clock.advance(ms);
          idleMs += ms;
          if (idleMs >= ttlSec * 1_000) break;
        } else {
          if (kind === "ping") service.capsules.ping(service.team, id);
          else await beginExec(service, id)();
          assert.equal(service.capsules.get(service.team, id).lastActiveAt, service.clock.now());
          idleMs = 0;
        }
        assert.equal(await status(service, id), "running");
      }
      service.clock.advance(Math.max(0, ttlSec * 1_000 - idleMs));
      assert.equal(await status(service, id), "paused");
      service.database.close();
    }),
    { numRuns: 200 },
  );
});

test("set back while the server is away: the next one gives the capsule its whole time again, and no more", async () => {
  const before = fakeService();
  const id = await running(before, ttlSec);
  before.capsules.ping(before.team, id);
  before.activity.flush();
  const clock = new FakeClock();
  clock.step(-yearMs);
  const after = fakeService({ host: before.host, database: before.database, clock });
  await after.recover();
  clock.advance(9_999);
  assert.equal(await status(after, id), "running");
  clock.advance(1);
  assert.equal(await status(after, id), "paused");
});
