import assert from "node:assert/strict";
import { test } from "node:test";
import { buildFloors, type Floors, running } from "../../test/fakes/floors.ts";
import { requires } from "../wire/requirements.ts";

const command = { cmd: "hang", args: [] };
const sink = { output() {}, exited() {}, failed() {} };
const agentOf = (floors: Floors, id: string) => floors.host.guests.get(id)!.agent;
const lastActiveAt = (floors: Floors, id: string) => floors.capsules.get(floors.team, id).lastActiveAt;

test("a command, also in the background, counts as activity when it was sent and at the end of its use", async () => {
  for (const verb of ["run", "start"] as const) {
    const floors = buildFloors();
    const id = await running(floors);
    const { promise, resolve } = Promise.withResolvers<string>();
    const sent: boolean[] = [];
    floors.activity.onChange(() => sent.push(agentOf(floors, id).runs.length + agentOf(floors, id).started.length > 0));
    const used = floors.capsules.use(floors.team, id, "exec", (agent) => {
      assert.equal(floors.activity.isBusy(id), false);
      verb === "run" ? agent.run(command, sink) : void agent.start(command);
      return promise;
    });
    assert.deepEqual(sent, [true]);
    assert.equal(floors.activity.isBusy(id), true);
    assert.equal(lastActiveAt(floors, id), floors.clock.now());
    floors.clock.advance(10);
    resolve("done");
    assert.equal(await used, "done");
    assert.equal(floors.activity.isBusy(id), false);
    assert.equal(lastActiveAt(floors, id), floors.clock.now());
  }
});

test("a command stops counting when its use fails", async () => {
  const floors = buildFloors();
  const id = await running(floors);
  const used = floors.capsules.use(floors.team, id, "exec", (agent) => {
    agent.run(command, sink);
    throw new Error("the client hung up");
  });
  await assert.rejects(used, /the client hung up/);
  assert.equal(floors.activity.isBusy(id), false);
});

test("files, processes, terminals and an exec that sends no command do not count", async () => {
  const floors = buildFloors();
  const { capsules, team } = floors;
  const id = await running(floors);
  agentOf(floors, id).files.set("/a", Buffer.from("x"));
  await capsules.use(team, id, "files", (agent) => agent.remove("/a"));
  await capsules.use(team, id, "processes", (agent) => agent.signal({ pid: 500 }, "SIGTERM"));
  await capsules.use(team, id, "pty", (agent) => agent.pty(command, { cols: 80, rows: 24 }, sink).cancel());
  await capsules.use(team, id, "exec", () => {});
  assert.equal(lastActiveAt(floors, id), null);
});

test("a capsule that another team asks for, or that does not run, is refused before `work`", async () => {
  const floors = buildFloors();
  const { capsules, team, other } = floors;
  const id = await running(floors);
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
  const floors = buildFloors();
  const id = await running(floors);
  floors.runs.guest = () => undefined;
  const used = floors.capsules.use(floors.team, id, "exec", () => assert.fail("work was called"));
  await assert.rejects(used, { code: "agent_error", message: `capsule ${id} cannot be reached` });
});
