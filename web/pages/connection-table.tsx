/** The last decisions about a capsule's connections, each denied one with a button that allows it. */
import type { CapsuleInfo, NetworkState } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { Empty } from "../parts/page.tsx";
import { actionsColumn, Table, wideOnly } from "../parts/table.tsx";
import { Time } from "../parts/time.tsx";
import { type ConnectionRow, connectionRows } from "../state/connections.ts";
import { useDashboard } from "../state/dashboard.ts";
import { allowEntry } from "./network-dialogs.tsx";

export function ConnectionTable({ capsule, state }: { capsule: CapsuleInfo; state: NetworkState }) {
  const rows = connectionRows(state.recent);
  if (rows.length === 0)
    return (
      <Empty icon="globe" title="No connections">
        <p>
          {capsule.status === "running"
            ? "What the capsule reaches, and what is denied to it, is shown here within seconds."
            : "What a running capsule reaches, and what is denied to it, is shown here."}
        </p>
      </Empty>
    );
  return (
    <Table caption="Connections" columns={["Destination", "Outcome", "Times", wideOnly("Last"), actionsColumn]}>
      {rows.map((row) => (
        <Row key={`${row.destination} ${row.address} ${row.verdict} ${row.reason}`} id={capsule.id} row={row} />
      ))}
    </Table>
  );
}

function Row({ id, row }: { id: string; row: ConnectionRow }) {
  const dashboard = useDashboard();
  const { destination, address, verdict, reason, count, at, entry } = row;
  const allow = (named: string) =>
    dashboard.attempt(async () => {
      await allowEntry(dashboard, id, named);
      dashboard.toasts.done(`${named} is allowed.`);
    });
  return (
    <tr>
      <th scope="row" class="breakable">
        <span class="mono">{destination}</span>
        {address !== undefined && <span class="sub">{address}</span>}
      </th>
      <td>
        {verdict}
        {reason !== "" && <span class="sub">{reason}</span>}
      </td>
      <td>{count}</td>
      <td class="wide-only">
        <Time at={at} />
      </td>
      <td class="row-actions">
        {entry !== undefined && (
          <Button kind="quiet" hint={`Adds ${entry} to what is allowed`} onPress={() => allow(entry)}>
            Allow
          </Button>
        )}
      </td>
    </tr>
  );
}
