/** The network of a capsule: the ports of its servers, and its policy. */
import { useState } from "preact/hooks";
import type { CapsuleInfo } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { useQuery } from "../parts/query.ts";
import { useDashboard } from "../state/dashboard.ts";
import { NetworkDialog } from "./network-dialogs.tsx";
import { egressWords } from "./network-fields.tsx";
import { PortTable } from "./port-table.tsx";
import { RequireRunning } from "./require-running.tsx";

export function NetworkTab({ capsule }: { capsule: CapsuleInfo }) {
  const [isEditing, setEditing] = useState(false);
  return (
    <>
      <h2>Ports</h2>
      <RequireRunning capsule={capsule} action="portList" render={() => <PortTable capsule={capsule} />} />
      <h2>Policy</h2>
      <Policy capsule={capsule} />
      <Button hint="Replaces it, in every status" onPress={() => setEditing(true)}>
        Edit network
      </Button>
      {isEditing && <NetworkDialog capsule={capsule} onClose={() => setEditing(false)} />}
    </>
  );
}

/** The policy as the service keeps it, and the part of it that holds. */
function Policy({ capsule }: { capsule: CapsuleInfo }) {
  const { client } = useDashboard();
  const { id, network } = capsule;
  const { value: state, problem } = useQuery(() => client.capsule(id).network(), [id, JSON.stringify(network)]);
  const { egress, allow, deny, publicPorts, hostHeader } = network;
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
      <dt>In effect</dt>
      <dd>
        {problem ??
          (state === undefined
            ? "…"
            : state.effective.egress === "none"
              ? "In this version nothing goes out of the capsule, whatever stands above."
              : egressWords[state.effective.egress])}
      </dd>
    </dl>
  );
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
