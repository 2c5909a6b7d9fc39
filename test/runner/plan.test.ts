/** Which tests a run has, what they need, and in which order they run. */
import assert from "node:assert/strict";
import { globSync } from "node:fs";
import { test } from "node:test";
import { waitFor } from "../wait-for.ts";
import { readCargo } from "./agent-tests.ts";
import { agentGroup, filesOf, groupNames, root, tasksOf, usualGroups } from "./groups.ts";
import { needsOf } from "./needs.ts";
import { limitOf, neededBy, planOf, whySkipped } from "./plan.ts";
import { runSideBySide } from "./pool.ts";
import { Result } from "./result.ts";
import { lineOf, summaryOf } from "./summary.ts";

const quiet = { isVerbose: false };
const minuteMs = 60_000;

test("every test file of the repository is in exactly one group", () => {
  const all = globSync("{src,web,guest,bench,sdk,examples,test}/**/*.test.ts", { cwd: root });
  const found = groupNames.flatMap(filesOf);
  assert.ok(found.length > 200);
  assert.deepEqual(found.toSorted(), all.filter((path) => !/node_modules|\/target\//.test(path)).sort());
  for (const group of groupNames.filter((each) => each !== agentGroup)) assert.ok(filesOf(group).length > 0, group);
});

test("without words the usual groups run, with `all` every one, and a stage's first group begins first", () => {
  const groupsOf = (words: string[]) => [
    ...new Set(planOf(words, {}).stages.flatMap(({ tasks }) => tasks.map(({ group }) => group))),
  ];
  assert.deepEqual(groupsOf([]), usualGroups);
  assert.deepEqual(
    groupsOf([]).toSorted(),
    "agent browser cli clients cluster conformance jail network sdk teams terminal unit".split(" "),
  );
  assert.deepEqual(groupsOf(["all"]), groupNames);
  assert.deepEqual(groupsOf(["jail", "unit"]), ["unit", "jail"]);
});

test("what a test needs is found in it and in what it imports", () => {
  assert.deepEqual(needsOf(["src/capsules/locks.test.ts", "test/house.test.ts", "test/docs.test.ts"]), []);
  const needs = (group: string) => {
    const { CAPSULE_IMAGES_FROM } = process.env;
    delete process.env.CAPSULE_IMAGES_FROM;
    try {
      return neededBy(planOf([group], {})).toSorted();
    } finally {
      if (CAPSULE_IMAGES_FROM !== undefined) process.env.CAPSULE_IMAGES_FROM = CAPSULE_IMAGES_FROM;
    }
  };
  assert.deepEqual(needs("agent"), ["rust"]);
  assert.deepEqual(needs("unit"), ["agent", "cc", "vm"]);
  assert.deepEqual(needs("conformance"), ["image", "vm"]);
  assert.deepEqual(needs("browser"), ["chromium", "image", "vm"]);
  assert.deepEqual(needs("network"), ["image", "vm"]);
  assert.deepEqual(needs("cluster"), ["ceph", "image", "postgres", "vm"]);
  assert.deepEqual(needs("terminal"), ["image", "tmux", "vm"]);
  assert.ok(needs("clients").includes("clients"));
  assert.deepEqual(needs("kvm"), ["image", "machine"]);
});

test("of everything, the machine runs only while its share of the 25 minutes is left", () => {
  const all = planOf(["all"], {});
  const [kvm, unit] = ["kvm", "unit"].map((group) => tasksOf([group])[0]!.tasks[0]!);
  assert.equal(whySkipped(kvm!, all, 16 * minuteMs), undefined);
  assert.match(whySkipped(kvm!, all, 18 * minuteMs)!, /took more than 17 minutes/);
  assert.equal(whySkipped(unit!, all, 18 * minuteMs), undefined);
  assert.equal(whySkipped(kvm!, planOf(["kvm"], {}), 18 * minuteMs), undefined);
  assert.equal(whySkipped(kvm!, planOf(["all"], { "no-machine": "no packages" }), 0), "no packages");
});

test("long forms have long limits, unless one is given", () => {
  const limit = (words: string[], group: string, env = {}, limit?: string) =>
    limitOf(tasksOf([group])[0]!.tasks[0]!, planOf(words, limit === undefined ? {} : { limit }), env) / minuteMs;
  assert.equal(limit(["soak"], "soak"), 180);
  assert.equal(limit(["all"], "soak"), 30);
  assert.equal(limit(["kvm"], "kvm", { CAPSULE_KVM: "long" }), 1_440);
  assert.equal(limit(["kvm"], "kvm", { CAPSULE_KVM: "long" }, "120"), 2);
  assert.equal(limit(["unit"], "unit"), 30);
});

test("side by side, tasks begin in their order as far as their weights allow, and a heavy one is not left out", async () => {
  const events: string[] = [];
  const ends = new Map<string, () => void>();
  const tasks = [
    ["a", 2],
    ["b", 2],
    ["c", 1],
    ["d", 9],
  ].map(([name, weight]) => ({ name: String(name), weight: Number(weight) }));
  const run = runSideBySide(tasks, 3, async ({ name }) => {
    events.push(name);
    await new Promise<void>((resolve) => ends.set(name, resolve));
  });
  for (const name of ["a", "c", "b", "d"]) {
    const end = await waitFor(`the begin of ${name}`, () => ends.get(name));
    if (name === "a") assert.deepEqual(events, ["a", "c"]); // b does not fit beside a
    end();
  }
  await run;
  assert.deepEqual(events, ["a", "c", "b", "d"]);
});

test("the agent's tests are counted by what cargo says of them", () => {
  const result = new Result("agent", "agent", quiet);
  readCargo(
    "test a::b ... ok\ntest c ... FAILED\ntest d ... ignored, needs root\ntest result: FAILED. 1 passed; 1 failed; 1 ignored;\n\ntest result: ok. 5 passed; 0 failed;\n",
    result,
  );
  assert.deepEqual([result.passed, result.failed, result.skipped], [6, ["c"], ["d — needs root"]]);
});

test("a run ends with its ten slowest tests, and a file that passes is one line", () => {
  const result = new Result("a.test.ts", "unit", quiet);
  for (let index = 0; index < 30; index++) {
    result.pass(`t${index}`, index * 1_000);
    result.timed.push({ title: `t${index}`, ms: index * 1_000 });
  }
  result.write("printed\n");
  result.endedMs = result.beganMs + 2_000;
  assert.equal(lineOf(result, false), "✔ a.test.ts: 30 passed, 2.0 s\n");
  const slow = summaryOf([result])
    .split("\n")
    .filter((line) => line.startsWith("slow: "));
  assert.equal(slow.length, 10);
  assert.equal(slow[0], "slow: 29.0 s  a.test.ts: t29");
  result.fail("t30", "reason");
  assert.equal(lineOf(result, false), "printed\n✖ t30\n  reason\n✖ a.test.ts: 30 passed, 1 failed, 2.0 s\n");
});
