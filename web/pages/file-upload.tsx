/** Choosing files to upload: a button, and a drop zone around the file browser. */
import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import { Button } from "../parts/button.tsx";

interface UploadProps {
  uploading: string | undefined;
  onUpload: (files: readonly File[]) => void;
}

export function UploadButton({ uploading, onUpload }: UploadProps) {
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
          onUpload([...(event.currentTarget.files ?? [])]);
          event.currentTarget.value = "";
        }}
      />
    </>
  );
}

export function DropZone({ children, onDrop }: { children: ComponentChildren; onDrop: (files: File[]) => void }) {
  const [depth, setDepth] = useState(0);
  const carriesFiles = (event: DragEvent) => event.dataTransfer?.types.includes("Files") ?? false;
  const drop = (event: DragEvent) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    setDepth(0);
    onDrop([...(event.dataTransfer?.files ?? [])]);
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
