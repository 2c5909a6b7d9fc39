/** The rows of the list of capsules, each with a tick box for the actions on several. */
import type { CapsuleInfo, CapsuleMetric } from "../../src/sdk/sdk.ts";
import { SparkLine } from "../parts/spark-line.tsx";
import { StatusBadge } from "../parts/status-badge.tsx";
import { actionsColumn, Table, wideOnly, widestOnly } from "../parts/table.tsx";
import { Time } from "../parts/time.tsx";
import type { Order } from "../state/capsule-orders.ts";
import { useDashboard } from "../state/dashboard.ts";
import { cpus, memory } from "../state/format.ts";
import { hrefOf } from "../state/route.ts";
import type { Bulk } from "./bulk-bar.tsx";
import { CapsuleActions } from "./capsule-actions.tsx";
import { useRecentMetrics } from "./recent-metrics.ts";

const sparkMs = 900_000;

const cpuShare = ({ at, cpuPct, vcpus }: CapsuleMetric) => ({ at, share: cpuPct / (100 * vcpus) });

const labelText = ([key, value]: [string, string]) => `${key}=${value}`;

interface CapsuleTableProps {
  capsules: readonly CapsuleInfo[];
  order: Order;
  bulk: Bulk;
}

export function CapsuleTable({ capsules, order, bulk }: CapsuleTableProps) {
  const metrics = useRecentMetrics(capsules);
  const chosen = { title: "Choose", head: <ChooseAll count={capsules.length} bulk={bulk} /> };
  return (
    <Table
      caption={`Capsules: ${order.toLowerCase()}`}
      columns={[
        chosen,
        "Capsule",
        "Status",
        wideOnly("CPU"),
        widestOnly("Size, and in use"),
        widestOnly("Active"),
        wideOnly("Created"),
        actionsColumn,
      ]}
    >
      {capsules.map((capsule) => (
        <CapsuleRow key={capsule.id} capsule={capsule} bulk={bulk} points={metrics.get(capsule.id) ?? []} />
      ))}
    </Table>
  );
}

function ChooseAll({ count, bulk }: { count: number; bulk: Bulk }) {
  const { length } = bulk.chosen;
  return (
    <input
      type="checkbox"
      aria-label="Choose all capsules"
      checked={length === count}
      indeterminate={length > 0 && length < count}
      onChange={() => bulk.chooseAll(length < count)}
    />
  );
}

interface UsedNowProps {
  point: Pick<CapsuleMetric, "memoryUsedMb" | "diskUsedMb"> | undefined;
}

interface CapsuleRowProps {
  capsule: CapsuleInfo;
  bulk: Bulk;
  points: readonly CapsuleMetric[];
}

function CapsuleRow({ capsule, bulk, points }: CapsuleRowProps) {
  const { store } = useDashboard();
  const { id, name, status, labels, template, vcpus, memoryMb, errorReason, lastActiveAt, createdAt } = capsule;
  const failure = bulk.failures.get(id) ?? (status === "error" ? errorReason : null);
  return (
    <tr>
      <td class="choose">
        <input
          type="checkbox"
          aria-label={`Choose ${id}`}
          checked={bulk.chosen.includes(capsule)}
          onChange={() => bulk.toggle(id)}
        />
      </td>
      <th scope="row">
        <a class="mono one-line" href={hrefOf({ page: "capsule", id, tab: "terminal" })}>
          {name ?? id}
        </a>
        {name !== null && <span class="sub mono one-line">{id}</span>}
        <span class="sub breakable">{[`from ${template}`, ...Object.entries(labels).map(labelText)].join(", ")}</span>
        {failure !== null && <span class="sub failed breakable">{failure}</span>}
      </th>
      <td>
        <StatusBadge status={status} operation={store.operations.value.get(id)} />
      </td>
      <td class="wide-only">
        <SparkLine name="CPU" points={status === "running" ? points.map(cpuShare) : []} spanMs={sparkMs} />
      </td>
      <td class="widest-only">
        <span class="one-line">
          {cpus(vcpus)}, {memory(memoryMb)}
        </span>
        {status === "running" && <UsedNow point={points.at(-1)} />}
      </td>
      <td class="widest-only">
        <Time at={lastActiveAt} none="not yet" isShort />
      </td>
      <td class="wide-only">
        <Time at={createdAt} isShort />
      </td>
      <td class="row-actions">
        <CapsuleActions capsule={capsule} isBrief />
      </td>
    </tr>
  );
}

function UsedNow({ point: { memoryUsedMb, diskUsedMb } = { memoryUsedMb: null, diskUsedMb: null } }: UsedNowProps) {
  if (memoryUsedMb === null || diskUsedMb === null) return null;
  return (
    <span class="sub one-line">
      {memory(memoryUsedMb)}, disk {memory(diskUsedMb)}
    </span>
  );
}
