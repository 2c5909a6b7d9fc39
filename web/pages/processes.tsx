/** The processes of a capsule, and a dialog to end one. */
import { useState } from "preact/hooks";
import type { ProcessInfo } from "../../src/sdk/sdk.ts";
import type { Signal } from "../../src/wire/process.ts";
import { Button } from "../parts/button.tsx";
import { FormDialog } from "../parts/dialog.tsx";
import { Empty, LoadError, Skeleton } from "../parts/page.tsx";
import { useQuery } from "../parts/query.ts";
import { actionsColumn, Table, wideOnly } from "../parts/table.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { count } from "../state/format.ts";

const shownMax = 1_000;
const initPid = 1;

export function ProcessesTab({ id }: { id: string }) {
  const { client } = useDashboard();
  const { value: processes, problem, reload } = useQuery(() => client.capsule(id).processes(), [id]);
  const [filter, setFilter] = useState("");
  const [ending, setEnding] = useState<ProcessInfo>();
  if (problem !== undefined) return <LoadError problem={problem} onRetry={reload} />;
  if (processes === undefined) return <Skeleton />;
  const fitting = processes.filter((process) => fits(process, filter.trim().toLowerCase()));
  return (
    <>
      <div class="toolbar">
        <input
          class="filter"
          type="search"
          aria-label="Filter processes"
          placeholder="Filter by PID, tag or command"
          value={filter}
          onInput={(event) => setFilter(event.currentTarget.value)}
        />
        <div class="actions">
          <Button icon="refresh" onPress={reload}>
            Refresh
          </Button>
        </div>
      </div>
      {fitting.length === 0 ? (
        <Empty icon="list" title="No process matches the filter">
          <Button onPress={() => setFilter("")}>Show all processes</Button>
        </Empty>
      ) : (
        <ProcessTable processes={fitting.slice(0, shownMax)} onEnd={setEnding} />
      )}
      {fitting.length > shownMax && (
        <p class="muted">{count(fitting.length - shownMax, "more process", "more processes")} not shown.</p>
      )}
      {ending && <EndDialog id={id} process={ending} onEnded={reload} onClose={() => setEnding(undefined)} />}
    </>
  );
}

function fits({ pid, tag, cmd, args }: ProcessInfo, filter: string): boolean {
  return [String(pid), tag, cmd, ...args].some((text) => text.toLowerCase().includes(filter));
}

function ProcessTable({
  processes,
  onEnd,
}: {
  processes: readonly ProcessInfo[];
  onEnd: (process: ProcessInfo) => void;
}) {
  return (
    <Table caption="Processes" columns={["PID", "Command", wideOnly("Tag"), actionsColumn]}>
      {processes.map((process) => (
        <tr key={process.pid}>
          <td class="mono">{process.pid}</td>
          <th scope="row" class="mono breakable">
            {commandLine(process)}
          </th>
          <td class="wide-only mono breakable tag">{process.tag || <span class="muted">none</span>}</td>
          <td class="row-actions">
            <Button
              kind="quiet"
              icon="close"
              label={`End process ${process.pid}`}
              refused={process.pid === initPid ? "PID 1 is the capsule's init process" : undefined}
              onPress={() => onEnd(process)}
            />
          </td>
        </tr>
      ))}
    </Table>
  );
}

const lineMaxChars = 400;

function commandLine({ cmd, args }: ProcessInfo): string {
  const line = [cmd, ...args].join(" ");
  return line.length > lineMaxChars ? `${line.slice(0, lineMaxChars)}…` : line;
}

interface EndProps {
  id: string;
  process: ProcessInfo;
  onEnded: () => void;
  onClose: () => void;
}

function EndDialog({ id, process, onEnded, onClose }: EndProps) {
  const { client, toasts } = useDashboard();
  const [signal, setSignal] = useState<Signal>("SIGTERM");
  const end = async () => {
    await client.capsule(id).process(process.pid).kill(signal);
    toasts.done(`${signal} was sent to process ${process.pid}.`);
    onEnded();
  };
  return (
    <FormDialog title={`End process ${process.pid}?`} confirm="End it" kind="danger" onConfirm={end} onClose={onClose}>
      <p class="mono breakable">{commandLine(process)}</p>
      <fieldset>
        <legend>Signal</legend>
        <label class="choice">
          <input type="radio" name="signal" checked={signal === "SIGTERM"} onChange={() => setSignal("SIGTERM")} />
          <span>
            Ask it to end <span class="muted">(SIGTERM: the process may clean up, or ignore it)</span>
          </span>
        </label>
        <label class="choice">
          <input type="radio" name="signal" checked={signal === "SIGKILL"} onChange={() => setSignal("SIGKILL")} />
          <span>
            End it at once <span class="muted">(SIGKILL: cannot be ignored)</span>
          </span>
        </label>
      </fieldset>
      <p class="hint">The signal is sent to the whole process group.</p>
    </FormDialog>
  );
}
