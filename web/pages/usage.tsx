/** How much of what the team may have it has, and the numbers a request can run into. */
import { Page, Skeleton, Unreadable } from "../parts/page.tsx";
import { useReading } from "../parts/reading.ts";
import { useDashboard } from "../state/dashboard.ts";
import type { Service } from "../state/service.ts";
import { count, duration, memory, size } from "../state/words.ts";

type Limits = Awaited<ReturnType<Service["limits"]>>;

export function UsagePage() {
  const { service, fleet } = useDashboard();
  const capsules = fleet.capsules.value?.length;
  const { value: limits, problem, again } = useReading(() => service.limits(), [capsules]);
  return (
    <Page title="Usage" lead={<p>What this team has, and what it may have</p>}>
      {problem !== undefined ? (
        <Unreadable problem={problem} onRetry={again} />
      ) : limits === undefined ? (
        <Skeleton />
      ) : (
        <>
          <div class="usage">
            <Meter name="Capsules" used={capsules ?? 0} most={limits.capsules_max} say={String} />
          </div>
          <h2>Limits</h2>
          <LimitTable limits={limits} />
        </>
      )}
    </Page>
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
      <meter
        value={used}
        max={most}
        high={most * 0.9}
        optimum={0}
        aria-label={`${name}: ${say(used)} of ${say(most)}`}
      />
    </div>
  );
}

/** What each limit is called, and how its number is said. */
const rows: readonly [keyof Limits, string, (value: number) => string][] = [
  ["vcpus_max", "Virtual CPUs of one capsule", String],
  ["memory_min_mb", "Smallest memory of one capsule", memory],
  ["memory_max_mb", "Largest memory of one capsule", memory],
  ["timeout_max_sec", "Longest idle time before auto-pause", duration],
  ["body_max_bytes", "Body of a JSON request", size],
  ["exec_timeout_default_sec", "A command without a timeout of its own", duration],
  ["exec_timeout_max_sec", "Longest timeout of a command", duration],
  ["exec_output_max_bytes", "Output kept of each stream of a command", size],
  ["file_write_max_bytes", "A file written in one piece (streamed ones have no limit)", size],
  ["list_entries_max", "Entries of one listing of files", (value) => count(value, "entry", "entries")],
  ["sockets_max", "Open WebSockets of the team", (value) => value.toLocaleString("en")],
];

function LimitTable({ limits }: { limits: Limits }) {
  return (
    <div class="panel">
      <table>
        <caption class="unseen">Limits of requests</caption>
        <thead>
          <tr>
            <th scope="col">What</th>
            <th scope="col">At most</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(([key, meaning, say]) => (
            <tr key={key}>
              <th scope="row">{meaning}</th>
              <td>{say(limits[key])}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
