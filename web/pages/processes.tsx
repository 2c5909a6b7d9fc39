/** The processes of a capsule, read again every two seconds; dialogs to see the output of one, and to end it. */
import { useState } from "preact/hooks";
import type { ProcessInfo } from "../../src/sdk/sdk.ts";
import type { Signal } from "../../src/wire/process.ts";
import { Button } from "../parts/button.tsx";
import { FormDialog } from "../parts/dialog.tsx";
import { Empty, LoadError, Skeleton } from "../parts/page.tsx";
import { useQuery, useRereading } from "../parts/query.ts";
import { actionsColumn, Table, wideOnly } from "../parts/table.tsx";
import { Time } from "../parts/time.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { count } from "../state/format.ts";
import { OutputDialog } from "./process-output.tsx";

const shownMax = 1_000;
/** From one answer to the next request. */
const rereadMs = 2_000;
const initPid = 1;

export function ProcessesTab({ id }: { id: string }) {
  const { client } = useDashboard();
  const query = useQuery(() => client.capsule(id).processes({ resume: false }), [id]);
  useRereading(query, rereadMs);
  const { value: processes, problem, reload } = query;
  const [filter, setFilter] = useState("");
  const [ending, setEnding] = useState<ProcessInfo>();
  const [read, setRead] = useState<ProcessInfo>();
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
        <p class="muted">{count(processes.length, "process", "processes")}, live</p>
      </div>
      {fitting.length === 0 ? (
        <Empty icon="list" title="No process matches the filter">
          <Button onPress={() => setFilter("")}>Show all processes</Button>
        </Empty>
      ) : (
        <ProcessTable processes={fitting.slice(0, shownMax)} onEnd={setEnding} onRead={setRead} />
      )}
      {fitting.length > shownMax && (
        <p class="muted">{count(fitting.length - shownMax, "more process", "more processes")} not shown.</p>
      )}
      {read && <OutputDialog id={id} process={read} onClose={() => setRead(undefined)} />}
      {ending && <EndDialog id={id} process={ending} onEnded={reload} onClose={() => setEnding(undefined)} />}
    </>
  );
}

function fits({ pid, tag, cmd, args }: ProcessInfo, filter: string): boolean {
  return [String(pid), tag, cmd, ...args].some((text) => text.toLowerCase().includes(filter));
}

interface TableProps {
  processes: readonly ProcessInfo[];
  onEnd: (process: ProcessInfo) => void;
  onRead: (process: ProcessInfo) => void;
}

function ProcessTable({ processes, onEnd, onRead }: TableProps) {
  return (
    <Table caption="Processes" columns={["PID", "Command", wideOnly("User"), wideOnly("Started"), actionsColumn]}>
      {processes.map((process) => (
        <tr key={process.pid}>
          <td class="mono">{process.pid}</td>
          <th scope="row" class="mono breakable">
            <span class="two-lines">{commandLine(process)}</span>
            {process.tag !== "" && <span class="sub breakable">{process.tag}</span>}
          </th>
          <td class="wide-only mono">{process.user ?? <span class="muted">unknown</span>}</td>
          <td class="wide-only">
            <Time
              at={process.startedAt === undefined ? null : new Date(process.startedAt).toISOString()}
              none="unknown"
            />
          </td>
          <td class="row-actions">
            {hasOutput(process) && (
              <Button
                kind="quiet"
                icon="eye"
                label={`Output of process ${process.pid}`}
                onPress={() => onRead(process)}
              />
            )}
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

/** Agents of earlier releases do not tell the kind. */
function hasOutput({ kind, tag }: ProcessInfo): boolean {
  return tag !== "" && (kind === "exec" || (kind === undefined && !tag.startsWith("pty-")));
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
