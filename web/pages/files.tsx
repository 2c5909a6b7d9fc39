/** The file browser of a capsule: folders, view, upload by button or drop, download, create and delete. */
import { useState } from "preact/hooks";
import type { FileEntry } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { Empty, LoadError, Skeleton } from "../parts/page.tsx";
import { useQuery } from "../parts/query.ts";
import { useDashboard } from "../state/dashboard.ts";
import { count } from "../state/format.ts";
import { breadcrumbs, isFolder, join, sorted } from "../state/guest-files.ts";
import { DeleteFileDialog, NewFolderDialog } from "./file-dialogs.tsx";
import { FileTable, type FileTableProps } from "./file-table.tsx";
import { DropZone, UploadButton } from "./file-upload.tsx";
import { FileView } from "./file-view.tsx";
import { saveAs } from "./save-as.ts";

const home = "/root";
const shownMax = 1_000;
/** Capsule's id → the folder last shown, until the page is reloaded. */
const lastPaths = new Map<string, string>();

type Shown = { dialog: "new folder" } | { dialog: "view" | "delete"; entry: FileEntry };

export function FilesTab({ id }: { id: string }) {
  const dashboard = useDashboard();
  const { files } = dashboard.client.capsule(id);
  const [path, setPath] = useState(lastPaths.get(id) ?? home);
  const [shown, setShown] = useState<Shown>();
  const { value: entries, problem, reload } = useQuery(() => files.list(path), [id, path]);
  const { uploading, upload } = useUpload(id, path, reload);
  const walk = (to: string) => {
    lastPaths.set(id, to);
    setPath(to);
  };
  const view = (entry: FileEntry) => setShown({ dialog: "view", entry });
  const follow = async (link: FileEntry) => ((await isFolder(files, link.path)) ? walk(link.path) : view(link));
  const read = async ({ path }: FileEntry) => new Response(await files.readStream(path)).blob();
  const download = (entry: FileEntry) => void dashboard.attempt(async () => saveAs(entry.name, await read(entry)));
  const close = () => setShown(undefined);
  return (
    <DropZone onDrop={upload}>
      <div class="toolbar">
        <Breadcrumbs path={path} onWalk={walk} />
        <div class="actions">
          <UploadButton uploading={uploading} onUpload={upload} />
          <Button icon="folder" onPress={() => setShown({ dialog: "new folder" })}>
            New folder
          </Button>
          <Button kind="quiet" icon="refresh" label="Reload the folder" onPress={reload} />
        </div>
      </div>
      {problem !== undefined ? (
        <LoadError problem={problem} onRetry={reload} />
      ) : entries === undefined ? (
        <Skeleton />
      ) : (
        <Folder
          key={path}
          entries={entries}
          onWalk={walk}
          onView={view}
          onFollow={(link) => void dashboard.attempt(() => follow(link))}
          onDownload={download}
          onDelete={(entry) => setShown({ dialog: "delete", entry })}
        />
      )}
      {shown?.dialog === "view" && <FileView id={id} entry={shown.entry} onDownload={download} onClose={close} />}
      {shown?.dialog === "new folder" && <NewFolderDialog id={id} path={path} onMade={reload} onClose={close} />}
      {shown?.dialog === "delete" && (
        <DeleteFileDialog id={id} entry={shown.entry} onDeleted={reload} onClose={close} />
      )}
    </DropZone>
  );
}

/** Uploads one file after the other; `uploading` is the current one's name. */
function useUpload(id: string, folder: string, onDone: () => void) {
  const dashboard = useDashboard();
  const [uploading, setUploading] = useState<string>();
  const upload = async (chosen: readonly File[]) => {
    for (const file of chosen) {
      setUploading(file.name);
      const write = () => dashboard.client.capsule(id).files.write(join(folder, file.name), file);
      if (await dashboard.attempt(write)) dashboard.toasts.done(`${file.name} is uploaded to ${folder}.`);
    }
    setUploading(undefined);
    onDone();
  };
  return { uploading, upload };
}

function Folder({ entries, ...handlers }: FileTableProps) {
  const [filter, setFilter] = useState("");
  if (entries.length === 0) {
    return (
      <Empty icon="folder" title="This folder is empty">
        <p>Drop files here, or choose Upload.</p>
      </Empty>
    );
  }
  const fitting = sorted(entries).filter(({ name }) => name.toLowerCase().includes(filter.toLowerCase()));
  return (
    <>
      <input
        class="filter"
        type="search"
        aria-label="Filter this folder"
        placeholder="Filter this folder"
        value={filter}
        onInput={(event) => setFilter(event.currentTarget.value)}
      />
      <FileTable entries={fitting.slice(0, shownMax)} {...handlers} />
      {fitting.length > shownMax && (
        <p class="muted">
          {count(fitting.length - shownMax, "more entry", "more entries")} not shown. Use the filter to find them.
        </p>
      )}
    </>
  );
}

function Breadcrumbs({ path, onWalk }: { path: string; onWalk: (path: string) => void }) {
  return (
    <nav class="breadcrumbs" aria-label="Path">
      <ol>
        {breadcrumbs(path).map(({ name, path: to }) => (
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
