/** The entries of one folder. Names come from the guest and are rendered as text only. */
import type { FileEntry } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { Icon, type IconName } from "../parts/icon.tsx";
import { actionsColumn, Table, wideOnly } from "../parts/table.tsx";
import { Time } from "../parts/time.tsx";
import { size } from "../state/format.ts";

export interface FileTableProps {
  entries: readonly FileEntry[];
  onWalk: (path: string) => void;
  onView: (entry: FileEntry) => void;
  /** For a symbolic link. */
  onFollow: (entry: FileEntry) => void;
  onDownload: (entry: FileEntry) => void;
  onRename: (entry: FileEntry) => void;
  onDelete: (entry: FileEntry) => void;
}

export function FileTable({ entries, ...handlers }: FileTableProps) {
  return (
    <Table
      caption="Entries of this folder"
      columns={["Name", "Size", wideOnly("Modified"), wideOnly("Permissions"), actionsColumn]}
    >
      {entries.map((entry) => (
        <FileRow key={entry.path} entry={entry} {...handlers} />
      ))}
    </Table>
  );
}

const icons: Record<FileEntry["type"], { name: IconName; label: string }> = {
  directory: { name: "folder", label: "folder" },
  file: { name: "file", label: "file" },
  symlink: { name: "link", label: "link" },
};

function FileRow({
  entry,
  onWalk,
  onView,
  onFollow,
  onDownload,
  onRename,
  onDelete,
}: { entry: FileEntry } & Omit<FileTableProps, "entries">) {
  const { name, path, type, size: bytes, permissions, owner, group, modifiedAt, symlinkTarget } = entry;
  const open = () => {
    if (type === "directory") onWalk(path);
    else if (type === "symlink") onFollow(entry);
    else onView(entry);
  };
  const isPlain = permissions.startsWith("-");
  return (
    <tr>
      <th scope="row">
        <button type="button" class="entry" onClick={open}>
          <Icon name={icons[type].name} />
          <span class="unseen">{icons[type].label} </span>
          <span class="breakable">{name}</span>
        </button>
        {symlinkTarget !== null && <span class="sub breakable">to {symlinkTarget}</span>}
      </th>
      <td>{type === "file" ? size(bytes) : ""}</td>
      <td class="wide-only">
        <Time at={new Date(modifiedAt * 1000).toISOString()} />
      </td>
      <td class="wide-only mono" title={`${owner}:${group}`}>
        {permissions}
      </td>
      <td class="row-actions">
        {type !== "symlink" && (
          <Button
            kind="quiet"
            icon="download"
            label={type === "directory" ? `Download ${name} as tar.gz` : `Download ${name}`}
            refused={isPlain || type === "directory" ? undefined : "Only regular files can be read"}
            onPress={() => onDownload(entry)}
          />
        )}
        <Button kind="quiet" icon="pencil" label={`Rename ${name}`} onPress={() => onRename(entry)} />
        <Button kind="quiet" icon="bin" label={`Delete ${name}`} onPress={() => onDelete(entry)} />
      </td>
    </tr>
  );
}
