/**
 * Folders of paused capsules that move between a host and what lies outside of it: what an upload has to take, where the folder
 * stays meanwhile as a copy, and whether one that comes from outside may be used.
 *
 *   capsules/<id> ── setAside ──► released/<id>.<epoch>.<revision>
 *                                             │ bringBack, or a fetch
 *   capsules/<id> ◄──── take ──── released/<id>.<next epoch>.<revision>
 *
 * A folder that comes back waits in `released/` until its row is committed (docs/adr/0126).
 *
 * This host's files are the only side that is known here: no bucket and no database.
 */
import type { Machine } from "../../vmm/vmm.ts";

/** A folder of the data folder that others stand on. */
export interface MovedLayer {
  kind: "image" | "qemu" | "base" | "template";
  /** `<name>/<hash>` of an image, the hash of a QEMU build, the folder's name of a base or template. */
  key: string;
  /** SHA-256 of an image's root disk, or the hash that a base or template is known by; null: none is known. */
  sha256: string | null;
}

export interface MovedFile {
  /** Relative to the capsule's folder. */
  name: string;
  path: string;
  /** SHA-256 of each 4 MiB, where they are known. */
  sha256?: readonly string[] | undefined;
}

/** Facts about a paused capsule by its files, for its row: a JSON object, which `finish` compares with the files that were fetched. */
export interface MovedRecord {
  /** Format of the checkpoint's manifest. */
  format: number;
  revision: number;
  /** Version of the agent protocol in the saved memory. */
  protocol: number;
  /** As in the manifest: `vcpus`, `memory_mb`, `qemu_build` and so on. */
  machine: Record<string, unknown>;
  /** `<name>/<hash>`, and the SHA-256 of its root disk. */
  image: string;
  imageSha256: string | null;
  /** `bases/<name>` or `templates/<storage>`. */
  parent: string;
  parentSha256: string | null;
  /** Size of the guest's disk. */
  diskBytes: number;
  hasOwnMachine: boolean;
}

export interface MovingCapsule {
  files: MovedFile[];
  /** Bottom first: the image, the QEMU build where it is kept as one, the base or template. */
  layers: MovedLayer[];
  machine: Machine;
  /** Revision of the checkpoint: that of the row with the intent of its pause. */
  revision: number;
  record: MovedRecord;
  /** The sizes of all files together. */
  bytes: number;
}

/** The epoch of the row that was released, and the revision of its checkpoint. */
export interface ReleasedAs {
  epoch: number;
  revision: number;
}

/** The row that a fetched folder is to belong to. */
export interface FetchedRow {
  /** Its new one, for the manifest. */
  epoch: number;
  /** Its `MovedRecord`, as it was kept. */
  record: unknown;
  /** Null: it came from a built-in image. */
  storage: string | null;
  vcpus: number;
  memoryMb: number;
  diskMb: number;
}

export interface CachedFolder extends ReleasedAs {
  /** For `drop`. */
  name: string;
  id: string;
  /** On disk. */
  bytes: number;
}

/** A held capsule's row, for `repair`. */
export interface HeldRow {
  id: string;
  epoch: number;
  /** Its release may be under way. */
  isReleasing: boolean;
}

export interface MovedFolders {
  /**
   * The files of a paused capsule for an upload, and what they stand on. Nothing may resume it meanwhile, or the upload has to end.
   * Throws CapsuleError: "invalid_state" while the hashes of its checkpoint are missing, "conflict" or "internal_error" where it
   * could not be resumed here either, "agent_error" where the header of its disk layer was changed.
   */
  describe(id: string): Promise<MovingCapsule>;
  /** capsules/<id> → released/<id>.<epoch>.<revision>, durably. Idempotent. No VM may be using it. */
  setAside(id: string, of: ReleasedAs): Promise<void>;
  /**
   * The folder waits for the row with this epoch, durably. False: that very one is not here, or cannot be used any more. Throws
   * CapsuleError("internal_error") where capsules/<id> is there.
   */
  bringBack(id: string, of: ReleasedAs, epoch: number): Promise<boolean>;
  /** Where a fetched folder is to wait for the row with the epoch of `as`; nothing is there. Throws as `bringBack`. */
  placeFor(id: string, as: ReleasedAs): Promise<string>;
  /**
   * The folder that waits → capsules/<id>, in this turn, once its row is committed: from then on `repair` does it. Throws where it cannot be
   * renamed.
   */
  take(id: string, as: ReleasedAs): void;
  /** The folder that waits is the one again that was set aside. Nothing where none waits. */
  putBack(id: string, as: ReleasedAs, of: ReleasedAs): Promise<void>;
  /** The folders of this capsule are not counted as `cached` until the result is disposed of. */
  keep(id: string): Disposable;
  /**
   * Checks a folder that was fetched to `work/` against its row: each file, what it stands on, which is here already, and the header
   * of the disk layer. Gives the manifest the row's epoch and the time of the disk layer, durably. Throws CapsuleError("agent_error").
   */
  finish(folder: string, row: FetchedRow): Promise<void>;
  /** Keeps bases, also those that are yet to be fetched, from being removed until the result is disposed of: no folder stands on them. */
  hold(layers: readonly Pick<MovedLayer, "kind" | "key">[]): Promise<Disposable>;
  /** Folders that were set aside, the least recently used first. */
  cached(): Promise<CachedFolder[]>;
  /** Removes one of them. Idempotent. */
  drop(name: string): Promise<void>;
  /** Bytes on disk of all of them. */
  bytes(): Promise<number>;
  /** Removes the least recently used one; false when there is none. */
  dropOldest(): Promise<boolean>;
  /**
   * At the start, with the rows of all held capsules: the missing folder of a row that is not being released is taken where one waits for
   * the row's epoch. Resolves with the ids.
   */
  repair(held: Iterable<HeldRow>): Promise<string[]>;
}
