/** The file browser of a capsule: folders, view, upload by button or drop, download, create and delete. */
import { useState } from "preact/hooks";
import type { FileEntry } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { Empty, LoadError, Skeleton } from "../parts/page.tsx";
import { useQuery } from "../parts/query.ts";
import type { Chosen } from "../state/chosen-files.ts";
import { useDashboard } from "../state/dashboard.ts";
import { count } from "../state/format.ts";
import { breadcrumbs, isFolder, resolved, sorted } from "../state/guest-files.ts";
import { DeleteFileDialog, NewFolderDialog, RenameDialog } from "./file-dialogs.tsx";
import { FileTable, type FileTableProps } from "./file-table.tsx";
import { DropZone, UploadBar, UploadButtons, useUploads } from "./file-upload.tsx";
import { FileView, type Named } from "./file-view.tsx";
import { saveAs } from "./save-as.ts";

const home = "/root";
const shownMax = 1_000;
/** Capsule's id → the folder last shown, until the page is reloaded. */
const lastPaths = new Map<string, string>();

type Shown =
  | { dialog: "new folder" }
  | { dialog: "view"; entry: Named }
  | { dialog: "rename" | "delete"; entry: FileEntry };

export function FilesTab({ id }: { id: string }) {
  const dashboard = useDashboard();
  const { files } = dashboard.client.capsule(id);
  const [path, setPath] = useState(lastPaths.get(id) ?? home);
  const [shown, setShown] = useState<Shown>();
  const { value: entries, problem, reload } = useQuery(() => files.list(path), [id, path]);
  const { uploads, add } = useUploads(id, path, reload);
  const take = (chosen: Promise<readonly Chosen[]>) => void dashboard.attempt(async () => add(chosen));
  const walk = (to: string) => {
    lastPaths.set(id, to);
    setPath(to);
  };
  const view = (entry: Named) => setShown({ dialog: "view", entry });
  const follow = async (link: Named) => ((await isFolder(files, link.path)) ? walk(link.path) : view(link));
  const openPath = (typed: string) => follow(entryAt(resolved(path, typed)));
  const read = async ({ path }: Named) => new Response(await files.readStream(path)).blob();
  const download = (entry: Named) => void dashboard.attempt(async () => saveAs(entry.name, await read(entry)));
  const downloadFolder = async ({ path: folder, name }: Named) => {
    const archive = await files.archive(folder, { format: "tar.gz", base: path });
    saveAs(`${name}.tar.gz`, await new Response(archive).blob());
  };
  const close = () => setShown(undefined);
  return (
    <DropZone onDrop={take}>
      <div class="toolbar">
        <Breadcrumbs path={path} onWalk={walk} />
        <PathField key={path} onOpen={(typed) => void dashboard.attempt(() => openPath(typed))} />
        <div class="actions">
          <UploadButtons onUpload={take} />
          <Button icon="folder" onPress={() => setShown({ dialog: "new folder" })}>
            New folder
          </Button>
          <Button kind="quiet" icon="refresh" label="Reload the folder" onPress={reload} />
        </div>
      </div>
      {uploads.map((upload) => (
        <UploadBar key={upload.id} upload={upload} />
      ))}
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
          onDownload={(entry) =>
            entry.type === "directory" ? void dashboard.attempt(() => downloadFolder(entry)) : download(entry)
          }
          onRename={(entry) => setShown({ dialog: "rename", entry })}
          onDelete={(entry) => setShown({ dialog: "delete", entry })}
        />
      )}
      {shown?.dialog === "view" && (
        <FileView id={id} entry={shown.entry} onDownload={download} onChanged={reload} onClose={close} />
      )}
      {shown?.dialog === "rename" && <RenameDialog id={id} entry={shown.entry} onRenamed={reload} onClose={close} />}
      {shown?.dialog === "new folder" && <NewFolderDialog id={id} path={path} onMade={reload} onClose={close} />}
      {shown?.dialog === "delete" && (
        <DeleteFileDialog id={id} entry={shown.entry} onDeleted={reload} onClose={close} />
      )}
    </DropZone>
  );
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

function entryAt(path: string): Named {
  return { path, name: path.slice(path.lastIndexOf("/") + 1) };
}

/** A folder is walked to, a file is shown. */
function PathField({ onOpen }: { onOpen: (typed: string) => void }) {
  const [typed, setTyped] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    if (typed.trim() !== "") onOpen(typed.trim());
  };
  return (
    <form class="path-field" onSubmit={submit}>
      <input
        aria-label="Path to open"
        placeholder="Open a path"
        autocomplete="off"
        spellcheck={false}
        value={typed}
        onInput={(event) => setTyped(event.currentTarget.value)}
      />
    </form>
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
