import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { test } from "node:test";
import { endProcess, startTicksOf } from "../process.ts";
import { isUnderJailUid, JailUids, uidOf } from "./jail-uids.ts";

/** Far from the default range of the service. */
const first = 2_100_000_000;
const isRoot = process.getuid!() === 0;

test("each user is reserved once, the group of all jails never; a released user can be reserved again", () => {
  const uids = new JailUids({ first, last: first + 8 });
  const taken = Array.from({ length: 8 }, () => uids.reserve());
  assert.equal(uids.readers, first);
  assert.deepEqual(
    taken.toSorted(),
    [1, 2, 3, 4, 5, 6, 7, 8].map((each) => first + each),
  );
  assert.throws(() => uids.reserve(), { code: "no_capacity" });
  uids.release(taken[3]!);
  assert.equal(uids.reserve(), taken[3]);
});

test("a user is free again when its process has ended", async () => {
  const uids = new JailUids({ first, last: first + 1 });
  const child = spawn("sleep", ["1000"]);
  const process = { pid: child.pid!, startTicks: startTicksOf(child.pid!)! };
  uids.assign(uids.reserve(), process);
  assert.throws(() => uids.reserve(), { code: "no_capacity" });
  await endProcess(process);
  assert.equal(uids.reserve(), first + 1);
});

test("a user that any process of the machine runs under is not reserved", {
  skip: !isRoot && "needs root",
}, async () => {
  const child = spawn("sleep", ["1000"], { uid: first + 1, gid: first + 1 });
  const process = { pid: child.pid!, startTicks: startTicksOf(child.pid!)! };
  try {
    assert.equal(uidOf(process.pid), first + 1);
    const range = { first, last: first + 2 };
    assert.ok(isUnderJailUid(range, process));
    assert.ok(!isUnderJailUid(range, { ...process, startTicks: 1 }), "another process with this pid");
    assert.ok(!isUnderJailUid({ first: first + 1, last: first + 2 }, process), "the first of a range is a group");
    const others = new JailUids(range);
    assert.equal(others.reserve(), first + 2);
    assert.throws(() => others.reserve(), { code: "no_capacity" });
    const adopting = new JailUids(range);
    adopting.adopt(process);
    assert.ok(adopting.holds(process));
    assert.equal(adopting.reserve(), first + 2);
  } finally {
    await endProcess(process);
  }
});

test("after the first reservation, each looks at 1 000 processes, and a scan ends after as many as it takes", (t) => {
  let nowMs = 10_000;
  t.mock.method(performance, "now", () => nowMs);
  const pids = Array.from({ length: 2_500 }, (_, index) => String(index));
  const taken = new Map<string, number>();
  let looks = 0;
  const ownerOf = (pid: string) => {
    looks++;
    return taken.get(pid);
  };
  const uids = new JailUids({ first, last: first + 2 }, { list: () => [...pids], ownerOf });
  const looked = () => {
    looks = 0;
    const uid = uids.reserve();
    uids.release(uid);
    return looks;
  };
  assert.deepEqual([looked(), looked()], [2_500, 0]);
  taken.set("0", first + 1); // the last one that is looked at
  nowMs += 5_000;
  assert.deepEqual([looked(), looked(), looked(), looked()], [1_000, 1_000, 500, 0]);
  assert.deepEqual(
    Array.from({ length: 20 }, () => {
      const uid = uids.reserve();
      uids.release(uid);
      return uid;
    }).filter((uid) => uid !== first + 2),
    [],
  );
});
