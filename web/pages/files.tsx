/** The files inside a capsule: walk, look, upload by button or drop, download, make and delete. */
import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import type { FileEntry } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { FormDialog } from "../parts/dialog.tsx";
import { Field } from "../parts/field.tsx";
import { Empty, Skeleton, Unreadable } from "../parts/page.tsx";
import { useReading } from "../parts/reading.ts";
import { useDashboard } from "../state/dashboard.ts";
import { crumbs, join, sorted } from "../state/guest-paths.ts";
import { count } from "../state/words.ts";
import { FileTable } from "./file-table.tsx";
import { FileView } from "./file-view.tsx";
import { saveAs } from "./save-as.ts";

const home = "/root";
const shownMax = 1_000;
/** Where this tab was in each capsule, until the page is reloaded. */
const places = new Map<string, string>();

export function FilesTab({ id }: { id: string }) {
  const { service, toasts, attempt } = useFiles();
  const [path, setPath] = useState(places.get(id) ?? home);
  const [filter, setFilter] = useState("");
  const [viewed, setViewed] = useState<FileEntry>();
  const [deleted, setDeleted] = useState<FileEntry>();
  const [isMaking, setMaking] = useState(false);
  const [uploading, setUploading] = useState<string>();
  const { value: entries, problem, again } = useReading(() => service.files(id, path), [id, path]);
  const follow = (link: FileEntry) =>
    void attempt(async () => {
      if (await service.isFolder(id, link.path)) walk(link.path);
      else setViewed(link);
    });
  const walk = (to: string) => {
    places.set(id, to);
    setFilter("");
    setPath(to);
  };
  const upload = async (files: readonly File[]) => {
    for (const file of files) {
      setUploading(file.name);
      const isDone = await attempt(() => service.writeFile(id, join(path, file.name), file));
      if (isDone) toasts.done(`${file.name} is uploaded to ${path}.`);
    }
    setUploading(undefined);
    again();
  };
  const download = (entry: FileEntry) =>
    void attempt(async () => saveAs(entry.name, await service.readFile(id, entry.path)));
  const fitting = entries && sorted(entries).filter(({ name }) => name.toLowerCase().includes(filter.toLowerCase()));
  return (
    <DropZone onDrop={upload}>
      <div class="toolbar">
        <Crumbs path={path} onWalk={walk} />
        <div class="actions">
          <UploadButton uploading={uploading} onChoose={upload} />
          <Button icon="folder" onPress={() => setMaking(true)}>
            New folder
          </Button>
          <Button kind="quiet" icon="refresh" label="Read the folder again" onPress={again} />
        </div>
      </div>
      {problem !== undefined ? (
        <Unreadable problem={problem} onRetry={again} />
      ) : fitting === undefined ? (
        <Skeleton />
      ) : entries?.length === 0 ? (
        <Empty icon="folder" title="This folder is empty">
          <p>Drop files here, or choose Upload.</p>
        </Empty>
      ) : (
        <>
          <input
            class="filter"
            type="search"
            aria-label="Filter this folder"
            placeholder="Filter this folder"
            value={filter}
            onInput={(event) => setFilter(event.currentTarget.value)}
          />
          <FileTable
            entries={fitting.slice(0, shownMax)}
            onWalk={walk}
            onView={setViewed}
            onFollow={follow}
            onDownload={download}
            onDelete={setDeleted}
          />
        </>
      )}
      {fitting !== undefined && fitting.length > shownMax && (
        <p class="muted">
          … and {count(fitting.length - shownMax, "more entry", "more entries")}. The filter finds them.
        </p>
      )}
      {viewed && <FileView id={id} entry={viewed} onDownload={download} onClose={() => setViewed(undefined)} />}
      {isMaking && <MakeDialog id={id} path={path} onMade={again} onClose={() => setMaking(false)} />}
      {deleted && <DeleteDialog id={id} entry={deleted} onDeleted={again} onClose={() => setDeleted(undefined)} />}
    </DropZone>
  );
}

