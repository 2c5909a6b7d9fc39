/** The ports of a running capsule, listed again every two seconds, each with its URL's actions. */
import { useState } from "preact/hooks";
import { type CapsuleInfo, hasCode, type PortInfo } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { CopyButton } from "../parts/copy-text.tsx";
import { Empty, LoadError, Skeleton } from "../parts/page.tsx";
import { useQuery, useRereading } from "../parts/query.ts";
import { actionsColumn, Table, wideOnly } from "../parts/table.tsx";
import { type Dashboard, useDashboard } from "../state/dashboard.ts";
import { type PortRow, portRows } from "../state/ports.ts";
import { messageOf } from "../state/toasts.ts";
import { PublicDialog, setPublic } from "./network-dialogs.tsx";

/** From one answer to the next request. */
const rereadMs = 2_000;

/** A sentence: the guest was made by a release that could not list them. */
async function listPorts({ client }: Dashboard, id: string): Promise<PortInfo[] | string> {
  try {
    return await client.capsule(id).ports();
  } catch (error) {
    if (hasCode(error, "conflict")) return messageOf(error);
    throw error;
  }
}

export function PortTable({ capsule }: { capsule: CapsuleInfo }) {
  const dashboard = useDashboard();
  const { id, network, portUrl } = capsule;
  const query = useQuery(() => listPorts(dashboard, id), [id]);
  useRereading(query, rereadMs);
  const [opening, setOpening] = useState<number>();
  const { value: listed, problem, reload } = query;
  if (problem !== undefined) return <LoadError problem={problem} onRetry={reload} />;
  if (listed === undefined) return <Skeleton rows={2} />;
  const isOld = typeof listed === "string";
  const rows = portRows(isOld ? [] : listed, new Set(network.publicPorts), portUrl);
  return (
    <>
      {isOld && <p class="notice">{listed}.</p>}
      {rows.length > 0 && (
        <Table caption="Ports" columns={["Port", "Program", wideOnly("Addresses"), actionsColumn]}>
          {rows.map((row) => (
            <Row key={row.port} id={id} row={row} onMakePublic={() => setOpening(row.port)} />
          ))}
        </Table>
      )}
      {rows.length === 0 && !isOld && (
        <Empty icon="globe" title="No server listens in this capsule">
          <p>A TCP port on which a program listens is shown here within seconds.</p>
        </Empty>
      )}
      {opening !== undefined && <PublicDialog id={id} port={opening} onClose={() => setOpening(undefined)} />}
    </>
  );
}

interface RowProps {
  id: string;
  row: PortRow;
  onMakePublic: () => void;
}

function Row({ id, row, onMakePublic }: RowProps) {
  const dashboard = useDashboard();
  const { port, programs, addresses, isPublic, url } = row;
  const link = async () => (isPublic ? url : (await dashboard.client.capsule(id).url(port)).url);
  const open = () => dashboard.attempt(async () => void window.open(await link(), "_blank", "noopener,noreferrer"));
  const makePrivate = () =>
    dashboard.attempt(async () => {
      await setPublic(dashboard, id, port, false);
      dashboard.toasts.done(`Port ${port} is private: its URL asks for a key or a link.`);
    });
  return (
    <tr>
      <th scope="row">
        <span class="mono">{port}</span>
        {isPublic && <span class="sub">public</span>}
      </th>
      <td class="breakable">
        {programs.length === 0 ? (
          <span class="muted">no program listens</span>
        ) : (
          <span class="mono two-lines">{programs.join(", ")}</span>
        )}
      </td>
      <td class="wide-only breakable mono">{addresses.join(", ")}</td>
      <td class="row-actions">
        <Button
          kind="quiet"
          icon="open"
          label={`Open port ${port}`}
          refused={programs.length === 0 ? `No program listens on port ${port}` : undefined}
          onPress={open}
        />
        <CopyButton text={link} label={`Copy link to port ${port}`} />
        {isPublic ? (
          <Button kind="quiet" icon="lock" label={`Make port ${port} private`} onPress={makePrivate} />
        ) : (
          <Button kind="quiet" icon="globe" label={`Make port ${port} public`} onPress={onMakePublic} />
        )}
      </td>
    </tr>
  );
}
