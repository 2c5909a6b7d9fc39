/** A look into a file that is text; of a long one, its beginning. */
import type { FileEntry } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { Dialog } from "../parts/dialog.tsx";
import { Skeleton, Unreadable } from "../parts/page.tsx";
import { useReading } from "../parts/reading.ts";
import { useDashboard } from "../state/dashboard.ts";
import { textOf } from "../state/file-text.ts";
import { size } from "../state/words.ts";

const viewMaxBytes = 256 * 1024;

interface FileViewProps {
  id: string;
  entry: FileEntry;
  onDownload: (entry: FileEntry) => void;
  onClose: () => void;
}

export function FileView({ id, entry, onDownload, onClose }: FileViewProps) {
  const { service } = useDashboard();
  const { value, problem, again } = useReading(
    () => service.readBeginning(id, entry.path, viewMaxBytes),
    [id, entry.path],
  );
  const text = value && textOf(value.bytes);
  return (
    <Dialog title={entry.name} isWide onClose={onClose}>
      <div class="dialog-body">
        {problem !== undefined ? (
          <Unreadable problem={problem} onRetry={again} />
        ) : value === undefined ? (
          <Skeleton />
        ) : text === undefined ? (
          <p>This file is no text. Download it to look inside.</p>
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
