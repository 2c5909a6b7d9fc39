/** Capsules that wait in line for a guest that was made ahead of time. */
import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import { buildFloors, FakeClock } from "../../test/fakes/floors.ts";
import { CapsuleRows } from "../db/capsule-rows.ts";
import { openDatabase } from "../db/database.ts";
import { Activity } from "./activity.ts";
import { Newcomers } from "./newcomers.ts";

const never = new AbortController().signal;

function lineUp(t: TestContext, most: number) {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const activity = new Activity(new CapsuleRows(openDatabase(":memory:")), new FakeClock());
  const newcomers = new Newcomers(most, activity);
  const entered: string[] = [];
  const enter = (id: string, signal = never) => newcomers.enter(id, signal).then(() => void entered.push(id));
  const pass = async (ms: number) => {
    t.mock.timers.tick(ms);
    for (let turn = 0; turn < 3; turn++) await new Promise(setImmediate);
  };
  return { activity, newcomers, entered, enter, pass };
}

test("the next is let in when one has had its first command, and not before", async (t) => {
  const { activity, newcomers, entered, enter, pass } = lineUp(t, 2);
  for (const id of ["a", "b", "c"]) void enter(id);
  await pass(0);
  assert.deepEqual(entered, ["a", "b"]);
  for (const id of entered) newcomers.arrived(id);
  const ended = [activity.began("a"), activity.began("a")];
  activity.note("b"); // a ping is no command
  ended[0]!();
  await pass(0);
  assert.deepEqual(entered, ["a", "b"], "one of its commands is running");
  ended[1]!();
  await pass(0);
  assert.deepEqual(entered, ["a", "b", "c"]);
});

test("the next is let in when nobody uses the one before for a moment", async (t) => {
  const { newcomers, entered, enter, pass } = lineUp(t, 1);
  for (const id of ["a", "b"]) void enter(id);
  await pass(50);
  newcomers.arrived("a");
  await pass(19);
  assert.deepEqual(entered, ["a"]);
  await pass(1);
  assert.deepEqual(entered, ["a", "b"]);
});

test("a command that came while the server was too busy to look has come in time", async (t) => {
  const { activity, newcomers, entered, enter, pass } = lineUp(t, 1);
  for (const id of ["a", "b"]) void enter(id);
  await pass(0);
  newcomers.arrived("a");
  t.mock.timers.tick(20);
  activity.began("a");
  await pass(99);
  assert.deepEqual(entered, ["a"]);
});

test("nobody waits long for a start, or a command, that takes its time", async (t) => {
  const { activity, entered, enter, pass } = lineUp(t, 1);
  for (const id of ["a", "b", "c"]) void enter(id);
  await pass(99);
  assert.deepEqual(entered, ["a"]);
  await pass(1);
  assert.deepEqual(entered, ["a", "b"]);
  activity.began("b");
  await pass(99);
  assert.deepEqual(entered, ["a", "b"]);
  await pass(1);
  assert.deepEqual(entered, ["a", "b", "c"]);
});

test("who is unwanted leaves the line, and nobody behind waits for it", async (t) => {
  const { newcomers, entered, enter, pass } = lineUp(t, 1);
  const signal = new AbortController();
  void enter("a");
  const second = enter("b", signal.signal);
  void enter("c");
  signal.abort(new Error("destroyed"));
  await assert.rejects(second, /destroyed/);
  newcomers.arrived("a");
  await pass(20);
  assert.deepEqual(entered, ["a", "c"]);
});

test("without a limit nobody waits", async (t) => {
  const { enter } = lineUp(t, Number.POSITIVE_INFINITY);
  await Promise.all(Array.from({ length: 50 }, (_, each) => enter(`c${each}`)));
});

test("who gets what was made ahead of time stands in line; who gets a VM of its own, or is destroyed, does not", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const floors = buildFloors();
  const { team, capsules, host } = floors;
  const made = ["a", "b", "c"].map((last) => `cl-${"0".repeat(24)}${last}`);
  host.ahead.push(...made);
  const status = (id: string) => capsules.get(team, id).status;
  const request = { template: "minimal", vcpus: 1, memoryMb: 512, timeoutSec: 0 };
  const ids: string[] = [];
  for (let each = 0; each < 4; each++) ids.push((await capsules.create(team, request)).id);
  for (let turn = 0; turn < 5; turn++) await new Promise(setImmediate);
  assert.deepEqual(ids.slice(0, 3), made);
  assert.deepEqual(ids.map(status), ["running", "starting", "starting", "running"]);
  await capsules.destroy(team, made[1]!);
  capsules.beginExec(made[0]!)();
  await floors.settled();
  assert.deepEqual([status(made[0]!), status(made[2]!)], ["running", "running"]);
});

test("one that cannot be started makes room", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const floors = buildFloors();
  const { team, capsules, host } = floors;
  const made = ["a", "b"].map((last) => `cl-${"0".repeat(24)}${last}`);
  host.ahead.push(...made);
  host.before = (verb, id) => {
    if (verb === "start" && id === made[0]) throw new Error("no");
  };
  for (const _ of made) await capsules.create(team, { template: "minimal", vcpus: 1, memoryMb: 512, timeoutSec: 0 });
  for (let turn = 0; turn < 5; turn++) await new Promise(setImmediate);
  t.mock.timers.tick(20);
  await floors.settled();
  assert.deepEqual(
    made.map((id) => capsules.get(team, id).status),
    ["error", "running"],
  );
});
