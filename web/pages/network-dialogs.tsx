/** The dialogs that replace a capsule's network: one for all of it, and one that makes a port public. */
import { useState } from "preact/hooks";
import type { CapsuleInfo, NetworkOptions } from "../../src/sdk/sdk.ts";
import { FormDialog } from "../parts/dialog.tsx";
import { TextField } from "../parts/text-field.tsx";
import { type Dashboard, useDashboard } from "../state/dashboard.ts";
import { linesIn, portsIn } from "../state/ports.ts";
import { EgressField, networkPaths, PublicPortsField } from "./network-fields.tsx";

/** The change is shown once this resolves, also without events. */
async function replaceNetwork({ client, store }: Dashboard, id: string, network: NetworkOptions): Promise<void> {
  const capsule = client.capsule(id);
  await capsule.setNetwork(network);
  store.changed((await capsule.refresh()).info);
}

/** All other fields, and other public ports, stay as they are on the service now. */
export async function setPublic(dashboard: Dashboard, id: string, port: number, isPublic: boolean): Promise<void> {
  const { egress, allow, deny, publicPorts, hostHeader, inject } = await dashboard.client.capsule(id).network();
  const others = publicPorts.filter((each) => each !== port);
  const changed = isPublic ? [...others, port] : others;
  await replaceNetwork(dashboard, id, { egress, allow, deny, publicPorts: changed, hostHeader, inject });
}

/** Adds an entry to `allow`, and nothing else. Where the policy let nothing out, it lets out what `allow` names. */
export async function allowEntry(dashboard: Dashboard, id: string, entry: string): Promise<void> {
  const { egress, allow, deny, publicPorts, hostHeader, inject } = await dashboard.client.capsule(id).network();
  const entries = allow.includes(entry) ? allow : [...allow, entry];
  const opened = egress === "none" ? "allowlist" : egress;
  await replaceNetwork(dashboard, id, { egress: opened, allow: entries, deny, publicPorts, hostHeader, inject });
}

interface PublicDialogProps {
  id: string;
  port: number;
  onClose: () => void;
}

/** The kind is "danger": an Enter alone opens no port to everybody. */
export function PublicDialog({ id, port, onClose }: PublicDialogProps) {
  const dashboard = useDashboard();
  const make = async () => {
    await setPublic(dashboard, id, port, true);
    dashboard.toasts.done(`Port ${port} is public.`);
  };
  return (
    <FormDialog
      title={`Make port ${port} public?`}
      confirm="Make it public"
      kind="danger"
      onConfirm={make}
      onClose={onClose}
    >
      <p>
        Anybody who has the URL of port {port} may then reach it, without a key or a link. Such requests may wake the
        capsule, if it resumes by itself.
      </p>
    </FormDialog>
  );
}

export function NetworkDialog({ capsule, onClose }: { capsule: CapsuleInfo; onClose: () => void }) {
  const dashboard = useDashboard();
  const { network } = capsule;
  const [egress, setEgress] = useState(network.egress);
  const [allow, setAllow] = useState(network.allow.join("\n"));
  const [deny, setDeny] = useState(network.deny.join("\n"));
  const [ports, setPorts] = useState(network.publicPorts.join(", "));
  const [host, setHost] = useState(network.hostHeader ?? "");
  const save = () =>
    replaceNetwork(dashboard, capsule.id, {
      egress,
      allow: linesIn(allow),
      deny: linesIn(deny),
      publicPorts: portsIn(ports),
      hostHeader: host.trim() === "" ? null : host.trim(),
      inject: network.inject, // with null for each value, which then stays
    });
  return (
    <FormDialog title="Network" confirm="Save" paths={networkPaths} onConfirm={save} onClose={onClose}>
      <EgressField chosen={egress} onChange={(chosen) => chosen !== "" && setEgress(chosen)} />
      <TextField
        label="Allowed"
        path="network.allow"
        hint="Domains, *. and a domain, IPv4 addresses and ranges, a line for each; with :port or without."
        rows={3}
        text={allow}
        onChange={setAllow}
      />
      <TextField
        label="Denied"
        path="network.deny"
        hint="IPv4 addresses and ranges, a line for each. They go before what is allowed."
        rows={3}
        text={deny}
        onChange={setDeny}
      />
      <PublicPortsField text={ports} onChange={setPorts} />
      <TextField
        label="Host header"
        path="network.host_header"
        hint="What servers in the capsule see, such as localhost:{port}. Empty: the client's."
        text={host}
        onChange={setHost}
      />
    </FormDialog>
  );
}
