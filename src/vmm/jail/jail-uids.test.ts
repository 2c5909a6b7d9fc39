import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { test } from "node:test";
import { endProcess, startTicksOf } from "../process.ts";
import { isUnderJailUid, JailUids, uidOf } from "./jail-uids.ts";

/** Far from what the service is given by default. */
const first = 2_100_000_000;
const isRoot = process.getuid!() === 0;

test("every user is taken once, the group of all by nobody; what is given back can be had again", () => {
  const uids = new JailUids({ first, last: first + 8 });
  const taken = Array.from({ length: 8 }, () => uids.take());
  assert.equal(uids.readers, first);
  assert.deepEqual(
    taken.toSorted(),
    [1, 2, 3, 4, 5, 6, 7, 8].map((each) => first + each),
  );
  assert.throws(() => uids.take(), { code: "no_capacity" });
  uids.giveBack(taken[3]!);
  assert.equal(uids.take(), taken[3]);
});

test("a user is free again when its process has ended", async () => {
  const uids = new JailUids({ first, last: first + 1 });
  const child = spawn("sleep", ["1000"]);
  const process = { pid: child.pid!, startTicks: startTicksOf(child.pid!)! };
  uids.assign(uids.take(), process);
  assert.throws(() => uids.take(), { code: "no_capacity" });
  await endProcess(process);
  assert.equal(uids.take(), first + 1);
});

test("a user that any process of the machine runs under is not taken", { skip: !isRoot }, async () => {
  const child = spawn("sleep", ["1000"], { uid: first + 1, gid: first + 1 });
  const process = { pid: child.pid!, startTicks: startTicksOf(child.pid!)! };
  try {
    assert.equal(uidOf(process.pid), first + 1);
    const range = { first, last: first + 2 };
    assert.ok(isUnderJailUid(range, process));
    assert.ok(!isUnderJailUid(range, { ...process, startTicks: 1 }), "another process with this pid");
    assert.ok(!isUnderJailUid({ first: first + 1, last: first + 2 }, process), "the first of a range is a group");
    const others = new JailUids(range);
    assert.equal(others.take(), first + 2);
    assert.throws(() => others.take(), { code: "no_capacity" });
    const adopting = new JailUids(range);
    adopting.adopt(process);
    assert.ok(adopting.holds(process));
    assert.equal(adopting.take(), first + 2);
  } finally {
    await endProcess(process);
  }
});
