/** The output of a run: a line per file, failures in full, and sums. `.ci/run` reads the lines of the skips and the last one. */
import type { Result } from "./result.ts";

const slowestShown = 10;
/** Faster tests are not slow. */
const slowMs = 100;

/** The line of a file that has ended, below its output if a test failed or `isVerbose`. */
export function lineOf(result: Result, isVerbose: boolean): string {
  const { passed, failed, skipped, ms, source } = result;
  const isRed = failed.length > 0;
  const counts = [
    `${passed} passed`,
    isRed && `${failed.length} failed`,
    skipped.length > 0 && `${skipped.length} skipped`,
  ];
  const output = isRed || isVerbose ? result.output : "";
  return `${output}${isRed ? "✖" : "✔"} ${source}: ${counts.filter(Boolean).join(", ")}, ${seconds(ms)}\n`;
}

export function summaryOf(results: readonly Result[]): string {
  const tests = results.flatMap(({ source, timed }) => timed.map((each) => ({ ...each, source })));
  const slowest = tests
    .filter(({ ms }) => ms >= slowMs)
    .sort((a, b) => b.ms - a.ms)
    .slice(0, slowestShown);
  const failed = results.flatMap(({ source, failed }) => failed.map((title) => `${source}: ${title}`));
  const skipped = results.flatMap((each) => each.skipped);
  const lines = [
    ...slowest.map(({ source, title, ms }) => `slow: ${seconds(ms)}  ${source}: ${title}`),
    ...timesOf(results),
    ...skipped.map((each) => `skipped: ${each}`),
    ...failed.map((each) => `failed: ${each}`),
    `${results.reduce((sum, { passed }) => sum + passed, 0)} passed, ${failed.length} failed, ${skipped.length} skipped`,
  ];
  return `${lines.join("\n")}\n`;
}

/** Each group's time from its first file's begin to its last one's end, and the sum of the files' own times. */
function timesOf(results: readonly Result[]): string[] {
  return [...Map.groupBy(results, ({ group }) => group)].map(([group, files]) => {
    const wallMs = Math.max(...files.map((file) => file.endedMs)) - Math.min(...files.map((file) => file.beganMs));
    const sumMs = files.reduce((sum, { ms }) => sum + ms, 0);
    return `time: ${group} ${seconds(wallMs)}${files.length > 1 ? `, its ${files.length} files ${seconds(sumMs)}` : ""}`;
  });
}

function seconds(ms: number): string {
  return `${(ms / 1_000).toFixed(1)} s`;
}
