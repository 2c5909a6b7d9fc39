/** Shows the start of a text file. */
import type { FileEntry } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { Dialog } from "../parts/dialog.tsx";
import { LoadError, Skeleton } from "../parts/page.tsx";
import { useQuery } from "../parts/query.ts";
import { useDashboard } from "../state/dashboard.ts";
import { size } from "../state/format.ts";
import { readStart, textOf } from "../state/guest-files.ts";

const viewMaxBytes = 256 * 1024;

interface FileViewProps {
  id: string;
  entry: FileEntry;
  onDownload: (entry: FileEntry) => void;
  onClose: () => void;
}

export function FileView({ id, entry, onDownload, onClose }: FileViewProps) {
  const { client } = useDashboard();
  const { value, problem, reload } = useQuery(
    () => readStart(client.capsule(id).files, entry.path, viewMaxBytes),
    [id, entry.path],
  );
  const text = value && textOf(value.bytes);
  return (
    <Dialog title={entry.name} isWide onClose={onClose}>
      <div class="dialog-body">
        {problem !== undefined ? (
          <LoadError problem={problem} onRetry={reload} />
        ) : value === undefined ? (
          <Skeleton />
        ) : text === undefined ? (
          <p>This file is not text. Download it to open it.</p>
        ) : text === "" ? (
          <p class="muted">The file is empty.</p>
        ) : (
          // biome-ignore lint/a11y/noNoninteractiveTabindex: a long text must be scrollable by the keyboard
          <section class="file-text" tabIndex={0} aria-label={`Content of ${entry.name}`}>
            <pre>{text}</pre>
          </section>
        )}
        {value?.isCut && text !== undefined && <p class="muted">Only the first {size(viewMaxBytes)} are shown.</p>}
      </div>
      <footer>
        <Button icon="download" onPress={() => onDownload(entry)}>
          Download
        </Button>
        <Button kind="primary" onPress={onClose}>
          Close
        </Button>
      </footer>
    </Dialog>
  );
}
