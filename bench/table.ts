/** A report as a table: aligned text for a terminal, Markdown for RESULTS.md. */
import type { Row } from "./report.ts";
import type { Trace } from "./trace-stages.ts";

const head = ["figure", "p50", "p95", "p99", "unit", "compared with (p50)", "target", "value", ""];

export function textTable(rows: readonly Row[]): string {
  return text(head, cellsOf(rows));
}

export function markdownTable(rows: readonly Row[]): string {
  return markdown(head, cellsOf(rows));
}

export function textTrace(trace: Trace): string {
  return text(headOfTrace(trace), cellsOfTrace(trace));
}

export function markdownTrace(trace: Trace): string {
  return markdown(headOfTrace(trace), cellsOfTrace(trace));
}

function text(titles: readonly string[], lines: readonly string[][]): string {
  const widths = titles.map((title, column) => Math.max(title.length, ...lines.map((line) => line[column]!.length)));
  const line = (cells: readonly string[]) =>
    cells
      .map((cell, column) => cell.padEnd(widths[column]!))
      .join("  ")
      .trimEnd();
  return [line(titles), line(widths.map((width) => "-".repeat(width))), ...lines.map(line)].join("\n");
}

function markdown(titles: readonly string[], lines: readonly string[][]): string {
  const line = (cells: readonly string[]) => `| ${cells.join(" | ")} |`;
  return [line(titles), line(titles.map(() => "---")), ...lines.map(line)].join("\n");
}

function headOfTrace({ name, samples }: Trace): string[] {
  return [`${name} (${samples} samples)`, "p50, ms", "since the start, ms"];
}

function cellsOfTrace({ stages }: Trace): string[][] {
  let sinceStartMs = 0;
  return stages.map(({ until, p50Ms }) => {
    sinceStartMs += p50Ms;
    return [until, round(p50Ms), round(sinceStartMs)];
  });
}

/** One line per target. The figure itself stands on the first line only. */
function cellsOf(rows: readonly Row[]): string[][] {
  return rows.flatMap(({ name, unit, measured, absent, checks }) => {
    const figure =
      measured === undefined
        ? [name, "–", "–", "–", unit]
        : [name, round(measured.p50), round(measured.p95), round(measured.p99), unit];
    if (checks.length === 0) return [[...figure, "–", "–", "–", absent === undefined ? "" : `absent: ${absent}`]];
    return checks.map(({ target, finding, verdict }, index) => {
      const lead = index === 0 ? figure : ["", "", "", "", ""];
      if ("absent" in finding) return [...lead, "–", target.said, "–", `absent: ${finding.absent}`];
      const { against, value, limit } = finding;
      const compared = against === undefined ? "–" : `${against.name}: ${round(against.measured.p50)}`;
      const outOfReach = limit === undefined ? "" : `out of reach: ${limit.name}: ${round(limit.value)}`;
      const said = { met: "met", missed: "MISSED", absent: "absent", "out of reach": outOfReach }[verdict];
      return [...lead, compared, target.said, round(value), said];
    });
  });
}

/** Three significant digits. */
function round(value: number): string {
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
}
