import assert from "node:assert/strict";
import { test } from "node:test";
import { type FakeService, fakeService, running } from "../../test/fakes/fake-service.ts";
import { CapsuleError } from "../wire/errors.ts";
import { DiskUse, type QuotaLimits } from "./quotas.ts";

function serviceWith(quotas: Partial<QuotaLimits>): FakeService {
  return fakeService({ quotas });
}

const small = { template: "minimal", vcpus: 1, memoryMb: 512, timeoutSec: 0 };

async function refused(promise: Promise<unknown>, quota: string, used: number, limit: number): Promise<void> {
  await assert.rejects(promise, { code: "quota_exceeded", details: { quota, used, limit } });
}

test("usage is what the team's capsules and templates come to, and no other's", async () => {
  const service = serviceWith({});
  const { capsules, templates, team, other } = service;
  await running(service);
  const paused = await running(service);
  await capsules.pause(team, paused);
  const captured = await running(service);
  await templates.capture(team, { capsuleId: captured, name: "kept", overwrite: false });
  await capsules.create(other, { ...small, vcpus: 8 });
  await service.settled();
  await service.diskUse.measure();
  const { sizeBytes } = templates.list(team, "snapshot")[0]!;
  assert.deepEqual(capsules.usage(team), {
    capsules: 2,
    runningVcpus: 1,
    runningMemoryMb: 512,
    diskBytes: 2 * 1_000 + sizeBytes,
    templates: 1,
  });
});

test("of many creates at once for the last places, as many succeed as there are places", async () => {
  const service = serviceWith({ capsules: 3 });
  const results = await Promise.allSettled(
    Array.from({ length: 10 }, () => service.capsules.create(service.team, small)),
  );
  const reasons = results.filter((each) => each.status === "rejected").map((each) => each.reason as CapsuleError);
  assert.equal(reasons.length, 7);
  for (const { code, message } of reasons) {
    assert.equal(code, "quota_exceeded");
    assert.match(message, /the team has 3 capsules and may have 3/);
  }
  await service.settled();
  await service.capsules.create(service.other, small);
  await service.settled();
});

test("running vCPUs and memory: a paused capsule makes room, and takes it again when it resumes", async () => {
  const service = serviceWith({ runningVcpus: 3, runningMemoryMb: 1_200 });
  const { capsules, team } = service;
  const first = await running(service);
  await running(service);
  await refused(capsules.create(team, small), "MiB of running memory", 1_024, 1_200);
  await refused(capsules.create(team, { ...small, vcpus: 2, memoryMb: 128 }), "running vCPUs", 2, 3);
  await capsules.pause(team, first);
  const third = await running(service);
  await refused(capsules.resume(team, first), "MiB of running memory", 1_024, 1_200);
  assert.equal(capsules.get(team, first).status, "paused");
  await capsules.destroy(team, third);
  assert.equal((await capsules.resume(team, first)).status, "running");
});

test("templates: one that is replaced makes room for its successor", async () => {
  const service = serviceWith({ templates: 1 });
  const { templates, team } = service;
  const capture = (capsuleId: string, name: string) => templates.capture(team, { capsuleId, name, overwrite: true });
  await capture(await running(service), "a");
  const capsule = await running(service);
  await refused(capture(capsule, "b"), "templates", 1, 1);
  assert.equal(service.capsules.get(team, capsule).status, "running");
  await capture(capsule, "a");
});

test("templates: of many captures at once for the last places, as many succeed as there are places", async () => {
  const service = serviceWith({ templates: 3 });
  const { capsules, templates, team } = service;
  const keep = async (name: string) =>
    templates.capture(team, { capsuleId: await running(service), name, overwrite: true });
  await keep("old");
  const ids = await Promise.all(Array.from({ length: 5 }, () => running(service)));
  const results = await Promise.allSettled(
    ids.map((capsuleId, i) => {
      return templates.capture(team, { capsuleId, name: i === 0 ? "old" : `new-${i}`, overwrite: true });
    }),
  );
  assert.deepEqual(
    results.map((each) => (each.status === "fulfilled" ? "made" : (each.reason as CapsuleError).code)),
    ["made", "made", "made", "quota_exceeded", "quota_exceeded"],
  );
  assert.equal(capsules.usage(team).templates, 3);
  assert.deepEqual(
    ids.slice(3).map((id) => capsules.get(team, id).status),
    ["running", "running"],
  );
});

test("disk: a team that has filled its share makes no more capsules and templates", async () => {
  const service = serviceWith({ diskBytes: 2_000 });
  const [first] = [await running(service), await running(service)];
  await service.diskUse.measure();
  await refused(service.capsules.create(service.team, small), "bytes on disk", 2_000, 2_000);
  const capture = service.templates.capture(service.team, { capsuleId: first!, overwrite: false });
  await refused(capture, "bytes on disk", 2_000, 2_000);
  await service.capsules.destroy(service.team, first!);
  await running(service);
});

test("the host does not promise more memory than it may, to all teams together", async () => {
  const service = serviceWith({ hostMemoryMb: 1_024 });
  await running(service);
  await service.capsules.create(service.other, small);
  await assert.rejects(service.capsules.create(service.other, small), { code: "no_capacity" });
  await service.settled();
});

