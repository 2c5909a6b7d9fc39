/** The list of the team's capsules, updated live. */
import { useState } from "preact/hooks";
import type { CapsuleInfo, CapsuleStatus } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { Empty, Page, Skeleton } from "../parts/page.tsx";
import { StatusBadge, statusStyles } from "../parts/status-badge.tsx";
import { actionsColumn, Table, wideOnly } from "../parts/table.tsx";
import { Time } from "../parts/time.tsx";
import { inOrder, type Order, orderNames } from "../state/capsule-orders.ts";
import { useDashboard } from "../state/dashboard.ts";
import { count, cpus, duration, memory } from "../state/format.ts";
import { hrefOf } from "../state/route.ts";
import { CapsuleActions } from "./capsule-actions.tsx";
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
          <code class="block">./capsule create</code>
        </Empty>
      ) : fitting.length === 0 ? (
        <Empty icon="box" title="No capsule matches the filter">
          <Button onPress={() => setFilter("")}>Show all capsules</Button>
        </Empty>
      ) : (
        <CapsuleTable capsules={inOrder(fitting, order).slice(0, shownMax)} order={order} />
      )}
      {fitting !== undefined && fitting.length > shownMax && (
        <p class="muted">{count(fitting.length - shownMax, "more capsule")} not shown. Use the filter to find them.</p>
      )}
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

function CapsuleTable({ capsules, order }: { capsules: readonly CapsuleInfo[]; order: Order }) {
  return (
    <Table
      caption={`Capsules: ${order.toLowerCase()}`}
      columns={["Capsule", "Status", wideOnly("Size"), wideOnly("When idle"), wideOnly("Created"), actionsColumn]}
    >
      {capsules.map((capsule) => (
        <CapsuleRow key={capsule.id} capsule={capsule} />
      ))}
    </Table>
  );
}

function CapsuleRow({ capsule }: { capsule: CapsuleInfo }) {
  const { store } = useDashboard();
  const { id, name, status, template, vcpus, memoryMb, timeoutSec, onTimeout, createdAt } = capsule;
  return (
    <tr>
      <th scope="row">
        <a class="mono" href={hrefOf({ page: "capsule", id, tab: "terminal" })}>
          {name ?? id}
        </a>
        {name !== null && <span class="sub mono">{id}</span>}
        <span class="sub">from {template}</span>
      </th>
      <td>
        <StatusBadge status={status} operation={store.operations.value.get(id)} />
      </td>
      <td class="wide-only">
        {cpus(vcpus)}, {memory(memoryMb)}
      </td>
      <td class="wide-only">
        {timeoutSec === 0 ? <span class="muted">runs on</span> : `${onTimeout} after ${duration(timeoutSec)}`}
      </td>
      <td class="wide-only">
        <Time at={createdAt} />
      </td>
      <td class="row-actions">
        <CapsuleActions capsule={capsule} isBrief />
      </td>
    </tr>
  );
}
