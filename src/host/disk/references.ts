/**
 * The folders and machines that something in the data folder needs. Bases, templates and capsules stand on image builds and need
 * the QEMU build of their machine; a capsule also stands on the base or template that it was started from. Each names them in a
 * file of its own folder. Everything that removes shared folders asks here. Capsules and templates in `lost+found/` and released
 * capsules count, since they may be put back.
 *
 * A folder whose file cannot be read may need anything that is older than this daemon.
 */
import { join, relative } from "node:path";
import type { Machine } from "../../vmm/vmm.ts";
import { readCapsule } from "./capsule-folder.ts";
import { readManifest } from "./checkpoint-folder.ts";
import type { Layer } from "./manifest.ts";
import type { Paths } from "./paths.ts";

export interface References {
  /** Folders that something stands on, relative to the data folder. */
  needed: Set<string>;
  /** The machines of everything that has been a VM. */
  machines: Machine[];
  damaged: { folder: string; why: string }[];
}

export type HolderKind = "bases" | "templates" | "capsules";

interface Holder {
  needs: string[];
  machine: Machine;
}

const kinds: readonly HolderKind[] = ["bases", "templates", "capsules"];

/** How often everything is read where folders change their place meanwhile. */
const passes = 4;

/**
 * Reads the files of these kinds of folders. A folder without a file is being made or removed, and needs nothing. `others`: folders
 * that something else needs, asked for when all is read.
 */
export async function readReferences(
  paths: Paths,
  wanted = kinds,
  others: () => Iterable<string> = () => [],
): Promise<References> {
  const references: References = { needed: new Set(), machines: [], damaged: [] };
  for (let pass = 1; ; pass++) {
    const { moves } = paths;
    await readAll(paths, wanted, references);
    if (paths.moves !== moves && pass < passes) continue;
    if (paths.moves !== moves)
      references.damaged.push({ folder: paths.releasedFolder, why: "folders were moved while they were read" });
    for (const folder of others()) references.needed.add(folder);
    return references;
  }
}

async function readAll(paths: Paths, wanted: readonly HolderKind[], references: References): Promise<void> {
  for (const kind of wanted) {
    for (const folder of foldersOf(paths, kind)) {
      try {
        const holder = await (kind === "capsules" ? capsuleIn(folder) : checkpointIn(folder));
        for (const need of holder?.needs ?? []) references.needed.add(need);
        if (holder !== undefined) references.machines.push(holder.machine);
      } catch (error) {
        references.damaged.push({ folder, why: String(error) });
      }
    }
  }
}

/** Whether a folder has to stay. `isOwn`: this daemon has made it, so no damaged file can need it. */
export function mayBeNeeded(
  paths: Pick<Paths, "data">,
  { needed, damaged }: Pick<References, "needed" | "damaged">,
  folder: string,
  { isOwn }: { isOwn: boolean },
): boolean {
  return needed.has(relative(paths.data, folder)) || (damaged.length > 0 && !isOwn);
}

function foldersOf(paths: Paths, kind: HolderKind): string[] {
  if (kind === "bases") return paths.baseNames().map((name) => paths.base(name));
  const names = kind === "capsules" ? paths.capsuleIds() : paths.templateIds();
  const lost = paths.lostNames(kind).map((name) => paths.lost(kind, name));
  const released = kind === "capsules" ? paths.releasedNames().map((name) => paths.released(name)) : [];
  return [...names.map((name) => paths.saved(kind, name)), ...lost, ...released];
}

async function capsuleIn(folder: string): Promise<Holder | undefined> {
  const capsule = await readCapsule(folder);
  if (capsule === undefined) return undefined;
  const { parent, image, machine } = capsule;
  return { needs: [parent, join("images", image.name, image.hash)], machine };
}

async function checkpointIn(folder: string): Promise<Holder | undefined> {
  const manifest = await readManifest(folder);
  return manifest && { needs: manifest.layers.map(folderOf), machine: manifest.machine };
}

function folderOf({ key }: Layer): string {
  return join("images", key);
}
