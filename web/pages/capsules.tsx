/** All capsules of the team, as they are now. */
import { useState } from "preact/hooks";
import type { CapsuleInfo, CapsuleStatus } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { Empty, Page, Skeleton } from "../parts/page.tsx";
import { looks, StatusBadge } from "../parts/status-badge.tsx";
import { actionsColumn, Table, wideOnly } from "../parts/table.tsx";
import { Time } from "../parts/time.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { hrefOf } from "../state/route.ts";
import { count, cpus, duration, memory } from "../state/words.ts";
import { CapsuleActions } from "./capsule-actions.tsx";
import { CreateDialog } from "./create-dialog.tsx";

/** Beyond it the page would stutter; the filter finds the rest. */
const shownMax = 500;

export function CapsulesPage() {
  const { fleet } = useDashboard();
  const [filter, setFilter] = useState("");
  const [isCreating, setCreating] = useState(false);
  const capsules = fleet.capsules.value;
  const fitting = capsules?.filter((capsule) => fits(capsule, filter.trim().toLowerCase()));
  return (
    <Page
      title="Capsules"
      lead={capsules && <Summary capsules={capsules} />}
      actions={
        <Button kind="primary" icon="plus" onPress={() => setCreating(true)}>
          New capsule
        </Button>
      }
    >
      {capsules !== undefined && capsules.length > 0 && (
        <input
          class="filter"
          type="search"
          aria-label="Filter capsules"
          placeholder="Filter by id, status or template"
          value={filter}
          onInput={(event) => setFilter(event.currentTarget.value)}
        />
      )}
      {fitting === undefined ? (
        <Skeleton />
      ) : capsules?.length === 0 ? (
        <Empty icon="box" title="No capsules yet">
          <p>
            A capsule is a small virtual machine of its own, up in a moment. Make the first one here, or from a shell:
          </p>
          <code class="block">./capsule create</code>
        </Empty>
      ) : fitting.length === 0 ? (
        <Empty icon="box" title="Nothing fits the filter">
          <Button onPress={() => setFilter("")}>Show all capsules</Button>
        </Empty>
      ) : (
        <CapsuleTable capsules={fitting.slice(0, shownMax)} />
      )}
      {fitting !== undefined && fitting.length > shownMax && (
        <p class="muted">… and {count(fitting.length - shownMax, "more capsule")}. The filter finds them.</p>
      )}
      {isCreating && <CreateDialog onClose={() => setCreating(false)} />}
    </Page>
  );
}

function Summary({ capsules }: { capsules: readonly CapsuleInfo[] }) {
  const counts = Map.groupBy(capsules, ({ status }) => status);
  const parts = (Object.keys(looks) as CapsuleStatus[]).flatMap((status) => {
    const number = counts.get(status)?.length;
    return number === undefined ? [] : `${number.toLocaleString("en")} ${status}`;
  });
  return <p>{parts.length === 0 ? "Small virtual machines, each on its own" : parts.join(" · ")}</p>;
}

function fits({ id, status, template }: CapsuleInfo, filter: string): boolean {
  return [id, status, template].some((text) => text.toLowerCase().includes(filter));
}

function CapsuleTable({ capsules }: { capsules: readonly CapsuleInfo[] }) {
  return (
    <Table
      caption="Capsules, newest first"
      columns={["Capsule", "Status", wideOnly("Size"), wideOnly("Auto-pause"), wideOnly("Created"), actionsColumn]}
    >
      {capsules.map((capsule) => (
        <CapsuleRow key={capsule.id} capsule={capsule} />
      ))}
    </Table>
  );
}

function CapsuleRow({ capsule }: { capsule: CapsuleInfo }) {
  const { fleet } = useDashboard();
  const { id, status, template, vcpus, memoryMb, timeoutSec, createdAt } = capsule;
  return (
    <tr>
      <th scope="row">
        <a class="mono" href={hrefOf({ page: "capsule", id, tab: "terminal" })}>
          {id}
        </a>
        <span class="sub">from {template}</span>
      </th>
      <td>
        <StatusBadge status={status} doing={fleet.doing.value.get(id)} />
      </td>
      <td class="wide-only">
        {cpus(vcpus)}, {memory(memoryMb)}
      </td>
      <td class="wide-only">{timeoutSec === 0 ? <span class="muted">off</span> : `after ${duration(timeoutSec)}`}</td>
      <td class="wide-only">
        <Time at={createdAt} />
      </td>
      <td class="row-actions">
        <CapsuleActions capsule={capsule} isBrief />
      </td>
    </tr>
  );
}
