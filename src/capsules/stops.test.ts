/** Stops, starts and reboots on a fake host. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { FakeGuest } from "../../test/fakes/fake-host.ts";
import { FakeHost } from "../../test/fakes/fake-host.ts";
import { type FakeService, fakeService, running } from "../../test/fakes/fake-service.ts";
import { waitFor } from "../../test/wait-for.ts";
import { openDatabase } from "../db/database.ts";
import { CapsuleError } from "../wire/errors.ts";

const fields = ({ capsules, team }: FakeService, id: string) => {
  const { status, errorReason } = capsules.get(team, id);
  return [status, errorReason];
};

async function end({ host, settled }: FakeService, id: string, kind: "reset" | "lost" | "powered_off"): Promise<void> {
  const guest = host.guests.get(id)!;
  guest.endWith({ kind, reason: "because" });
  await guest.ended;
  await settled();
}

const entriesOf = ({ audit, team }: FakeService) => {
  audit.flush();
  const page = audit.list(team, { limit: 100 });
  return page.entries.map(({ action, status, keyId }) => [action, status, keyId]).toReversed();
};

test("a stopped capsule has its disk only, counts as one that does not run, and starts from it", async () => {
  const service = fakeService();
  const { capsules, host, team, clock } = service;
  const id = await running(service);
  const ends: string[] = [];
  capsules.onEnd(id, (each) => ends.push(each));
  clock.advance(1_000);
  const stopped = await capsules.stop(team, id);
  assert.deepEqual([stopped.status, stopped.lastUpdated], ["stopped", clock.now()]);
  assert.deepEqual([ends, host.guests.size, host.checkpoints.size, host.folders.size], [["stopped"], 0, 0, 1]);
  assert.deepEqual([capsules.usage(team).runningVcpus, capsules.usage(team).capsules], [0, 1]);
  assert.equal(service.store.runningMemoryMb(), 0);
  clock.advance(1_000);
  const started = await capsules.start(team, id);
  assert.deepEqual([started.status, started.startedAt], ["running", clock.now()]);
  assert.equal(host.guests.get(id)?.isHeld, false);
  assert.equal(service.store.runningMemoryMb(), 512);
  assert.deepEqual(entriesOf(service), [], "neither ended by itself");
});

test("a guest that does not end is stopped, and a DELETE ends the stop", async () => {
  const service = fakeService();
  const { capsules, host, team } = service;
  const id = await running(service);
  const begun = Promise.withResolvers<void>();
  host.shuttingDown = (_guest, signal) => {
    begun.resolve();
    return new Promise((resolve) => signal.addEventListener("abort", () => resolve()));
  };
  const stopping = assert.rejects(capsules.stop(team, id), { code: "not_found" });
  await begun.promise;
  await assert.rejects(capsules.stop(team, id), { code: "invalid_state", message: /it is being stopped/ });
  await assert.rejects(capsules.pause(team, id), { code: "invalid_state" });
  await capsules.destroy(team, id);
  await stopping;
  assert.deepEqual([host.guests.size, host.folders.size], [0, 0]);
});

test("a start that fails leaves the status, and takes the quotas of a running capsule while it is under way", async () => {
  for (const kind of ["powered_off", "lost"] as const) {
    const service = fakeService({ quotas: { runningVcpus: 1 } });
    const { capsules, host, team } = service;
    const id = await running(service);
    await end(service, id, kind);
    const before = fields(service, id);
    host.before = (verb) => {
      if (verb === "boot") throw new CapsuleError("agent_error", "no answer from the agent");
    };
    await assert.rejects(capsules.start(team, id), {
      code: "agent_error",
      message: /could not be started and is still/,
    });
    assert.deepEqual(fields(service, id), before);
    host.before = () => {};
    host.isHanging = true;
    const starting = capsules.start(team, id);
    await new Promise(setImmediate);
    await assert.rejects(capsules.start(team, id), { code: "invalid_state", message: /it is being started/ });
    const another = { template: "minimal", vcpus: 1, memoryMb: 512, timeoutSec: 0 };
    await assert.rejects(capsules.create(team, another), { code: "quota_exceeded" });
    host.stopHanging();
    assert.deepEqual([(await starting).status, (await starting).errorReason], ["running", null]);
  }
});

test("a capsule in error starts only with a disk", async () => {
  const service = fakeService();
  const { capsules, host, team } = service;
  host.before = (verb) => {
    if (verb === "start") throw new CapsuleError("agent_error", "no answer");
  };
  const id = await running(service);
  assert.deepEqual(fields(service, id), ["error", "no answer"]);
  await assert.rejects(capsules.start(team, id), { code: "invalid_state", message: /it has no disk/ });
  await assert.rejects(capsules.start(team, "cl-none"), { code: "not_found" });
});

test("a template that was deleted meanwhile keeps its stopped capsules from starting", async () => {
  const service = fakeService();
  const { capsules, templates, team } = service;
  await templates.capture(team, { capsuleId: await running(service), name: "mine", overwrite: false });
  const { id } = await capsules.create(team, { template: "mine", vcpus: 1, memoryMb: 512, timeoutSec: 0 });
  await service.settled();
  await capsules.stop(team, id);
  await templates.delete(team, "mine");
  await assert.rejects(capsules.start(team, id), { code: "conflict", message: /its template mine was deleted/ });
});

test("a guest that resets itself comes back with a new run, and at the fourth time within 60 s it is in error", async () => {
  const service = fakeService();
  const { capsules, host, team, clock } = service;
  const id = await running(service);
  const statuses: unknown[] = [];
  capsules.onChange((_team, _id, view) => statuses.push(view?.status));
  for (const passedMs of [0, 20_000, 20_000]) {
    const ends: string[] = [];
    capsules.onEnd(id, (each) => ends.push(each));
    clock.advance(passedMs);
    await end(service, id, "reset");
    assert.deepEqual(ends, ["rebooted"]);
    assert.equal(capsules.get(team, id).startedAt, clock.now());
  }
  assert.deepEqual(statuses, ["starting", "running", "starting", "running", "starting", "running"]);
  clock.advance(19_999);
  await end(service, id, "reset");
  const [status, reason] = fields(service, id);
  assert.deepEqual([status, host.guests.size], ["error", 0]);
  assert.match(String(reason), /reset itself, or its kernel panicked, 4 times within 60 s/);
  const reboots = Array(3).fill(["capsule.reboot", 200, ""]);
  assert.deepEqual(entriesOf(service), [...reboots, ["capsule.end", 500, ""]]);
  assert.equal((await capsules.start(team, id)).status, "running");
  await end(service, id, "reset");
  assert.deepEqual(fields(service, id), ["running", null], "it is counted anew");
});

test("resets that are further apart are not counted together", async () => {
  const service = fakeService();
  const id = await running(service);
  for (let reset = 0; reset < 9; reset++) {
    service.clock.advance(20_000);
    await end(service, id, "reset");
    assert.deepEqual(fields(service, id), ["running", null]);
  }
});

test("a reboot that fails is an error with the reason, and the disk stays", async () => {
  const log = { info() {}, warn() {}, error() {} };
  const service = fakeService({ log });
  const { host } = service;
  const id = await running(service);
  host.before = (verb) => {
    if (verb === "boot") throw new CapsuleError("agent_error", "no answer from the agent");
  };
  await end(service, id, "reset");
  assert.deepEqual(fields(service, id), ["error", "no answer from the agent"]);
  assert.deepEqual([host.guests.size, host.folders.size], [0, 1]);
});

for (const found of ["powered_off", "reset"] as const) {
  test(`a guest that was ${found} while the server was away is ${found === "reset" ? "booted" : "stopped"}`, async () => {
    const host = new FakeHost();
    const database = openDatabase(":memory:");
    const id = await running(fakeService({ host, database }));
    host.guests.clear();
    host.adopt = async () => ({ kind: found });
    const after = fakeService({ host, database });
    await after.recover();
    await after.settled();
    assert.deepEqual(fields(after, id), [found === "reset" ? "running" : "stopped", null]);
  });
}

for (const [intent, isAlive] of [
  ["stop", true],
  ["stop", false],
  ["start", true],
  ["reboot", true],
] as const) {
  test(`a ${intent} that was cut off is settled, ${isAlive ? "with" : "without"} its VM`, async () => {
    const host = new FakeHost();
    const database = openDatabase(":memory:");
    const before = fakeService({ host, database });
    const { capsules, team } = before;
    const id = await running(before);
    const never = new Promise<never>(() => {});
    if (intent === "start") await capsules.stop(team, id);
    const cut = Promise.withResolvers<void>();
    host.shuttingDown = () => {
      cut.resolve();
      return never;
    };
    const { boot } = host;
    host.boot = async (...args) => {
      const guest = await boot.apply(host, args);
      cut.resolve();
      return isAlive ? never : guest;
    };
    if (intent === "stop") void capsules.stop(team, id);
    if (intent === "start") void capsules.start(team, id);
    if (intent === "reboot") (host.guests.get(id) as FakeGuest).endWith({ kind: "reset", reason: "" });
    await cut.promise;
    assert.equal(before.store.get(id)?.intent, intent);
    if (!isAlive) host.guests.clear();
    host.boot = boot;
    host.shuttingDown = () => Promise.resolve();
    const after = fakeService({ host, database });
    await after.recover();
    await after.settled();
    assert.deepEqual(fields(after, id), [intent === "reboot" ? "running" : "stopped", null]);
    assert.equal(host.guests.size, intent === "reboot" ? 1 : 0);
    assert.equal((await (intent === "reboot" ? after.capsules.stop(team, id) : after.capsules.start(team, id))).id, id);
  });
}

test("the memory watch pauses no other capsule less for one that starts or reboots", async () => {
  for (const how of ["start", "reboot"] as const) {
    const service = fakeService();
    const { capsules, host, team, pauses } = service;
    const id = await running(service);
    if (how === "start") await capsules.stop(team, id);
    host.isHanging = true;
    const guest = host.guests.get(id);
    const changed = how === "start" ? capsules.start(team, id) : undefined;
    if (how === "reboot") guest?.endWith({ kind: "reset", reason: "because" });
    await waitFor(`it is given a VM by ${how}`, () => service.store.get(id)?.intent === how);
    assert.equal(await pauses.forMemory(id), "refused", how);
    host.stopHanging();
    await changed;
    await service.settled();
    await waitFor("it runs", () => service.store.get(id)?.intent === null);
  }
});

test("a guest that was lost is ended, although its end cannot be recorded", async () => {
  const service = fakeService();
  const id = await running(service);
  const { commit } = service.store;
  service.store.commit = () => assert.fail("database or disk is full");
  await end(service, id, "lost");
  await waitFor("its VM has ended", () => !service.host.guests.has(id));
  service.store.commit = commit;
});
