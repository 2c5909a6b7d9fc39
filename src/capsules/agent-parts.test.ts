import assert from "node:assert/strict";
import { test } from "node:test";
import { type FakeService, fakeService, running } from "../../test/fakes/fake-service.ts";
import { requires } from "../wire/requirements.ts";

const command = { cmd: "hang", args: [] };
const sink = { output() {}, exited() {}, failed() {} };
const agentOf = (service: FakeService, id: string) => service.host.guests.get(id)!.agent;
const lastActiveAt = (service: FakeService, id: string) => service.capsules.get(service.team, id).lastActiveAt;

test("a command, also in the background, counts as activity when it was sent and at the end of its use", async () => {
  for (const verb of ["run", "start"] as const) {
    const service = fakeService();
    const id = await running(service);
    const { promise, resolve } = Promise.withResolvers<string>();
    const sent: boolean[] = [];
    service.activity.onChange(() =>
      sent.push(agentOf(service, id).runs.length + agentOf(service, id).started.length > 0),
    );
    const used = service.capsules.use(service.team, id, "exec", (agent) => {
      assert.equal(service.activity.isBusy(id), false);
      verb === "run" ? agent.run(command, sink) : void agent.start(command);
      return promise;
    });
    assert.deepEqual(sent, [true]);
    assert.equal(service.activity.isBusy(id), true);
    assert.equal(lastActiveAt(service, id), service.clock.now());
    service.clock.advance(10);
    resolve("done");
    assert.equal(await used, "done");
    assert.equal(service.activity.isBusy(id), false);
    assert.equal(lastActiveAt(service, id), service.clock.now());
  }
});

test("a command stops counting when its use fails", async () => {
  const service = fakeService();
  const id = await running(service);
  const used = service.capsules.use(service.team, id, "exec", (agent) => {
    agent.run(command, sink);
    throw new Error("the client hung up");
  });
  await assert.rejects(used, /the client hung up/);
  assert.equal(service.activity.isBusy(id), false);
});

test("files, processes, terminals and an exec that sends no command do not count", async () => {
  const service = fakeService();
  const { capsules, team } = service;
  const id = await running(service);
  agentOf(service, id).files.set("/a", Buffer.from("x"));
  await capsules.use(team, id, "files", (agent) => agent.remove("/a"));
  await capsules.use(team, id, "processes", (agent) => agent.signal({ pid: 500 }, "SIGTERM"));
  await capsules.use(team, id, "pty", (agent) => agent.pty(command, { cols: 80, rows: 24 }, sink).cancel());
  await capsules.use(team, id, "exec", () => {});
  assert.equal(lastActiveAt(service, id), null);
});

test("a capsule that another team asks for, or that does not run, is refused before `work`", async () => {
  const service = fakeService();
  const { capsules, team, other } = service;
  const id = await running(service);
  const work = () => assert.fail("work was called");
  await assert.rejects(capsules.use(other, id, "exec", work), { code: "not_found" });
  await capsules.pause(team, id);
  for (const action of ["exec", "processes", "pty", "files"] as const) {
    assert.equal(requires[action], "resumable");
    await assert.rejects(capsules.use(team, id, action, work), {
      code: "invalid_state",
      details: { status: "paused", required: "running" },
    });
  }
});

test("a guest that is lost while its row says running is an agent error", async () => {
  const service = fakeService();
  const id = await running(service);
  service.runs.guest = () => undefined;
  const used = service.capsules.use(service.team, id, "exec", () => assert.fail("work was called"));
  await assert.rejects(used, { code: "agent_error", message: `capsule ${id} cannot be reached` });
});
