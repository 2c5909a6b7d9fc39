/** The verdict of `--check`: it has to be able to fail. */
import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { catalog, entryOf, figureIds } from "./catalog.ts";
import { above, isAllMet, pairedDifference, pairedRatio, Report, ratio } from "./report.ts";
import { summarize } from "./statistics.ts";
import { markdownTable, textTable } from "./table.ts";

const groups = [...new Set(figureIds.map((id) => catalog[id].group))];

test("a value within its bound is met, one beyond it is missed, and the bound itself is met", () => {
  const verdict = (p95: number) => {
    const report = new Report();
    report.note("createWarmPool", [1], { gvisor: { value: 1 / 5 }, tail: { value: p95 } });
    return report.rows(["create"], false)[0]!.checks.map((check) => check.verdict);
  };
  assert.deepEqual(verdict(2), ["met", "met"]);
  assert.deepEqual(verdict(2.01), ["met", "missed"]);
});

test("a least bound is missed from below", () => {
  const verdict = (share: number) => {
    const report = new Report();
    report.note("streamWrite", [1], { dumb: { value: share } });
    return report.rows(["files"], false)[0]!.checks[0]!.verdict;
  };
  assert.equal(verdict(0.5), "met");
  assert.equal(verdict(0.499), "missed");
  assert.equal(verdict(Number.NaN), "missed");
});

test("what was not measured is absent, with the reason, and does not pass", () => {
  const report = new Report();
  report.miss("createWarmPool", "the server has no pool");
  report.note("createWarmProcess", [100], { gvisor: { absent: "runsc is not installed" }, boot: { value: 0.01 } });
  const rows = report.rows(["create"], false);
  assert.deepEqual(
    rows.map(({ checks }) => checks.map(({ verdict }) => verdict)),
    [
      ["absent", "absent"],
      ["absent", "met"],
      [], // nothing prepared: measured, and not judged
    ],
  );
  assert.equal(isAllMet(rows), false);
  assert.match(textTable(rows), /absent: the server has no pool/);
  assert.match(textTable(rows), /absent: runsc is not installed/);
});

test("every figure of a group that ran has to be there, those of other groups not", () => {
  const report = new Report();
  assert.equal(isAllMet(report.rows(["memory"], false)), false);
  report.note("idleMemory", [39], { most: { value: 39 } });
  assert.equal(isAllMet(report.rows(["memory"], false)), false);
  report.note("idleMemoryWarmProcess", [39], { most: { value: 39 } });
  assert.equal(isAllMet(report.rows(["memory"], false)), false);
  report.note("idleProcessor", [2], { most: { value: 2 } });
  assert.equal(isAllMet(report.rows(["memory"], false)), true);
  assert.equal(isAllMet(report.rows(["memory", "reads"], false)), false);
});

test("a figure without targets has to be measured all the same", () => {
  const report = new Report();
  report.note("createToRunning", [1], { boot: { value: 0 } });
  assert.equal(isAllMet(report.rows(["boot"], false)), false);
  report.note("coldBoot", [1], {});
  assert.equal(isAllMet(report.rows(["boot"], false)), true);
});

test("what takes minutes is asked for in a long run only", () => {
  const ids = (isLong: boolean) => new Report().rows(["files"], isLong).map(({ id }) => id);
  assert.ok(ids(true).includes("longStreamMemory"));
  assert.ok(!ids(false).includes("longStreamMemory"));
});

test("all is met when every value is its bound, and not when one is beyond it", () => {
  const all = figureIds.flatMap((id) => Object.keys(entryOf(id).targets).map((target) => ({ id, target })));
  const filled = (wrong: { id: string; target: string } | undefined) => {
    const report = new Report();
    for (const id of figureIds) {
      const findings = Object.entries(entryOf(id).targets).map(([target, { most, least }]) => {
        const isWrong = wrong?.id === id && wrong.target === target;
        const bound = (most ?? least)!;
        return [target, { value: isWrong ? bound + (most === undefined ? -0.1 : 0.1) : bound }];
      });
      report.note(id, [1], Object.fromEntries(findings) as never);
    }
    return report.rows(groups, true);
  };
  assert.equal(isAllMet(filled(undefined)), true);
  fc.assert(fc.property(fc.constantFrom(...all), (wrong) => !isAllMet(filled(wrong))));
});

test("ratios and differences are of the p50", () => {
  assert.deepEqual(value(ratio([1, 2, 9], "it", [3, 4, 5])), 0.5);
  assert.deepEqual(value(above([1, 5, 9], "it", [1, 2, 3])), 3);
  assert.deepEqual(value(above([1, 1, 1], "it", [1, 2, 3])), 0, "below is no merit");
  assert.deepEqual(value(above([7], "it", [2], 3)), 1);
});

test("a missed target shows in both tables", () => {
  const report = new Report();
  report.note("idleMemory", [41], { most: { value: 41 } });
  const rows = report.rows(["memory"], false);
  assert.match(textTable(rows), /MISSED$/m);
  assert.match(markdownTable(rows), /\| MISSED \|$/m);
});

test("what not even the limit keeps is out of reach, and said to be; what it keeps is missed", () => {
  const rowsOf = (limit: number, share = 0.4) => {
    const report = new Report();
    const gvisor = { value: share, limit: { name: "the least", value: limit } };
    report.note("exec", [1], { inside: { value: 1 }, gvisor, relay: { value: 1 } });
    return report.rows(["exec"], false).filter(({ id }) => id === "exec");
  };
  const verdict = (limit: number, share?: number) => rowsOf(limit, share)[0]!.checks[1]!.verdict;
  assert.equal(verdict(0.34), "out of reach");
  assert.equal(verdict(1 / 3), "missed");
  assert.equal(verdict(Number.NaN), "missed", "nothing was found out");
  assert.equal(verdict(0.34, 0.3), "met");
  assert.equal(isAllMet(rowsOf(0.34)), true);
  assert.equal(isAllMet(rowsOf(1 / 3)), false);
  assert.match(textTable(rowsOf(0.345)), /out of reach: the least: 0\.345$/m);
  assert.match(markdownTable(rowsOf(0.2)), /\| MISSED \|$/m);
});

test("names are unique, and every target has a bound", () => {
  const entries = figureIds.map(entryOf);
  assert.equal(new Set(entries.map(({ name }) => name)).size, entries.length);
  for (const { name, targets } of entries) {
    for (const { most, least } of Object.values(targets)) assert.ok((most ?? least) !== undefined, name);
  }
});

function value(finding: ReturnType<typeof ratio>): number {
  assert.ok("value" in finding);
  return finding.value;
}

test("the median turn counts, so that a slow turn changes nothing", () => {
  const slow = 1.75;
  const inside = [[5, 5, 5], [slow * 5], [5]];
  const outside = [[9, 7, 7], [slow * 7], [8]];
  assert.deepEqual(pairedRatio(outside, "inside", inside), {
    value: 7 / 5,
    against: { name: "inside, interleaved", measured: summarize(inside.flat()) },
  });
  const found = pairedDifference(outside, "inside", inside);
  assert.ok("value" in found && found.value === 3);
  assert.deepEqual(pairedDifference([[1]], "inside", [[2]]), {
    value: 0,
    against: { name: "inside, interleaved", measured: summarize([2]) },
  });
  assert.throws(() => pairedRatio([[1]], "inside", []), /another number of turns/);
});
