/** Points of metrics as the columns of a plot, with gaps where none were made, and as the rows of a table. */

export const ranges = [
  { value: "15m", name: "15 minutes", spanMs: 900_000, step: 10 },
  { value: "1h", name: "1 hour", spanMs: 3_600_000, step: 10 },
  { value: "24h", name: "24 hours", spanMs: 86_400_000, step: 300 },
] as const;
export type Range = (typeof ranges)[number];

export type Value = number | null;

export interface Columns {
  /** Epoch milliseconds, ascending. A gap has one entry, without values. */
  times: number[];
  /** For each line, a value for each time. */
  lines: Value[][];
  /** From the point before to the point after: between them nothing was measured. */
  gaps: { from: number; to: number }[];
}

/** Steps without a point that make a gap. */
const gapSteps = 3;

/** `lines`: how to read each line's value of a point. */
export function columnsOf<P extends { at: number }>(
  points: readonly P[],
  stepMs: number,
  lines: readonly ((point: P) => Value)[],
): Columns {
  const sorted = points.toSorted((a, b) => a.at - b.at);
  const columns: Columns = { times: [], lines: lines.map(() => []), gaps: [] };
  const add = (at: number, point?: P) => {
    columns.times.push(at);
    for (const [index, read] of lines.entries()) columns.lines[index]!.push(point === undefined ? null : read(point));
  };
  for (const point of sorted) {
    const before = columns.times.at(-1);
    if (before === point.at) continue;
    if (before !== undefined && point.at - before > gapSteps * stepMs) {
      columns.gaps.push({ from: before, to: point.at });
      add((before + point.at) / 2);
    }
    add(point.at, point);
  }
  return columns;
}

/** At most `max` points that have values, evenly chosen, newest first: their places. */
export function placesOf({ times, lines }: Columns, max: number): number[] {
  const known = times.flatMap((_, index) => (lines.some((line) => line[index] !== null) ? [index] : [])).reverse();
  const every = Math.max(1, Math.ceil(known.length / max));
  return known.filter((_, index) => index % every === 0);
}
