/** The team's API keys: create (shown once), list, revoke; apart from them the sign-ins by links, which are keys too. */
import { useState } from "preact/hooks";
import type { KeyInfo } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { CopyButton } from "../parts/copy-text.tsx";
import { Dialog, FormDialog } from "../parts/dialog.tsx";
import { LoadError, Page, Skeleton } from "../parts/page.tsx";
import { useQuery } from "../parts/query.ts";
import { actionsColumn, Table, wideOnly } from "../parts/table.tsx";
import { TextField } from "../parts/text-field.tsx";
import { Time, Until } from "../parts/time.tsx";
import { useDashboard } from "../state/dashboard.ts";

export function KeysPage() {
  const { client } = useDashboard();
  const { value: keys, problem, reload } = useQuery(() => client.keys.list(), []);
  const [isCreating, setCreating] = useState(false);
  const [created, setCreated] = useState<string>();
  const [revoking, setRevoking] = useState<KeyInfo>();
  return (
    <Page
      title="API keys"
      lead={<p>A key gives full access to this team</p>}
      actions={
        <Button kind="primary" icon="plus" onPress={() => setCreating(true)}>
          New key
        </Button>
      }
    >
      {problem !== undefined ? (
        <LoadError problem={problem} onRetry={reload} />
      ) : keys === undefined ? (
        <Skeleton rows={2} />
      ) : (
        <>
          <KeyTable keys={keys.filter((key) => !isSignIn(key))} onRevoke={setRevoking} />
          <h2>Sign-ins</h2>
          <SignInTable keys={keys} onRevoke={setRevoking} />
        </>
      )}
      {isCreating && (
        <CreateDialog
          onCreated={(key) => {
            setCreated(key);
            reload();
          }}
          onClose={() => setCreating(false)}
        />
      )}
      {created !== undefined && !isCreating && <CreatedDialog text={created} onClose={() => setCreated(undefined)} />}
      {revoking !== undefined && (
        <RevokeDialog apiKey={revoking} onRevoked={reload} onClose={() => setRevoking(undefined)} />
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

/** The key that a browser gets for a one-time link. */
function isSignIn({ name, expiresAt, madeBy }: KeyInfo): boolean {
  return name === "dashboard" && expiresAt !== null && madeBy !== null;
}

function SignInTable({ keys, onRevoke }: { keys: readonly KeyInfo[]; onRevoke: (key: KeyInfo) => void }) {
  const signIns = keys.filter(isSignIn);
  if (signIns.length === 0) return <p class="muted">No browser is signed in by a link.</p>;
  const nameOf = (id: string | null | undefined) => keys.find((key) => key.id === id)?.name || id || "unknown";
  return (
    <Table
      caption="Sign-ins"
      columns={["Signed in", "Last used", wideOnly("By a link of"), wideOnly("Ends"), actionsColumn]}
    >
      {signIns.map((key) => (
        <tr key={key.id}>
          <th scope="row">
            <Time at={key.createdAt} />
            {key.current && <span class="sub">this session</span>}
          </th>
          <td>
            <Time at={key.lastUsedAt} />
          </td>
          <td class="wide-only breakable">{nameOf(key.madeBy)}</td>
          <td class="wide-only">
            <Until at={key.expiresAt} none="never" />
          </td>
          <td class="row-actions">
            <Button kind="quiet" icon="exit" label={`Sign out ${key.id}`} onPress={() => onRevoke(key)} />
          </td>
        </tr>
      ))}
    </Table>
  );
}

function CreateDialog({ onCreated, onClose }: { onCreated: (key: string) => void; onClose: () => void }) {
  const { client } = useDashboard();
  const [name, setName] = useState("");
  const create = async () => onCreated((await client.keys.create(name.trim())).key);
  return (
    <FormDialog title="New API key" confirm="Create key" onConfirm={create} onClose={onClose}>
      <TextField
        label="Name"
        hint="What the key is for."
        isRequired
        maxLength={100}
        placeholder="build server"
        text={name}
        onChange={setName}
      />
    </FormDialog>
  );
}

function CreatedDialog({ text, onClose }: { text: string; onClose: () => void }) {
  const command = `curl -H "X-API-Key: ${text}" ${location.origin}/v1/capsules`;
  return (
    <Dialog title="Your new key" first=".secret button" onClose={onClose}>
      <div class="dialog-body">
        <p>Copy it now: only its hash is stored, so it cannot be shown again.</p>
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
          Done
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

function RevokeDialog({ apiKey, onRevoked, onClose }: RevokeProps) {
  const { id, name, current } = apiKey;
  const dashboard = useDashboard();
  const revoke = async () => {
    await dashboard.client.keys.revoke(id);
    if (current) return dashboard.signOut();
    dashboard.toasts.done(isSignIn(apiKey) ? "That browser is signed out." : `Key ${name || id} is revoked.`);
    onRevoked();
  };
  const [title, confirm] = isSignIn(apiKey)
    ? ["Sign out this browser?", "Sign out"]
    : [`Revoke ${name || id}?`, "Revoke"];
  return (
    <FormDialog title={title} confirm={confirm} kind="danger" onConfirm={revoke} onClose={onClose}>
      <ul>
        <li>Every request with it is refused from now on, and its open connections are closed.</li>
        <li>All keys made with it are revoked too, and browsers signed in by its links are signed out.</li>
        {current && <li>You are signed in with this key: you will be signed out.</li>}
        <li>Capsules are not affected.</li>
      </ul>
    </FormDialog>
  );
}
