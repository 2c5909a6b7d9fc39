/** Built-in images and the team's snapshots. */
import { useState } from "preact/hooks";
import type { TemplateInfo } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { FormDialog } from "../parts/dialog.tsx";
import { Page, Skeleton } from "../parts/page.tsx";
import { actionsColumn, Table, wideOnly } from "../parts/table.tsx";
import { Time } from "../parts/time.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { count, cpus, memory, size } from "../state/format.ts";
import { CreateDialog } from "./create-dialog.tsx";

export function TemplatesPage() {
  const { templates } = useDashboard();
  const [starting, setStarting] = useState<string>();
  const [deleting, setDeleting] = useState<TemplateInfo>();
  const all = templates.value;
  const hasSnapshots = all?.some(({ type }) => type === "snapshot") ?? true;
  return (
    <Page title="Templates" lead={<p>What capsules start from</p>}>
      {all === undefined ? (
        <Skeleton rows={2} />
      ) : (
        <TemplateTable templates={all} onStart={setStarting} onDelete={setDeleting} />
      )}
      {!hasSnapshots && (
        <p class="notice">
          No snapshots yet. Set up a capsule, then choose Snapshot on its page: new capsules start from that state, with
          its programs already running.
        </p>
      )}
      {starting !== undefined && <CreateDialog template={starting} onClose={() => setStarting(undefined)} />}
      {deleting !== undefined && <DeleteDialog template={deleting} onClose={() => setDeleting(undefined)} />}
    </Page>
  );
}

interface TableProps {
  templates: readonly TemplateInfo[];
  onStart: (name: string) => void;
  onDelete: (template: TemplateInfo) => void;
}

function TemplateTable({ templates, onStart, onDelete }: TableProps) {
  const { store } = useDashboard();
  const uses = Map.groupBy(store.capsules.value ?? [], ({ template }) => template);
  return (
    <Table
      caption="Templates"
      columns={["Name", wideOnly("Size"), "On disk", "Used by", wideOnly("Created"), actionsColumn]}
    >
      {templates.map((template) => (
        <tr key={`${template.type}/${template.name}`}>
          <th scope="row">
            <span class="mono">{template.name}</span>
            <span class="sub">{template.type === "base" ? "built-in image" : "captured from a capsule"}</span>
          </th>
          <td class="wide-only">
            {template.vcpus === null || template.memoryMb === null ? (
              <span class="muted">any size</span>
            ) : (
              `${cpus(template.vcpus)}, ${memory(template.memoryMb)}`
            )}
          </td>
          <td>{size(template.sizeBytes)}</td>
          <td>{count(uses.get(template.name)?.length ?? 0, "capsule")}</td>
          <td class="wide-only">
            <Time at={template.createdAt} />
          </td>
          <td class="row-actions">
            <Button
              kind="quiet"
              icon="plus"
              label={`New capsule from ${template.name}`}
              onPress={() => onStart(template.name)}
            />
            <Button
              kind="quiet"
              icon="bin"
              label={`Delete ${template.name}`}
              refused={template.type === "base" ? "A built-in template cannot be deleted" : undefined}
              onPress={() => onDelete(template)}
            />
          </td>
        </tr>
      ))}
    </Table>
  );
}

function DeleteDialog({ template: { name, sizeBytes }, onClose }: { template: TemplateInfo; onClose: () => void }) {
  const dashboard = useDashboard();
  const remove = async () => {
    await dashboard.client.templates.remove(name);
    await dashboard.listTemplates();
    dashboard.toasts.done(`Template ${name} is deleted.`);
  };
  return (
    <FormDialog title={`Delete template ${name}?`} confirm="Delete" kind="danger" onConfirm={remove} onClose={onClose}>
      <ul>
        <li>Its files, {size(sizeBytes)}, are deleted. This cannot be undone.</li>
        <li>Running capsules that started from it are not affected.</li>
        <li>Paused capsules that started from it cannot be resumed any more.</li>
      </ul>
    </FormDialog>
  );
}
