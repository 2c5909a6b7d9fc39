import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { withFindings } from "./performance-page.ts";
import { Report } from "./report.ts";

const page = readFileSync(join(import.meta.dirname, "../docs/PERFORMANCE.md"), "utf8");
const timestamp = "2026-01-02T03:04:05.000Z";

test("the page gets the tables in its one place, again and again, and keeps the rest", () => {
  const report = new Report();
  report.note("idleMemory", [35], { most: { value: 35 } });
  report.trace({ name: "a command", samples: 3, stages: [{ until: "it has ended", p50Ms: 1.5 }] });
  const findings = { rows: report.rows(["memory"], false), traces: report.traces, timestamp, accelerator: "tcg" };
  const once = withFindings(page, findings);
  assert.match(once, /^2026-01-02, on .* with tcg/m);
  assert.match(once, /^\| idle capsule of a shared template, PSS \| 35 \| 35 \| 35 \| MiB \|.*\| met \|$/m);
  assert.match(once, /^\| it has ended \| 1\.50 \| 1\.50 \|$/m);
  assert.equal(withFindings(once, findings), once);
  assert.equal(once.split("<!--")[0], page.split("<!--")[0]);
});

test("a page without a place is refused, not written", () => {
  const findings = { rows: [], traces: [], timestamp, accelerator: "tcg" };
  assert.throws(() => withFindings("# Performance", findings), /no place/);
});
