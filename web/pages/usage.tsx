/** The team's usage of its quotas, and the limits of requests. */
import { useEffect } from "preact/hooks";
import { LoadError, Page, Skeleton } from "../parts/page.tsx";
import { useQuery } from "../parts/query.ts";
import { Table } from "../parts/table.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { count, duration, memory, size } from "../state/format.ts";
import { type Limits, limitsOf } from "../state/service.ts";
import { useRecentMetrics } from "./recent-metrics.ts";
import { TeamHistory } from "./team-plots.tsx";

const settledMs = 300;

export function UsagePage() {
  const { client, store, templates } = useDashboard();
  const { value: limits, problem, reload } = useQuery(() => limitsOf(client), []);
  // Reads again once capsules and templates have not changed for this long.
  useEffect(() => {
    const timer = setTimeout(reload, settledMs);
    return () => clearTimeout(timer);
  }, [store.capsules.value, templates.value]);
  return (
    <Page title="Usage" lead={<p>This team's usage of its quotas</p>}>
      {problem !== undefined ? (
        <LoadError problem={problem} onRetry={reload} />
      ) : limits === undefined ? (
        <Skeleton />
      ) : (
        <>
          <Meters limits={limits} />
          <UsedNow />
          <h2>History</h2>
          <TeamHistory />
          <h2>Limits</h2>
          <LimitTable limits={limits} />
        </>
      )}
    </Page>
  );
}

const wait = (seconds: number) => (seconds === 0 ? "no limit" : duration(seconds));
const plain = (amount: number) => amount.toLocaleString("en");

function Meters({ limits }: { limits: Limits }) {
  const { usage } = limits;
  return (
    <div class="usage">
      <Meter name="Capsules" used={usage.capsules} most={limits.capsules_max} format={plain} />
      <Meter name="Promised vCPUs" used={usage.running_vcpus} most={limits.running_vcpus_max} format={plain} />
      <Meter
        name="Promised memory"
        used={usage.running_memory_mb}
        most={limits.running_memory_max_mb}
        format={memory}
      />
      <Meter name="Disk" used={usage.disk_bytes} most={limits.disk_max_bytes} format={size} />
      <Meter name="Snapshot templates" used={usage.templates} most={limits.templates_max} format={plain} />
      <Meter name="Open WebSockets" used={usage.sockets} most={limits.sockets_max} format={plain} />
    </div>
  );
}

/** Sums over the running capsules; a capsule that was never measured counts nothing. */
function UsedNow() {
  const { store } = useDashboard();
  const metrics = useRecentMetrics(store.capsules.value ?? []);
  const last = [...metrics.values()].flatMap((points) => points.at(-1) ?? []);
  const running = store.capsules.value?.filter(({ status }) => status === "running").length ?? 0;
  if (last.length === 0) return null;
  const cpu = last.reduce((sum, { cpuPct }) => sum + cpuPct / 100, 0);
  const used = last.reduce((sum, { memoryUsedMb }) => sum + (memoryUsedMb ?? 0), 0);
  return (
    <p class="used-now">
      In use now: <strong>{cpu.toFixed(1)}</strong> vCPUs and <strong>{memory(used)}</strong> of memory
      {last.length < running && `, by ${last.length} of ${count(running, "running capsule")}`}. A running capsule is
      promised all of its size, whatever it uses.
    </p>
  );
}

interface MeterProps {
  name: string;
  used: number;
  most: number;
  format: (amount: number) => string;
}

function Meter({ name, used, most, format }: MeterProps) {
  return (
    <div class="panel meter">
      <span class="meter-name">{name}</span>
      <span class="meter-figure">
        <strong>{format(used)}</strong> of {format(most)}
      </span>
      <meter value={used} max={Math.max(1, most)} high={most * 0.9} optimum={0} aria-label={name} />
    </div>
  );
}

/** Limit → name, and format of its value. */
const rows: readonly [Exclude<keyof Limits, "usage">, string, (value: number) => string][] = [
  ["vcpus_max", "Virtual CPUs of one capsule", plain],
  ["memory_min_mb", "Smallest memory of one capsule", memory],
  ["memory_max_mb", "Largest memory of one capsule", memory],
  ["timeout_max_sec", "Longest idle time of a capsule", duration],
  ["lifetime_max_sec", "Longest lifetime of a capsule's run", duration],
  ["retention_max_sec", "Longest retention of a capsule", duration],
  ["timeout_default_sec", "Idle time of a capsule that was made without one", wait],
  ["lifetime_default_sec", "Lifetime of a run, of such a capsule", wait],
  ["retention_default_sec", "Retention of such a capsule", wait],
  ["network_connections_max", "Connections that one capsule has opened at once", plain],
  ["public_ports_max", "Public ports of one capsule", plain],
  ["port_connections_max", "Open connections to ports of one capsule", plain],
  ["port_token_max_sec", "Longest life of a link to a port", duration],
  ["body_max_bytes", "Body of a JSON request", size],
  ["exec_timeout_default_sec", "Default timeout of a command", duration],
  ["exec_timeout_max_sec", "Longest timeout of a command", duration],
  ["exec_output_max_bytes", "Output kept per stream of a command", size],
  ["file_write_max_bytes", "A file written in one request (streamed files have no limit)", size],
  ["list_entries_max", "Entries of one listing of files", plain],
  ["requests_per_sec", "Requests per second with one key, sustained", plain],
  ["requests_max", "Concurrent requests of the team", plain],
  ["sockets_per_capsule_max", "Open WebSockets of one capsule", plain],
];

function LimitTable({ limits }: { limits: Limits }) {
  return (
    <Table caption="Limits of requests" columns={["Limit", "Value"]}>
      {rows.map(([key, meaning, format]) => (
        <tr key={key}>
          <th scope="row">{meaning}</th>
          <td>{format(limits[key])}</td>
        </tr>
      ))}
    </Table>
  );
}
