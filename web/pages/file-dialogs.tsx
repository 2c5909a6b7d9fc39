/** Dialogs of the file browser: create a folder, rename and delete an entry. */
import { useState } from "preact/hooks";
import type { FileEntry } from "../../src/sdk/sdk.ts";
import { FormDialog } from "../parts/dialog.tsx";
import { TextField } from "../parts/text-field.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { join } from "../state/guest-files.ts";

interface NewFolderProps {
  id: string;
  path: string;
  onMade: () => void;
  onClose: () => void;
}

export function NewFolderDialog({ id, path, onMade, onClose }: NewFolderProps) {
  const { client } = useDashboard();
  const [name, setName] = useState("");
  const create = async () => {
    await client.capsule(id).files.mkdir(join(path, name));
    onMade();
  };
  return (
    <FormDialog title="New folder" confirm="Create folder" onConfirm={create} onClose={onClose}>
      <TextField
        label="Name"
        hint={`In ${path}. Missing folders of a path with slashes are created too.`}
        isRequired
        text={name}
        onChange={setName}
      />
    </FormDialog>
  );
}

interface RenameProps {
  id: string;
  entry: FileEntry;
  onRenamed: () => void;
  onClose: () => void;
}

/** Replaces nothing: the service refuses a name that is taken. */
export function RenameDialog({ id, entry, onRenamed, onClose }: RenameProps) {
  const { client } = useDashboard();
  const [name, setName] = useState(entry.name);
  const folder = entry.path.slice(0, entry.path.lastIndexOf("/")) || "/";
  const rename = async () => {
    await client.capsule(id).files.move(entry.path, join(folder, name));
    onRenamed();
  };
  return (
    <FormDialog title={`Rename ${entry.name}`} confirm="Rename" onConfirm={rename} onClose={onClose}>
      <TextField
        label="New name"
        hint={`In ${folder}. A path that begins with a slash moves it there.`}
        isRequired
        text={name}
        onChange={setName}
      />
    </FormDialog>
  );
}

interface DeleteFileProps {
  id: string;
  entry: FileEntry;
  onDeleted: () => void;
  onClose: () => void;
}

export function DeleteFileDialog({ id, entry, onDeleted, onClose }: DeleteFileProps) {
  const { client, toasts } = useDashboard();
  const remove = async () => {
    await client.capsule(id).files.remove(entry.path);
    toasts.done(`${entry.name} is deleted.`);
    onDeleted();
  };
  const consequences: Record<FileEntry["type"], string> = {
    file: "The file is deleted. This cannot be undone.",
    directory: "The folder and everything in it are deleted. This cannot be undone.",
    symlink: "The link is deleted; its target stays.",
  };
  return (
    <FormDialog title={`Delete ${entry.name}?`} confirm="Delete" kind="danger" onConfirm={remove} onClose={onClose}>
      <p class="mono breakable">{entry.path}</p>
      <p>{consequences[entry.type]}</p>
    </FormDialog>
  );
}
