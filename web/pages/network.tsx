/** The network of a capsule: the ports of its servers, its policy, and its last connections. */
import { useState } from "preact/hooks";
import type { CapsuleInfo, NetworkState } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { Skeleton } from "../parts/page.tsx";
import { useQuery, useRereading } from "../parts/query.ts";
import { useDashboard } from "../state/dashboard.ts";
import { size } from "../state/format.ts";
import { ConnectionTable } from "./connection-table.tsx";
import { NetworkDialog } from "./network-dialogs.tsx";
import { egressWords } from "./network-fields.tsx";
import { PortTable } from "./port-table.tsx";
import { RequireRunning } from "./require-running.tsx";

/** From one answer to the next request. */
const rereadMs = 2_000;

export function NetworkTab({ capsule }: { capsule: CapsuleInfo }) {
  const [isEditing, setEditing] = useState(false);
  const { client } = useDashboard();
  const { id, network, status } = capsule;
  const query = useQuery(() => client.capsule(id).network(), [id, status, JSON.stringify(network)]);
  useRereading(query, rereadMs);
  const { value: state, problem } = query;
  return (
    <>
      <h2>Ports</h2>
      <RequireRunning capsule={capsule} action="portList" render={() => <PortTable capsule={capsule} />} />
      <h2>Policy</h2>
      <Policy capsule={capsule} state={state} problem={problem} />
      <Button hint="Replaces it, in every status" onPress={() => setEditing(true)}>
        Edit network
      </Button>
      <h2>Connections</h2>
      {state === undefined ? <Skeleton rows={2} /> : <ConnectionTable capsule={capsule} state={state} />}
      {isEditing && <NetworkDialog capsule={capsule} onClose={() => setEditing(false)} />}
    </>
  );
}

interface PolicyProps {
  capsule: CapsuleInfo;
  /** Undefined: not known yet. */
  state: NetworkState | undefined;
  problem: string | undefined;
}

/** The policy as the service keeps it, the part of it that holds, and what it has let through. */
function Policy({ capsule: { network }, state, problem }: PolicyProps) {
  const { egress, allow, deny, publicPorts, hostHeader, inject } = network;
  return (
    <dl class="panel details">
      <dt>Reaches</dt>
      <dd>
        {egressWords[egress]} <span class="muted">({egress})</span>
      </dd>
      <Entries name="Allowed" entries={allow} />
      <Entries name="Denied" entries={deny} />
      <dt>Public ports</dt>
      <dd>{publicPorts.length === 0 ? <span class="muted">none</span> : publicPorts.join(", ")}</dd>
      <dt>Host header</dt>
      <dd class={hostHeader === null ? undefined : "mono"}>{hostHeader ?? <span class="muted">the client's</span>}</dd>
      <dt>Injected headers</dt>
      {inject.length === 0 && <dd class="muted">none</dd>}
      {inject.map(({ host, headers }) => (
        <dd key={host}>
          <span class="mono">{host}</span> <span class="muted">{injectedWords(headers)}</span>
        </dd>
      ))}
      <dt>In effect</dt>
      <dd>{problem ?? (state === undefined ? "…" : effectWords(state))}</dd>
      <dt>So far</dt>
      <dd>{state === undefined ? "…" : counterWords(state)}</dd>
    </dl>
  );
}

function injectedWords(headers: Record<string, null>): string {
  const names = Object.keys(headers);
  return names.length === 0 ? "by HTTPS" : names.map((name) => `${name} set`).join(", ");
}

function effectWords({ effective, unsupported }: NetworkState): string {
  if (unsupported)
    return "Nothing goes out: this capsule was made before there was a network. Stop and start it, or make its template anew.";
  return egressWords[effective.egress];
}

function counterWords({ counters }: NetworkState): string {
  const { connectionsOpen, connectionsTotal, deniedTotal, bytesOut, bytesIn } = counters;
  const moved = `${size(bytesOut)} out, ${size(bytesIn)} in`;
  return `${connectionsTotal} connections, ${connectionsOpen} of them open, ${deniedTotal} denied; ${moved}`;
}

function Entries({ name, entries }: { name: string; entries: readonly string[] }) {
  return (
    <>
      <dt>{name}</dt>
      {entries.length === 0 ? (
        <dd class="muted">none</dd>
      ) : (
        entries.map((entry, at) => (
          <dd class="mono" key={at}>
            {entry}
          </dd>
        ))
      )}
    </>
  );
}