test("a host without room refuses creates and resumes, and nothing is left of them", async () => {
  const service = serviceWith({});
  const { capsules, host, team } = service;
  const paused = await running(service);
  await capsules.pause(team, paused);
  const refuse = async () => {
    throw new CapsuleError("no_capacity", "the host has no memory left");
  };
  host.admitStart = refuse;
  host.admitRestore = refuse;
  await assert.rejects(capsules.create(team, small), { code: "no_capacity" });
  await assert.rejects(capsules.resume(team, paused), { code: "no_capacity" });
  await assert.rejects(capsules.create(team, { ...small, template: "none" }), { code: "not_found" });
  assert.deepEqual(
    capsules.list(team).map(({ id, status }) => [id, status]),
    [[paused, "paused"]],
  );
});

test("memory is set aside until the start is over, however it ends", async () => {
  const service = serviceWith({ capsules: 2 });
  const { capsules, host, team } = service;
  const during: Record<string, number> = {};
  host.before = (verb) => {
    during[verb] = host.admitted;
    if (verb === "release") return;
    throw new Error("QEMU said no");
  };
  const failed = await capsules.create(team, small);
  assert.equal(host.admitted, 1, "the answer came before the start");
  await service.settled();
  host.before = (verb) => {
    during[verb] = host.admitted;
  };
  const id = await running(service);
  await capsules.pause(team, id);
  await assert.rejects(capsules.create(team, small), { code: "quota_exceeded" });
  assert.equal(host.admitted, 0, "a create that failed, one that succeeded, a refused one");
  await Promise.allSettled([capsules.resume(team, id), capsules.resume(team, id), capsules.resume(team, failed.id)]);
  assert.equal(capsules.get(team, id).status, "running");
  assert.deepEqual([during.start, during.restore, host.admitted], [1, 1, 0]);
});

test("the disk is looked at one capsule after the other; what cannot be read keeps its last figure", async () => {
  const sizes = new Map([["a", 1]]);
  let looks = 0;
  const use = new DiskUse({
    ids: () => ["a", "b"],
    measure: async (id) => {
      looks += 1;
      const size = sizes.get(id);
      if (size === undefined) throw new Error("gone");
      return size;
    },
  });
  assert.equal(use.of("a"), 0);
  await Promise.all([use.measure(), use.measure()]);
  assert.deepEqual([use.of("a"), use.of("b"), looks], [1, 0, 2]);
  sizes.clear();
  await use.measure();
  assert.equal(use.of("a"), 1);
});

test("starts under way: those beyond the bound are refused, leave nothing, and hold up no other team's", async () => {
  const service = serviceWith({ starts: 3 });
  const { capsules, team, other, host } = service;
  const paused = await running(service);
  await capsules.pause(team, paused);
  await service.settled();
  host.isHanging = true;
  const made = await Promise.all([1, 2, 3].map(() => capsules.create(team, small)));
  const [ids, rows] = [host.folders.size, capsules.list(team).length];
  await refused(capsules.create(team, small), "starts under way", 3, 3);
  await refused(capsules.resume(team, paused), "starts under way", 3, 3);
  assert.deepEqual([host.folders.size, capsules.list(team).length], [ids, rows]);
  assert.equal(capsules.get(team, paused).status, "paused");
  await capsules.create(other, small);
  host.isHanging = false;
  await capsules.destroy(team, made[0]!.id);
  assert.equal((await capsules.resume(team, paused)).status, "running", "a destroyed one waits no longer");
});

test("each team's work is given to the host under the team's own name", async () => {
  const service = serviceWith({});
  const { capsules, team, other } = service;
  const id = await running(service);
  await capsules.pause(team, id);
  await capsules.resume(team, id);
  await capsules.create(other, small);
  await service.settled();
  assert.deepEqual(service.host.owners, [team, team, other]);
});

test("each pause uses the disk's reserve of the capsule's own team, also the pauses by the service", async () => {
  const service = serviceWith({ diskBytes: 1_500 });
  const { capsules, team, other, host, clock } = service;
  const [first, idle, last] = [await running(service), await running(service, 60), await running(service)];
  await running({ ...service, team: other });
  await service.pauses.forMemory(first);
  await service.diskUse.measure();
  clock.advance(60_000);
  await service.settled();
  assert.equal(capsules.get(team, idle).status, "paused");
  await capsules.pause(team, last);
  const sharers = [team, other].sort();
  assert.deepEqual(
    host.shares.map((share) => ({ ...share, sharers: share.sharers.toSorted() })),
    [
      { owner: team, isOverQuota: false, sharers },
      { owner: team, isOverQuota: true, sharers },
      { owner: team, isOverQuota: true, sharers },
    ],
  );
  await service.settled();
  assert.deepEqual([...service.store.liveTeams()], [other]);
  const restarted = fakeService({ host, database: service.database });
  assert.deepEqual([...restarted.store.liveTeams()], [other]);
});

test("the memory of all running capsules is that of the table, also when a destroy ends a resume", async () => {
  const service = serviceWith({});
  const { capsules, team, other, host, store } = service;
  await running({ ...service, team: other });
  const id = await running(service);
  assert.equal(store.runningMemoryMb(), 1_024);
  await capsules.pause(team, id);
  await service.settled();
  assert.equal(store.runningMemoryMb(), 512);
  host.isHanging = true;
  const resumed = assert.rejects(capsules.resume(team, id), { code: "not_found" });
  await new Promise(setImmediate);
  assert.equal(store.runningMemoryMb(), 1_024);
  await capsules.destroy(team, id);
  await resumed;
  assert.equal(store.runningMemoryMb(), 512);
});
