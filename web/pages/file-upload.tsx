/** Uploads: buttons and a drop zone to choose the files, and a bar with progress and Cancel for each. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Button } from "../parts/button.tsx";
import { type Chosen, chosenOf, droppedIn } from "../state/chosen-files.ts";
import { useDashboard } from "../state/dashboard.ts";
import { join } from "../state/guest-files.ts";
import { uploadingClient } from "../state/service.ts";
import { nameOf, type Upload } from "../state/upload-queue.ts";

interface UploadProps {
  onUpload: (files: Promise<readonly Chosen[]>) => void;
}

/** The files in one folder, and below it, with their paths. */
const ofFolder = { webkitdirectory: true };

export function UploadButtons({ onUpload }: UploadProps) {
  const files = useRef<HTMLInputElement>(null);
  const folder = useRef<HTMLInputElement>(null);
  const choose = ({ currentTarget: input }: { currentTarget: HTMLInputElement }) => {
    onUpload(chosenOf([...(input.files ?? [])]));
    input.value = "";
  };
  return (
    <>
      <Button icon="upload" onPress={() => files.current?.click()}>
        Upload
      </Button>
      <input ref={files} type="file" multiple hidden aria-label="Files to upload" onChange={choose} />
      <Button kind="quiet" icon="folderUp" label="Upload a folder" onPress={() => folder.current?.click()} />
      <input ref={folder} type="file" {...ofFolder} hidden aria-label="Folder to upload" onChange={choose} />
    </>
  );
}

interface DropProps {
  children: ComponentChildren;
  onDrop: UploadProps["onUpload"];
}

/** Takes files and folders. */
export function DropZone({ children, onDrop }: DropProps) {
  const [depth, setDepth] = useState(0);
  const carriesFiles = (event: DragEvent) => event.dataTransfer?.types.includes("Files") ?? false;
  const drop = (event: DragEvent) => {
    const { dataTransfer } = event;
    if (dataTransfer === null || !carriesFiles(event)) return;
    event.preventDefault();
    setDepth(0);
    onDrop(droppedIn(dataTransfer));
  };
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: the Upload button does the same by keyboard
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

/** The uploads of a capsule, which go on while other pages are shown. `folder`: where further ones go to. */
export function useUploads(id: string, folder: string, onEnded: () => void) {
  const dashboard = useDashboard();
  const queue = dashboard.uploadsOf(id);
  const known = useRef(queue.ended.value);
  const ended = queue.ended.value;
  useEffect(() => {
    if (ended !== known.current) onEnded();
    known.current = ended;
  }, [ended]);
  const add = (chosen: Promise<readonly Chosen[]>) =>
    queue.add(chosen, {
      send: ({ file, path }, signal, onShare) => {
        const { files } = uploadingClient(dashboard.client, onShare).capsule(id);
        return files.write(join(folder, path), file, { signal, parents: path !== file.name });
      },
      onSent: (name, files) => dashboard.toasts.done(`${name} ${files === 1 ? "is" : "are"} uploaded to ${folder}.`),
      onCancelled: (name) => dashboard.toasts.done(`The upload of ${name} is cancelled.`),
      onError: (error) => dashboard.toasts.failed(error),
    });
  return { uploads: queue.shown.value, add };
}

export function UploadBar({ upload }: { upload: Upload }) {
  const { files = [], number, share, cancel } = upload;
  const name = nameOf(upload);
  return (
    <div class="panel upload-bar">
      <span class="breakable">
        {name}
        {number > 0 && files.length > 1 && `, ${number} of ${files.length}`}
      </span>
      {number > 0 ? (
        <>
          <progress value={share} max={1} aria-label={`Upload of ${name}`} />
          <span class="upload-share">{Math.floor(share * 100)} %</span>
        </>
      ) : (
        <span class="upload-waits">waits for its turn</span>
      )}
      <Button onPress={cancel}>
        Cancel upload<span class="unseen"> of {name}</span>
      </Button>
    </div>
  );
}
