/** Shows the start of a file, and edits one that is a small text. */
import { useState } from "preact/hooks";
import type { FileEntry } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { Dialog, FormProblem } from "../parts/dialog.tsx";
import { LoadError, Skeleton } from "../parts/page.tsx";
import { useQuery } from "../parts/query.ts";
import { useDashboard } from "../state/dashboard.ts";
import { size } from "../state/format.ts";
import { editRefusal, type FileStart, readStart, textOf } from "../state/guest-files.ts";
import { messageOf } from "../state/toasts.ts";

const viewMaxBytes = 256 * 1024;

export type Named = Pick<FileEntry, "name" | "path">;

interface FileViewProps {
  id: string;
  entry: Named;
  onDownload: (entry: Named) => void;
  onChanged: () => void;
  onClose: () => void;
}

export function FileView({ id, entry, onDownload, onChanged, onClose }: FileViewProps) {
  const { client } = useDashboard();
  const { files } = client.capsule(id);
  const query = useQuery(async () => {
    const stat = await files.stat(entry.path);
    return { stat, start: await readStart(files, entry.path, viewMaxBytes) };
  }, [id, entry.path]);
  const [isEditing, setEditing] = useState(false);
  const { value } = query;
  const saved = () => {
    setEditing(false);
    query.reload();
    onChanged();
  };
  if (isEditing && value !== undefined) {
    const text = textOf(value.start.bytes) ?? "";
    return <FileEdit id={id} entry={entry} text={text} stat={value.stat} onSaved={saved} onClose={onClose} />;
  }
  return (
    <Dialog title={entry.name} first="footer > :last-child button" isWide onClose={onClose}>
      <div class="dialog-body">
        <Content name={entry.name} start={value?.start} problem={query.problem} onRetry={query.reload} />
      </div>
      <footer>
        {value !== undefined && (
          <Button icon="pencil" refused={editRefusal(value.start)} onPress={() => setEditing(true)}>
            Edit
          </Button>
        )}
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

interface ContentProps {
  name: string;
  start: FileStart | undefined;
  problem: string | undefined;
  onRetry: () => void;
}

function Content({ name, start, problem, onRetry }: ContentProps) {
  if (problem !== undefined) return <LoadError problem={problem} onRetry={onRetry} />;
  if (start === undefined) return <Skeleton />;
  const text = textOf(start.bytes);
  if (text === undefined) return <p>This file is not text. Download it to open it.</p>;
  if (text === "") return <p class="muted">The file is empty.</p>;
  return (
    <>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a long text must be scrollable by the keyboard */}
      <section class="file-text" tabIndex={0} aria-label={`Content of ${name}`}>
        <pre>{text}</pre>
      </section>
      {start.isCut && <p class="muted">Only the first {size(viewMaxBytes)} are shown.</p>}
    </>
  );
}

interface FileEditProps {
  id: string;
  entry: Named;
  text: string;
  /** The file as it was when it was read. */
  stat: FileEntry | undefined;
  onSaved: () => void;
  onClose: () => void;
}

/** Escape and a click beside the dialog do not throw an edit away: Cancel does. */
function FileEdit({ id, entry, text, stat, onSaved, onClose }: FileEditProps) {
  const { client, toasts } = useDashboard();
  const [edited, setEdited] = useState(text);
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<string>();
  const isChanged = edited !== text;
  const save = async () => {
    setBusy(true);
    setProblem(undefined);
    try {
      const { files } = client.capsule(id);
      const now = await files.stat(entry.path);
      if (now?.modifiedAt !== stat?.modifiedAt || now?.size !== stat?.size)
        throw new Error("the file was changed since it was opened: copy your text and open it again");
      await files.write(entry.path, edited);
      toasts.done(`${entry.name} is saved.`);
      onSaved();
    } catch (error) {
      setProblem(messageOf(error));
      setBusy(false);
    }
  };
  const refused = isChanged ? undefined : "Nothing was changed";
  return (
    <Dialog title={`Edit ${entry.name}`} isWide onClose={() => isChanged || onClose()}>
      <div class="dialog-body">
        <textarea
          class="file-edit"
          aria-label={`Content of ${entry.name}`}
          spellcheck={false}
          value={edited}
          onInput={(event) => setEdited(event.currentTarget.value)}
        />
      </div>
      <FormProblem text={problem} />
      <footer>
        <Button onPress={onClose}>Cancel</Button>
        <Button kind="primary" isBusy={isBusy} refused={refused} onPress={() => void save()}>
          Save
        </Button>
      </footer>
    </Dialog>
  );
}
