/** The audit log: time, action, key and outcome of every change and command. */

import { useEffect, useState } from "preact/hooks";
import type { Static } from "typebox";
import type { AuditEntry } from "../../src/wire/audit.ts";
import { Button } from "../parts/button.tsx";
import { Empty, LoadError, Page, Skeleton } from "../parts/page.tsx";
import { Table, wideOnly } from "../parts/table.tsx";
import { Time } from "../parts/time.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { hrefOf } from "../state/route.ts";
import { auditOf } from "../state/service.ts";
import { messageOf } from "../state/toasts.ts";

type Entry = Static<typeof AuditEntry>;

/** The pages read so far; `next`: cursor of the next one. */
interface Pages {
  entries: readonly Entry[];
  next: string | null;
}

export function AuditPage({ capsule }: { capsule: string | undefined }) {
  const { client } = useDashboard();
  const [pages, setPages] = useState<Pages>();
  const [problem, setProblem] = useState<string>();
  const [isBusy, setBusy] = useState(false);
  const read = async (before: Pages | undefined) => {
    setBusy(true);
    setProblem(undefined);
    try {
      const { entries, next } = await auditOf(client, before?.next ?? undefined, capsule);
      setPages({ entries: [...(before?.entries ?? []), ...entries], next });
    } catch (error) {
      setProblem(messageOf(error));
    }
    setBusy(false);
  };
  useEffect(() => void read(undefined), []);
  return (
    <Page
      title="Audit log"
      lead={capsule === undefined ? <p>Every change and every command</p> : <CapsuleFilter capsule={capsule} />}
      actions={
        <Button icon="refresh" onPress={() => void read(undefined)}>
          Refresh
        </Button>
      }
    >
      {problem !== undefined ? (
        <LoadError problem={problem} onRetry={() => void read(undefined)} />
      ) : pages === undefined ? (
        <Skeleton rows={6} />
      ) : pages.entries.length === 0 ? (
        <Empty icon="list" title="No entries yet">
          <p>Create a capsule to see its entry here.</p>
        </Empty>
      ) : (
        <EntryTable entries={pages.entries} />
      )}
      {pages !== undefined && pages.next !== null && problem === undefined && (
        <p class="more">
          <Button isBusy={isBusy} onPress={() => void read(pages)}>
            Show older entries
          </Button>
        </p>
      )}
    </Page>
  );
}

function CapsuleFilter({ capsule }: { capsule: string }) {
  return (
    <p>
      Entries of capsule{" "}
      <a class="mono" href={hrefOf({ page: "capsule", id: capsule, tab: "details" })}>
        {capsule}
      </a>
      . <a href={hrefOf({ page: "audit" })}>Show all entries</a>
    </p>
  );
}

function EntryTable({ entries }: { entries: readonly Entry[] }) {
  return (
    <Table
      caption="Audit log, newest first"
      columns={["When", "What", wideOnly("Capsule"), wideOnly("Who"), "Outcome"]}
    >
      {entries.map((entry) => (
        <EntryRow key={entry.id} entry={entry} />
      ))}
    </Table>
  );
}

function EntryRow({ entry: { at, action, subject, capsule_id, key_name, key_id, address, status } }: { entry: Entry }) {
  const [area, verb] = action.split(".");
  return (
    <tr>
      <td>
        <Time at={at} />
      </td>
      <th scope="row">
        {area}
        {verb !== undefined && (
          <>
            <wbr />.{verb}
          </>
        )}
        {subject !== null && <span class="sub mono breakable">{subject}</span>}
      </th>
      <td class="wide-only">
        {capsule_id === null ? (
          <span class="muted">none</span>
        ) : (
          <a class="mono" href={hrefOf({ page: "audit", capsule: capsule_id })} title={capsule_id}>
            {capsule_id.slice(0, 11)}…
          </a>
        )}
      </td>
      <td class="wide-only breakable">
        {key_name || key_id}
        <span class="sub mono">{address}</span>
      </td>
      <td>
        <Outcome status={status} />
      </td>
    </tr>
  );
}

function Outcome({ status }: { status: number }) {
  const [tone, word] = outcomeOf(status);
  return (
    <span class={`badge ${tone}`} title={`HTTP status ${status}`}>
      <span class="mark" aria-hidden="true" />
      {word}
    </span>
  );
}

const clientClosed = 499;

function outcomeOf(status: number): ["good" | "info" | "off" | "bad", string] {
  if (status < 200) return ["info", "started"];
  if (status < 400) return ["good", "done"];
  if (status === clientClosed) return ["off", "aborted"];
  return ["bad", status < 500 ? `refused, ${status}` : `failed, ${status}`];
}
