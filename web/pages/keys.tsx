/** The team's API keys: made here, shown once, revoked here. */
import { useState } from "preact/hooks";
import type { KeyInfo } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { CopyButton } from "../parts/copy-text.tsx";
import { Dialog, FormDialog } from "../parts/dialog.tsx";
import { Field } from "../parts/field.tsx";
import { Page, Skeleton, Unreadable } from "../parts/page.tsx";
import { useReading } from "../parts/reading.ts";
import { actionsColumn, Table, wideOnly } from "../parts/table.tsx";
import { Time, Until } from "../parts/time.tsx";
import { useDashboard } from "../state/dashboard.ts";

export function KeysPage() {
  const { service } = useDashboard();
  const { value: keys, problem, again } = useReading(() => service.keys(), []);
  const [isCreating, setCreating] = useState(false);
  const [created, setCreated] = useState<string>();
  const [revoking, setRevoking] = useState<KeyInfo>();
  return (
    <Page
      title="API keys"
      lead={<p>Whoever holds one can do everything in this team</p>}
      actions={
        <Button kind="primary" icon="plus" onPress={() => setCreating(true)}>
          New key
        </Button>
      }
    >
      {problem !== undefined ? (
        <Unreadable problem={problem} onRetry={again} />
      ) : keys === undefined ? (
        <Skeleton rows={2} />
      ) : (
        <KeyTable keys={keys} onRevoke={setRevoking} />
      )}
      {isCreating && (
        <CreateDialog
          onCreated={(key) => {
            setCreated(key);
            again();
          }}
          onClose={() => setCreating(false)}
        />
      )}
      {created !== undefined && !isCreating && <CreatedDialog text={created} onClose={() => setCreated(undefined)} />}
      {revoking !== undefined && (
        <RevokeDialog apiKey={revoking} onRevoked={again} onClose={() => setRevoking(undefined)} />
      )}
    </Page>
  );
}

function KeyTable({ keys, onRevoke }: { keys: readonly KeyInfo[]; onRevoke: (key: KeyInfo) => void }) {
  return (
    <Table
      caption="API keys"
      columns={["Name", wideOnly("Begins with"), "Last used", wideOnly("Created"), wideOnly("Expires"), actionsColumn]}
    >
      {keys.map((key) => (
        <tr key={key.id}>
          <th scope="row">
            {key.name || <span class="muted">unnamed</span>}
            {key.current && <span class="sub">this session</span>}
          </th>
          <td class="wide-only mono">{key.prefix === null ? <span class="muted">unknown</span> : `${key.prefix}…`}</td>
          <td>
            <Time at={key.lastUsedAt} />
          </td>
          <td class="wide-only">
            <Time at={key.createdAt} />
          </td>
          <td class="wide-only">
            <Until at={key.expiresAt} none="never" />
          </td>
          <td class="row-actions">
            <Button kind="quiet" icon="bin" label={`Revoke ${key.name || key.id}`} onPress={() => onRevoke(key)} />
          </td>
        </tr>
      ))}
    </Table>
  );
}

function CreateDialog({ onCreated, onClose }: { onCreated: (key: string) => void; onClose: () => void }) {
  const { service } = useDashboard();
  const [name, setName] = useState("");
  const create = async () => onCreated((await service.createKey(name.trim())).key);
  return (
    <FormDialog title="New API key" confirm="Create key" onConfirm={create} onClose={onClose}>
      <Field label="Name" hint="What it is for, so that you know later which one to revoke.">
        {(ties) => (
          <input
            {...ties}
            required
            maxLength={100}
            value={name}
            autocomplete="off"
            placeholder="build server"
            onInput={(event) => setName(event.currentTarget.value)}
          />
        )}
      </Field>
    </FormDialog>
  );
}

function CreatedDialog({ text, onClose }: { text: string; onClose: () => void }) {
  const command = `curl -H "X-API-Key: ${text}" ${location.origin}/v1/capsules`;
  return (
    <Dialog title="Your new key" onClose={onClose}>
      <div class="dialog-body">
        <p>Copy it now: it is not shown again, and only its hash is kept.</p>
        <p class="secret">
          <code id="new-key">{text}</code>
          <CopyButton text={text} label="Copy the key" />
        </p>
        <p>Try it:</p>
        <p class="secret">
          <code>{command}</code>
          <CopyButton text={command} label="Copy the command" />
        </p>
      </div>
      <footer>
        <Button kind="primary" onPress={onClose}>
          I have kept it
        </Button>
      </footer>
    </Dialog>
  );
}

interface RevokeProps {
  apiKey: KeyInfo;
  onRevoked: () => void;
  onClose: () => void;
}

function RevokeDialog({ apiKey: { id, name, current }, onRevoked, onClose }: RevokeProps) {
  const dashboard = useDashboard();
  const revoke = async () => {
    await dashboard.service.revokeKey(id);
    if (current) return dashboard.signOut();
    dashboard.toasts.done(`Key ${name || id} is revoked.`);
    onRevoked();
  };
  return (
    <FormDialog title={`Revoke ${name || id}?`} confirm="Revoke" kind="danger" onConfirm={revoke} onClose={onClose}>
      <ul>
        <li>Every request with it is refused from now on, and its open connections are closed.</li>
        {current && <li>It is the key you are signed in with: you will be signed out.</li>}
        <li>Capsules are not touched.</li>
      </ul>
    </FormDialog>
  );
}
