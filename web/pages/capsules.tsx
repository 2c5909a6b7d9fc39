/** The list of the team's capsules, updated live. */
import { useState } from "preact/hooks";
import type { CapsuleInfo, CapsuleStatus } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { Empty, Page, Skeleton } from "../parts/page.tsx";
import { statusStyles } from "../parts/status-badge.tsx";
import { inOrder, type Order, orderNames } from "../state/capsule-orders.ts";
import { useDashboard } from "../state/dashboard.ts";
import { count } from "../state/format.ts";
import { BulkBar, useBulk } from "./bulk-bar.tsx";
import { CapsuleTable } from "./capsule-table.tsx";
import { CreateDialog } from "./create-dialog.tsx";

/** More rows would make the page slow; the filter reaches the rest. */
const shownMax = 500;

export function CapsulesPage() {
  const { store } = useDashboard();
  const [filter, setFilter] = useState("");
  const [order, setOrder] = useState<Order>("Newest first");
  const [isCreating, setCreating] = useState(false);
  const capsules = store.capsules.value;
  const fitting = capsules?.filter((capsule) => fits(capsule, filter.trim().toLowerCase()));
  const shown = inOrder(fitting ?? [], order).slice(0, shownMax);
  const bulk = useBulk(shown);
  return (
    <Page
      title="Capsules"
      lead={capsules && <Summary capsules={capsules} filter={filter} onFilter={setFilter} />}
      actions={
        <Button kind="primary" icon="plus" onPress={() => setCreating(true)}>
          New capsule
        </Button>
      }
    >
      {capsules !== undefined && capsules.length > 0 && (
        <ListChoice filter={filter} onFilter={setFilter} order={order} onOrder={setOrder} />
      )}
      {fitting === undefined ? (
        <Skeleton />
      ) : capsules?.length === 0 ? (
        <Empty icon="box" title="No capsules yet">
          <p>
            A capsule is a small virtual machine that starts within a second. Create the first one here, or from a
            shell:
          </p>
          <code class="block">capsule create</code>
        </Empty>
      ) : fitting.length === 0 ? (
        <Empty icon="box" title="No capsule matches the filter">
          <Button onPress={() => setFilter("")}>Show all capsules</Button>
        </Empty>
      ) : (
        <CapsuleTable capsules={shown} order={order} bulk={bulk} />
      )}
      {fitting !== undefined && fitting.length > shownMax && (
        <p class="muted">{count(fitting.length - shownMax, "more capsule")} not shown. Use the filter to find them.</p>
      )}
      <BulkBar bulk={bulk} />
      {isCreating && <CreateDialog onClose={() => setCreating(false)} />}
    </Page>
  );
}

interface ListChoiceProps {
  filter: string;
  onFilter: (filter: string) => void;
  order: Order;
  onOrder: (order: Order) => void;
}

function ListChoice({ filter, onFilter, order, onOrder }: ListChoiceProps) {
  return (
    <div class="list-choice">
      <input
        class="filter"
        type="search"
        aria-label="Filter capsules"
        placeholder="Filter by name, id, label, status or template"
        value={filter}
        onInput={(event) => onFilter(event.currentTarget.value)}
      />
      <select
        aria-label="Order of capsules"
        value={order}
        onChange={(event) => onOrder(event.currentTarget.value as Order)}
      >
        {orderNames.map((each) => (
          <option key={each}>{each}</option>
        ))}
      </select>
    </div>
  );
}

interface SummaryProps {
  capsules: readonly CapsuleInfo[];
  filter: string;
  onFilter: (filter: string) => void;
}

/** The number of capsules of each status; pressed, the list shows these only, and pressed again all. */
function Summary({ capsules, filter, onFilter }: SummaryProps) {
  const counts = Map.groupBy(capsules, ({ status }) => status);
  const present = (Object.keys(statusStyles) as CapsuleStatus[]).filter((status) => counts.has(status));
  if (present.length === 0) return <p>Small virtual machines, isolated from each other</p>;
  return (
    <p class="counts">
      {present.map((status) => (
        <button
          key={status}
          type="button"
          class="count"
          aria-pressed={filter === status}
          onClick={() => onFilter(filter === status ? "" : status)}
        >
          {counts.get(status)!.length.toLocaleString("en")} {status}
        </button>
      ))}
    </p>
  );
}

function fits({ id, name, labels, status, template }: CapsuleInfo, filter: string): boolean {
  const notes = Object.entries(labels).map(([key, value]) => `${key}=${value}`);
  return [id, name ?? "", status, template, ...notes].some((text) => text.toLowerCase().includes(filter));
}
