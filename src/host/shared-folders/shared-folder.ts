/** A folder that others than one capsule need, as another host takes it. */
export type SharedKind = "image" | "qemu" | "base" | "template";

export interface SharedFile {
  /** Its path below the folder. */
  name: string;
  path: string;
  /** The SHA-256 of each 4 MiB, where they are recorded. */
  sha256?: readonly string[] | undefined;
  isExecutable?: boolean | undefined;
}

export interface SharedLayer {
  kind: SharedKind;
  key: string;
  /** As `SharedFolder.sha256`. */
  sha256: string | null;
}

export interface SharedFolder {
  /** By which what stands on the folder knows it; null: not recorded. */
  sha256: string | null;
  /** The folders that it stands on, bottom first. */
  layers: SharedLayer[];
  files: SharedFile[];
}
