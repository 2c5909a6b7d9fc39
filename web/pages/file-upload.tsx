/** Uploads: a button and a drop zone to choose the files, and a bar with progress and Cancel. */
import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import { Button } from "../parts/button.tsx";
import { type Chosen, chosenOf, droppedIn } from "../state/chosen-files.ts";
import { useDashboard } from "../state/dashboard.ts";
import { count } from "../state/format.ts";
import { join } from "../state/guest-files.ts";
import { uploadingClient } from "../state/service.ts";

interface UploadProps {
  isBusy: boolean;
  onUpload: (files: Promise<readonly Chosen[]>) => void;
}

/** The files in one folder, and below it, with their paths. */
const ofFolder = { webkitdirectory: true };

export function UploadButtons({ isBusy, onUpload }: UploadProps) {
  const files = useRef<HTMLInputElement>(null);
  const folder = useRef<HTMLInputElement>(null);
  const choose = ({ currentTarget: input }: { currentTarget: HTMLInputElement }) => {
    onUpload(chosenOf([...(input.files ?? [])]));
    input.value = "";
  };
  return (
    <>
      <Button icon="upload" isBusy={isBusy} onPress={() => files.current?.click()}>
        Upload
      </Button>
      <input ref={files} type="file" multiple hidden aria-label="Files to upload" onChange={choose} />
      <Button
        kind="quiet"
        icon="folderUp"
        label="Upload a folder"
        isBusy={isBusy}
        onPress={() => folder.current?.click()}
      />
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

/** An upload under way. */
export interface Upload {
  name: string;
  /** 0 to 1. */
  share: number;
  /** Place of the file among those that were chosen. */
  number: number;
  of: number;
  cancel: () => void;
}

/** Uploads one file after the other, those of a folder with the folder's own. Cancelling ends the current one and leaves out the rest. */
export function useUpload(id: string, folder: string, onDone: () => void) {
  const dashboard = useDashboard();
  const [upload, setUpload] = useState<Upload>();
  const start = async (chosen: readonly Chosen[]) => {
    const cancelling = new AbortController();
    const { signal } = cancelling;
    let done = 0;
    for (const [index, { file, path: name }] of chosen.entries()) {
      const cancel = () => cancelling.abort();
      const show = (share: number) => setUpload({ name, share, number: index + 1, of: chosen.length, cancel });
      show(0);
      const { files } = uploadingClient(dashboard.client, show).capsule(id);
      try {
        await files.write(join(folder, name), file, { signal, parents: name !== file.name });
        done++;
      } catch (error) {
        if (!signal.aborted) dashboard.toasts.failed(error);
      }
      if (signal.aborted) {
        dashboard.toasts.done(`The upload of ${name} is cancelled.`);
        break;
      }
    }
    const what = chosen.length === 1 ? chosen[0]!.path : count(done, "file");
    if (done > 0) dashboard.toasts.done(`${what} ${done === 1 ? "is" : "are"} uploaded to ${folder}.`);
    setUpload(undefined);
    onDone();
  };
  return { upload, start };
}

export function UploadBar({ upload: { name, share, number, of, cancel } }: { upload: Upload }) {
  return (
    <div class="panel upload-bar">
      <span class="breakable">
        {name}
        {of > 1 && `, ${number} of ${of}`}
      </span>
      <progress value={share} max={1} aria-label={`Upload of ${name}`} />
      <span class="upload-share">{Math.floor(share * 100)} %</span>
      <Button onPress={cancel}>Cancel upload</Button>
    </div>
  );
}
