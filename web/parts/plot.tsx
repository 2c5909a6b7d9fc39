/** Lines over time, drawn by uPlot on a canvas; below it each line's value, and the values as a table. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import UPlot from "uplot";
import type { Columns, Range, Value } from "../state/series.ts";
import { placesOf } from "../state/series.ts";
import { Table } from "./table.tsx";

const heightPx = 150;
const tableRows = 30;

interface PlotProps {
  title: string;
  range: Range;
  /** Epoch milliseconds of the right edge. */
  until: number;
  columns: Columns;
  /** Names of the lines. The first two have colours of their own. */
  names: readonly string[];
  format: (value: number) => string;
  /** Value of the upper edge; undefined: that of the largest value. */
  top?: number | undefined;
  /** Distances between the lines of the grid: a suitable one of these. */
  steps?: number[];
  /** A dashed line at this value. */
  mark?: number | undefined;
  /** Points without a line, for values that few points have. */
  isSparse?: boolean;
}

const colours = ["--accent", "--busy"] as const;

export function Plot(props: PlotProps) {
  const { title, range, columns, names, format } = props;
  const place = useRef<HTMLDivElement>(null);
  const [pointed, setPointed] = useState<number | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const plot = useRef<UPlot>(undefined);
  useEffect(() => {
    const made = draw(place.current!, () => latest.current, setPointed);
    plot.current = made;
    const unwatch = follow(made, place.current!);
    return () => {
      unwatch();
      made.destroy();
    };
  }, []);
  useEffect(() => plot.current?.setData(dataOf(columns)), [columns, props.until]);
  const last = placesOf(columns, columns.times.length)[0];
  const shown = pointed !== null && pointed < columns.times.length ? pointed : last;
  const written = (value: Value | undefined) => (value === null || value === undefined ? "–" : format(value));
  return (
    <figure class="panel plot">
      <figcaption>
        <span class="plot-title">{title}</span>
        <span class="plot-values">
          {names.map((name, index) => (
            <span key={name} class={`plot-value line-${index}`}>
              {name} <strong>{written(shown === undefined ? null : columns.lines[index]?.[shown])}</strong>
            </span>
          ))}
          {shown !== undefined && <span class="muted">{clock(columns.times[shown]!)}</span>}
        </span>
      </figcaption>
      <div
        class="plot-place"
        ref={place}
        role="img"
        aria-label={`${title}, last ${range.name}: the table has values`}
      />
      <Values {...props} written={written} />
    </figure>
  );
}

function Values({ title, columns, names, written }: PlotProps & { written: (value: Value | undefined) => string }) {
  const [isOpen, setOpen] = useState(false);
  const places = useMemo(() => (isOpen ? placesOf(columns, tableRows) : []), [isOpen, columns]);
  return (
    <details class="plot-table" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary aria-label={`${title} as a table`}>Table</summary>
      {isOpen && (
        <Table caption={title} columns={["Time", ...names]}>
          {places.map((place) => (
            <tr key={place}>
              <th scope="row">{clock(columns.times[place]!)}</th>
              {columns.lines.map((line, index) => (
                <td key={names[index]}>{written(line[place])}</td>
              ))}
            </tr>
          ))}
        </Table>
      )}
    </details>
  );
}

function clock(at: number): string {
  return new Date(at).toLocaleTimeString("en-GB");
}

function dataOf({ times, lines }: Columns): UPlot.AlignedData {
  return [times.map((at) => at / 1000), ...lines];
}

function draw(place: HTMLElement, props: () => PlotProps, onPoint: (index: number | null) => void): UPlot {
  const { names, isSparse = false, columns, steps } = props();
  const colour = (name: string) => colourOf(place, name);
  const lines = names.map((_, index) => ({
    stroke: () => colour(colours[index % colours.length]!),
    width: isSparse ? 0 : 1.5,
    points: isSparse ? { show: true, size: 6, fill: () => colour(colours[index % colours.length]!) } : { show: false },
  }));
  const line = { stroke: () => colour("--line"), width: 1 };
  const axis = { stroke: () => colour("--muted"), font: "11px system-ui, sans-serif", grid: line, ticks: line };
  const options: UPlot.Options = {
    width: place.clientWidth,
    height: heightPx,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false } },
    scales: {
      x: { range: () => [(props().until - props().range.spanMs) / 1000, props().until / 1000] },
      y: { range: (_, __, max) => [0, props().top ?? Math.max(1, (max ?? 0) * 1.1)] },
    },
    axes: [
      { ...axis, size: 32, space: 60, values: (_, splits) => splits.map((each) => clock(each * 1000).slice(0, 5)) },
      {
        ...axis,
        ...(steps && { incrs: steps }),
        size: 62,
        space: 32,
        values: (_, splits) => splits.map((each) => props().format(each)),
      },
    ],
    series: [{}, ...lines],
    hooks: {
      setCursor: [({ cursor }) => onPoint(cursor.idx ?? null)],
      drawClear: [(plot) => drawGaps(plot, props(), colour)],
      draw: [(plot) => drawMark(plot, props(), colour)],
    },
  };
  return new UPlot(options, dataOf(columns), place);
}

/** A band where nothing was measured. */
function drawGaps(plot: UPlot, { columns }: PlotProps, colour: (name: string) => string): void {
  const { left, top, width, height } = plot.bbox;
  plot.ctx.fillStyle = colour("--sunken");
  for (const { from, to } of columns.gaps) {
    const begin = Math.max(left, plot.valToPos(from / 1000, "x", true));
    const end = Math.min(left + width, plot.valToPos(to / 1000, "x", true));
    if (end > begin) plot.ctx.fillRect(begin, top, end - begin, height);
  }
}

function drawMark(plot: UPlot, { mark }: PlotProps, colour: (name: string) => string): void {
  if (mark === undefined) return;
  const { ctx, bbox } = plot;
  const y = plot.valToPos(mark, "y", true);
  ctx.save();
  ctx.strokeStyle = colour("--bad");
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.restore();
}

/** A colour of the style sheet as the canvas takes it: of this theme. */
function colourOf(place: HTMLElement, name: string): string {
  place.style.color = `var(${name})`;
  return getComputedStyle(place).color;
}

/** Draws anew with the width of its place and with the theme, until it is called off. */
function follow(plot: UPlot, place: HTMLElement): () => void {
  const redraw = () => plot.redraw(false, true);
  const sizes = new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: heightPx }));
  sizes.observe(place);
  const themes = new MutationObserver(redraw);
  themes.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", redraw);
  return () => {
    sizes.disconnect();
    themes.disconnect();
    dark.removeEventListener("change", redraw);
  };
}
