/** The course of a share over a span of time as a line of text height, beside its last value. */
interface SparkLineProps {
  /** As in "CPU". */
  name: string;
  /** `share`: 0 to 1. */
  points: readonly { at: number; share: number }[];
  spanMs: number;
}

const width = 56;
const height = 18;

export function SparkLine({ name, points, spanMs }: SparkLineProps) {
  const last = points.at(-1);
  if (last === undefined) return <span class="muted">–</span>;
  const x = (at: number) => Math.max(0, width - ((last.at - at) / spanMs) * width);
  const y = (share: number) => height - 1 - Math.min(1, share) * (height - 2);
  const line = points.map(({ at, share }) => `${x(at).toFixed(1)},${y(share).toFixed(1)}`).join(" ");
  return (
    <span class="spark">
      <svg viewBox={`0 0 ${width} ${height}`} width={width} height={height} aria-hidden="true" focusable="false">
        <polyline points={line} />
      </svg>
      <span>
        <span class="unseen">{name} </span>
        {Math.round(last.share * 100)} %
      </span>
    </span>
  );
}
