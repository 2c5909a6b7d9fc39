/** The audit log: time, action, key and outcome of every change and command. New entries appear by themselves. */
import { useEffect, useRef, useState } from "preact/hooks";
import { Button } from "../parts/button.tsx";
import { Empty, LoadError, Page, Skeleton } from "../parts/page.tsx";
import { useQuery, useRereading } from "../parts/query.ts";
import { type AuditFilter, type Entry, filtered, folded, joined, nameOfKey, outcomes } from "../state/audit-entries.ts";
import { useDashboard } from "../state/dashboard.ts";
import { count } from "../state/format.ts";
import { hrefOf } from "../state/route.ts";
import { auditOf } from "../state/service.ts";
import { AuditTable } from "./audit-table.tsx";

/** From one answer to the next request for newer entries. */
const rereadMs = 3_000;
const noFilter: AuditFilter = { action: "", key: "", outcome: "" };

export function AuditPage({ capsule }: { capsule: string | undefined }) {
  const { entries, problem, reload, readOlder, isBusy } = useEntries(capsule);
  const [filter, setFilter] = useState(noFilter);
  const shown = filtered(folded(entries ?? []), filter);
  return (
    <Page
      title="Audit log"
      lead={capsule === undefined ? <p>Every change and every command, live</p> : <CapsuleFilter capsule={capsule} />}
    >
      {entries !== undefined && entries.length > 0 && (
        <Filters entries={entries} filter={filter} onFilter={(part) => setFilter({ ...filter, ...part })} />
      )}
      {problem !== undefined ? (
        <LoadError problem={problem} onRetry={reload} />
      ) : entries === undefined ? (
        <Skeleton rows={6} />
      ) : entries.length === 0 ? (
        <Empty icon="list" title="No entries yet">
          <p>Create a capsule to see its entry here.</p>
        </Empty>
      ) : shown.length === 0 ? (
        <Empty icon="list" title={`None of the last ${count(entries.length, "entry", "entries")} matches`}>
          <Button onPress={() => setFilter(noFilter)}>Show all entries</Button>
        </Empty>
      ) : (
        <AuditTable shown={shown} />
      )}
      {readOlder !== undefined && (
        <p class="more">
          <Button isBusy={isBusy} onPress={readOlder}>
            Show older entries
          </Button>
        </p>
      )}
    </Page>
  );
}

/** The newest entries, read again and again, and older ones as far as they were asked for. */
function useEntries(capsule: string | undefined) {
  const dashboard = useDashboard();
  const { client } = dashboard;
  const [known, setKnown] = useState<readonly Entry[]>();
  /** Cursor of the page that follows the known entries. */
  const next = useRef<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const newest = useQuery(() => auditOf(client, undefined, capsule), [capsule]);
  useRereading(newest, rereadMs);
  useEffect(() => {
    const page = newest.value;
    if (page === undefined) return;
    setKnown((before) => {
      const { entries, hasGap } = joined(page.entries, before ?? []);
      if (before === undefined || before.length === 0 || hasGap) next.current = page.next;
      return entries;
    });
  }, [newest.value]);
  const readOlder = async () => {
    setBusy(true);
    await dashboard.attempt(async () => {
      const page = await auditOf(client, next.current ?? undefined, capsule);
      next.current = page.next;
      setKnown((before) => [...(before ?? []), ...page.entries]);
    });
    setBusy(false);
  };
  const hasOlder = known !== undefined && next.current !== null;
  const problem = known === undefined ? newest.problem : undefined;
  const { reload } = newest;
  return { entries: known, problem, reload, readOlder: hasOlder ? () => void readOlder() : undefined, isBusy };
}

interface FiltersProps {
  entries: readonly Entry[];
  filter: AuditFilter;
  onFilter: (part: Partial<AuditFilter>) => void;
}

/** Choices are what the entries have. */
function Filters({ entries, filter, onFilter }: FiltersProps) {
  const actions = new Set(entries.flatMap(({ action }) => [action.split(".")[0]!, action]));
  const keys = new Set(entries.map(nameOfKey));
  const choices = [
    { field: "action", label: "Action", any: "Every action", values: [...actions].sort() },
    { field: "key", label: "Key", any: "Every key", values: [...keys].sort() },
    { field: "outcome", label: "Outcome", any: "Every outcome", values: outcomes },
  ] as const;
  return (
    <div class="list-choice">
      {choices.map(({ field, label, any, values }) => (
        <select
          key={field}
          aria-label={label}
          value={filter[field]}
          onChange={(event) => onFilter({ [field]: event.currentTarget.value })}
        >
          <option value="">{any}</option>
          {values.map((value) => (
            <option key={value} value={value}>
              {value}
            </option>
          ))}
        </select>
      ))}
    </div>
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
