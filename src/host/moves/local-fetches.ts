/** The side of a fetch that is this host's: whether it can run what comes, where that is written, and which folders it stands on. */
import { randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { CapsuleError, messageOf } from "../../wire/errors.ts";
import { checkpointName } from "../disk/capsule-folder.ts";
import { type DiskSpace, writtenIn } from "../disk/disk-space.ts";
import { decodeMachine } from "../disk/machine-record.ts";
import { manifestFormat } from "../disk/manifest.ts";
import type { Paths } from "../disk/paths.ts";
import type { TemplateStore } from "../images/template-store.ts";
import { folderOf } from "./local-moves.ts";
import type { MovedLayer, MovedRecord, ReleasedAs } from "./moved-folders.ts";
import { layersOf } from "./moved-record.ts";

export interface LocalFetchesOptions {
  paths: Paths;
  space: Pick<DiskSpace, "orReclaim" | "reserve">;
  templates: Pick<TemplateStore, "requireMachine">;
}

/** The checkpoint of a capsule, as its row has it. */
export interface FetchedCheckpoint {
  format: number;
  machine: Readonly<Record<string, unknown>>;
  record: unknown;
}

export class LocalFetches {
  readonly #options: LocalFetchesOptions;

  constructor(options: LocalFetchesOptions) {
    this.#options = options;
  }

  /** Whether the folder of that checkpoint was set aside here. */
  isAside(id: string, of: ReleasedAs): boolean {
    return existsSync(folderOf(this.#options.paths, id, of));
  }

  /** Throws CapsuleError: "conflict" where this host cannot restore what was saved there, "agent_error" where the row is malformed. */
  async requireMachine({ format, machine }: FetchedCheckpoint, what: string): Promise<void> {
    if (format > manifestFormat)
      throw new CapsuleError("conflict", `${what} has format ${format}, and this host reads up to ${manifestFormat}`);
    const decoded = checked(() => decodeMachine(machine, format), what);
    await this.#options.templates.requireMachine({ machine: decoded }, what);
  }

  /** The folders that it stands on, bottom first. Throws CapsuleError("agent_error") where the row is malformed. */
  layersOf({ record }: FetchedCheckpoint, what: string): MovedLayer[] {
    return checked(() => {
      const { image, parent, machine } = record as MovedRecord;
      if (typeof image !== "string" || typeof parent !== "string") throw new Error("its record names no parent");
      if (typeof machine !== "object" || machine === null) throw new Error("its record has no machine");
      return layersOf(record as MovedRecord);
    }, what);
  }

  /** Sets room aside for the files of a capsule. Throws CapsuleError("no_space"). */
  async place(id: string, bytes: number): Promise<Disposable & { work: string }> {
    const { paths, space } = this.#options;
    const work = paths.scratch(`fetch-${randomUUID()}`);
    const written = () => writtenIn(work) + writtenIn(join(work, checkpointName));
    const room = await space.orReclaim(() => space.reserve(bytes, `fetching capsule ${id}`, written));
    return { work, [Symbol.dispose]: () => room[Symbol.dispose]() };
  }
}

function checked<T>(read: () => T, what: string): T {
  try {
    return read();
  } catch (error) {
    throw new CapsuleError("agent_error", `${what} cannot be fetched: ${messageOf(error)}`, { cause: error });
  }
}
