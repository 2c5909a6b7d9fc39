/** How much of what the team may have it has, and the numbers a request can run into. */
import { useEffect } from "preact/hooks";
import { Page, Skeleton, Unreadable } from "../parts/page.tsx";
import { useReading } from "../parts/reading.ts";
import { Table } from "../parts/table.tsx";
import { useDashboard } from "../state/dashboard.ts";
import type { Service } from "../state/service.ts";
import { duration, memory, size } from "../state/words.ts";

type LimitsAndUsage = Awaited<ReturnType<Service["limits"]>>;

const settledMs = 300;

export function UsagePage() {
  const { service, fleet, templates } = useDashboard();
  const { value: limits, problem, again } = useReading(() => service.limits(), []);
  // Read anew when something that counts has changed, and no more for the moment.
  useEffect(() => {
    const timer = setTimeout(again, settledMs);
    return () => clearTimeout(timer);
  }, [fleet.capsules.value, templates.value]);
  return (
    <Page title="Usage" lead={<p>What this team has, and what it may have</p>}>
      {problem !== undefined ? (
        <Unreadable problem={problem} onRetry={again} />
      ) : limits === undefined ? (
        <Skeleton />
      ) : (
        <>
          <Meters limits={limits} />
          <h2>Limits</h2>
          <LimitTable limits={limits} />
        </>
      )}
    </Page>
  );
}

const plain = (amount: number) => amount.toLocaleString("en");

function Meters({ limits }: { limits: LimitsAndUsage }) {
  const { usage } = limits;
  return (
    <div class="usage">
      <Meter name="Capsules" used={usage.capsules} most={limits.capsules_max} say={plain} />
      <Meter name="Running vCPUs" used={usage.running_vcpus} most={limits.running_vcpus_max} say={plain} />
      <Meter name="Running memory" used={usage.running_memory_mb} most={limits.running_memory_max_mb} say={memory} />
      <Meter name="Disk" used={usage.disk_bytes} most={limits.disk_max_bytes} say={size} />
      <Meter name="Snapshot templates" used={usage.templates} most={limits.templates_max} say={plain} />
      <Meter name="Open WebSockets" used={usage.sockets} most={limits.sockets_max} say={plain} />
    </div>
  );
}

interface MeterProps {
  name: string;
  used: number;
  most: number;
  say: (amount: number) => string;
}

function Meter({ name, used, most, say }: MeterProps) {
  return (
    <div class="panel meter">
      <span class="meter-name">{name}</span>
      <span class="meter-figure">
        <strong>{say(used)}</strong> of {say(most)}
      </span>
      <meter value={used} max={Math.max(1, most)} high={most * 0.9} optimum={0} aria-label={name} />
    </div>
  );
}

/** What each limit is called, and how its number is said. */
const rows: readonly [Exclude<keyof LimitsAndUsage, "usage">, string, (value: number) => string][] = [
  ["vcpus_max", "Virtual CPUs of one capsule", plain],
  ["memory_min_mb", "Smallest memory of one capsule", memory],
  ["memory_max_mb", "Largest memory of one capsule", memory],
  ["timeout_max_sec", "Longest idle time before auto-pause", duration],
  ["body_max_bytes", "Body of a JSON request", size],
  ["exec_timeout_default_sec", "A command without a timeout of its own", duration],
  ["exec_timeout_max_sec", "Longest timeout of a command", duration],
  ["exec_output_max_bytes", "Output kept of each stream of a command", size],
  ["file_write_max_bytes", "A file written in one piece (streamed ones have no limit)", size],
  ["list_entries_max", "Entries of one listing of files", plain],
  ["requests_per_sec", "Requests per second with one key, in the long run", plain],
  ["requests_max", "Requests of the team under way at once", plain],
  ["sockets_per_capsule_max", "Open WebSockets of one capsule", plain],
];

function LimitTable({ limits }: { limits: LimitsAndUsage }) {
  return (
    <Table caption="Limits of requests" columns={["What", "Limit"]}>
      {rows.map(([key, meaning, say]) => (
        <tr key={key}>
          <th scope="row">{meaning}</th>
          <td>{say(limits[key])}</td>
        </tr>
      ))}
    </Table>
  );
}
