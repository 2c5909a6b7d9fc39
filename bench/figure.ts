/**
 * A figure: something measured, what it is compared with in the same run, and the ratio or bound it has to keep. Single
 * figures of a shared machine mean little; ratios within one run mean something.
 */
import type { Summary } from "./statistics.ts";

export interface Figure {
  name: string;
  unit: "ms" | "requests/s" | "bytes" | "MB/s" | "×";
  measured: Summary;
  /** The yardstick, measured in the same run. */
  comparedWith?: { name: string; measured: Summary };
  /** What `--check` asks: `value` computed from this run, and its bound. */
  target?: { said: string; value: number; most?: number; least?: number };
}

export function isMet({ target }: Figure): boolean {
  if (target === undefined) return true;
  return target.value <= (target.most ?? Number.POSITIVE_INFINITY) && target.value >= (target.least ?? 0);
}

export function table(figures: Figure[]): string {
  const rows = figures.map((figure) => [
    figure.name,
    round(figure.measured.p50),
    round(figure.measured.p95),
    round(figure.measured.p99),
    figure.unit,
    figure.comparedWith === undefined ? "–" : `${figure.comparedWith.name}: ${round(figure.comparedWith.measured.p50)}`,
    figure.target === undefined ? "–" : `${figure.target.said}: ${round(figure.target.value)}`,
    figure.target === undefined ? "" : isMet(figure) ? "met" : "MISSED",
  ]);
  const head = ["figure", "p50", "p95", "p99", "unit", "compared with (p50)", "target", ""];
  const widths = head.map((title, column) => Math.max(title.length, ...rows.map((row) => row[column]!.length)));
  const line = (cells: string[]) =>
    cells
      .map((cell, column) => cell.padEnd(widths[column]!))
      .join("  ")
      .trimEnd();
  return [line(head), line(widths.map((width) => "-".repeat(width))), ...rows.map(line)].join("\n");
}

function round(value: number): string {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}