function useFiles() {
  const dashboard = useDashboard();
  const { service, toasts } = dashboard;
  return { service, toasts, attempt: (work: () => Promise<unknown>) => dashboard.attempt(work) };
}

function Crumbs({ path, onWalk }: { path: string; onWalk: (path: string) => void }) {
  return (
    <nav class="crumbs" aria-label="Path">
      <ol>
        {crumbs(path).map(({ name, path: to }) => (
          <li key={to}>
            <button type="button" aria-current={to === path ? "location" : undefined} onClick={() => onWalk(to)}>
              {name}
            </button>
          </li>
        ))}
      </ol>
    </nav>
  );
}

interface UploadProps {
  uploading: string | undefined;
  onChoose: (files: readonly File[]) => void;
}

function UploadButton({ uploading, onChoose }: UploadProps) {
  const input = useRef<HTMLInputElement>(null);
  return (
    <>
      <Button icon="upload" isBusy={uploading !== undefined} onPress={() => input.current?.click()}>
        {uploading === undefined ? "Upload" : `Uploading ${uploading}`}
      </Button>
      <input
        ref={input}
        type="file"
        multiple
        hidden
        aria-label="Files to upload"
        onChange={(event) => {
          onChoose([...(event.currentTarget.files ?? [])]);
          event.currentTarget.value = "";
        }}
      />
    </>
  );
}

function DropZone({ children, onDrop }: { children: ComponentChildren; onDrop: (files: File[]) => void }) {
  const [depth, setDepth] = useState(0);
  const carriesFiles = (event: DragEvent) => event.dataTransfer?.types.includes("Files") ?? false;
  const drop = (event: DragEvent) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    setDepth(0);
    onDrop([...(event.dataTransfer?.files ?? [])]);
  };
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: the Upload button is the same for the keyboard
    <div
      class={depth > 0 ? "drop-zone hovered" : "drop-zone"}
      onDragEnter={(event) => carriesFiles(event) && setDepth((before) => before + 1)}
      onDragLeave={(event) => carriesFiles(event) && setDepth((before) => before - 1)}
      onDragOver={(event) => carriesFiles(event) && event.preventDefault()}
      onDrop={drop}
    >
      {children}
    </div>
  );
}

interface MakeProps {
  id: string;
  path: string;
  onMade: () => void;
  onClose: () => void;
}

function MakeDialog({ id, path, onMade, onClose }: MakeProps) {
  const { service } = useDashboard();
  const [name, setName] = useState("");
  const make = async () => {
    await service.makeDirectory(id, join(path, name));
    onMade();
  };
  return (
    <FormDialog title="New folder" confirm="Make folder" onConfirm={make} onClose={onClose}>
      <Field label="Name" hint={`In ${path}. With slashes, the folders on the way are made too.`}>
        {(ties) => (
          <input
            {...ties}
            required
            value={name}
            autocomplete="off"
            spellcheck={false}
            onInput={(event) => setName(event.currentTarget.value)}
          />
        )}
      </Field>
    </FormDialog>
  );
}

interface DeleteProps {
  id: string;
  entry: FileEntry;
  onDeleted: () => void;
  onClose: () => void;
}

function DeleteDialog({ id, entry, onDeleted, onClose }: DeleteProps) {
  const { service, toasts } = useDashboard();
  const remove = async () => {
    await service.removeFile(id, entry.path);
    toasts.done(`${entry.name} is deleted.`);
    onDeleted();
  };
  const fates: Record<FileEntry["type"], string> = {
    file: "The file is deleted. This cannot be undone.",
    directory: "The folder and everything in it are deleted. This cannot be undone.",
    symlink: "The link is deleted; what it points to stays.",
  };
  return (
    <FormDialog title={`Delete ${entry.name}?`} confirm="Delete" kind="danger" onConfirm={remove} onClose={onClose}>
      <p class="mono breakable">{entry.path}</p>
      <p>{fates[entry.type]}</p>
    </FormDialog>
  );
}
