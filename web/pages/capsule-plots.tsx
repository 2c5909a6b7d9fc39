/** Processor, memory and disk of one capsule over time. */
import { useMemo } from "preact/hooks";
import type { CapsuleMetric } from "../../src/sdk/sdk.ts";
import { History, type Shown } from "../parts/history.tsx";
import { Plot } from "../parts/plot.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { memory } from "../state/format.ts";
import { columnsOf } from "../state/series.ts";

/** MiB between lines of the grid, up to 1 TiB. */
const powersOfTwo = Array.from({ length: 21 }, (_, power) => 2 ** power);
/** Share of the memory at which a line warns. */
const fullShare = 0.85;

export function PlotsTab({ id }: { id: string }) {
  const { client } = useDashboard();
  return (
    <History
      of={id}
      read={(request) => client.capsule(id).metrics(request)}
      render={(shown) => <CapsulePlots {...shown} />}
    />
  );
}

const processor = [({ cpuPct, vcpus }: CapsuleMetric) => cpuPct / vcpus];
const memories = [({ memoryUsedMb }: CapsuleMetric) => memoryUsedMb];
const disks = [({ diskUsedMb }: CapsuleMetric) => diskUsedMb];

function CapsulePlots({ points, range, until }: Shown<CapsuleMetric>) {
  const [cpu, used, disk] = useMemo(
    () => [processor, memories, disks].map((lines) => columnsOf(points, range.step * 1_000, lines)),
    [points],
  );
  const shared = { range, until, names: ["Used"] };
  const known = points.findLast(({ memoryTotalMb }) => memoryTotalMb !== null);
  const memoryTop = known?.memoryTotalMb ?? undefined;
  const diskTop = known?.diskTotalMb ?? undefined;
  const inMemory = { ...shared, format: memory, steps: powersOfTwo };
  return (
    <>
      <Plot {...shared} title="CPU, share of its vCPUs" columns={cpu!} format={percent} top={100} />
      {memoryTop !== undefined && (
        <Plot
          {...inMemory}
          title={`Memory, of ${memory(memoryTop)}`}
          columns={used!}
          top={memoryTop}
          mark={memoryTop * fullShare}
        />
      )}
      {diskTop !== undefined && (
        <Plot {...inMemory} title={`Disk, of ${memory(diskTop)}`} columns={disk!} top={diskTop} />
      )}
      {known === undefined && <p class="muted">This capsule has not told its memory and disk.</p>}
    </>
  );
}

function percent(value: number): string {
  return `${value < 10 && !Number.isInteger(value) ? value.toFixed(1) : Math.round(value)} %`;
}
