import assert from "node:assert/strict";
import { test } from "node:test";
import { Report } from "./report.ts";
import { resultsPage } from "./results-page.ts";

test("the page has the date, the machine, every row and every trace", () => {
  const report = new Report();
  report.note("idleMemory", [35], { most: { value: 35 } });
  report.trace({ name: "a command", samples: 3, stages: [{ until: "it has ended", p50Ms: 1.5 }] });
  const rows = report.rows(["memory"], false);
  const page = resultsPage({
    rows,
    traces: report.traces,
    timestamp: "2026-01-02T03:04:05.000Z",
    accelerator: "tcg",
  });
  assert.match(page, /^# Results of the last run\n\n2026-01-02, on .* with tcg, /);
  assert.match(page, /^\| idle capsule of a shared template, PSS \| 35 \| 35 \| 35 \| MiB \|.*\| met \|$/m);
  assert.match(page, /^\| idle capsule in a warm process, PSS \| – .*\| absent: it was not measured \|$/m);
  assert.match(page, /^\| it has ended \| 1\.50 \| 1\.50 \|\n$/m);
});
