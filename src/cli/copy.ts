/** `capsule cp`: files and folders in and out of a capsule; `-` is standard input or output. */
import { stat } from "node:fs/promises";
import { basename } from "node:path";
import type { Capsule } from "../sdk/sdk.ts";
import { type Call, UsageError } from "./command.ts";
import { download, downloadToStandardOutput } from "./download.ts";
import { exitCodes, Failure } from "./failures.ts";
import { named, onDisk } from "./names.ts";
import { Progress, type Tally } from "./progress.ts";
import { note, printable, printJson, sized } from "./screen.ts";
import { capsuleBy } from "./service.ts";
import { isFolderIn, nameOfCopy, statIn, upload, uploadStandardInput } from "./upload.ts";

interface Remote {
  id: string;
  path: string;
}

export async function cp(call: Call): Promise<number> {
  const [sources, target] = [call.words.slice(0, -1), call.words.at(-1)!];
  const to = remote(target);
  const id = idOf(sources, to);
  requireDifferentNames(sources);
  const client = await call.client();
  const capsule = await capsuleBy(client, id);
  const progress = new Progress(!call.isJson && !call.isSet("quiet") && target !== "-");
  const tally: Tally = { files: 0, links: 0, directories: 0 };
  try {
    if (sources.length > 1) await requireFolder(capsule, target, to);
    for (const source of sources) {
      const path = to?.path ?? remote(source)!.path;
      if (to !== undefined && source === "-") await uploadStandardInput(capsule, path, progress, tally);
      else if (to !== undefined) await upload(capsule, named(source), path, progress, tally);
      else if (target === "-") await downloadToStandardOutput(capsule, path, progress, tally);
      else {
        const { listDepthMax: deepest } = await client.limits();
        await download({ capsule, deepest }, path, named(target), progress, tally);
      }
    }
  } finally {
    progress.ends();
  }
  if (call.isJson && target !== "-") await printJson({ ...tally, bytes: progress.doneBytes });
  else if (process.stderr.isTTY && !call.isSet("quiet")) note(copied(tally, progress.doneBytes, target));
  return exitCodes.done;
}

/** As in `Copied 1 file, 12 KiB, to ID:/work`. */
function copied({ files, links, directories }: Tally, bytes: number, target: string): string {
  const counts = Object.entries({ file: files, link: links, folder: directories })
    .filter(([name, count]) => count > 0 || (name === "file" && links + directories === 0))
    .map(([name, count]) => `${count} ${name}${count === 1 ? "" : "s"}`);
  return `Copied ${counts.join(", ")}, ${sized(bytes)}, to ${target === "-" ? "standard output" : printable(target)}`;
}

/** The capsule of one side; the other side is here. */
function idOf(sources: string[], to: Remote | undefined): string {
  const ids = new Set(sources.map((source) => remote(source)?.id));
  const [id] = to === undefined ? ids : [to.id];
  const isMixed = ids.size > 1 || (ids.has(undefined) ? to === undefined : to !== undefined);
  if (isMixed || id === undefined)
    throw new UsageError(
      "one side must be in a capsule, the other here",
      "As in: capsule cp FILE ID:/path, or capsule cp ID:/path FILE. A file here is ./a:b if its name has a colon.",
    );
  return id;
}

/** Copies of one name in one folder would replace each other. */
function requireDifferentNames(sources: string[]): void {
  const seen = new Map<string, string>();
  for (const source of sources) {
    const path = remote(source)?.path;
    const name = path === undefined ? nameOfCopy(source) : basename(path);
    const other = seen.get(name);
    if (other !== undefined)
      throw new UsageError(
        `${JSON.stringify(other)} and ${JSON.stringify(source)} would replace each other in the target`,
      );
    seen.set(name, source);
  }
}

/** Several sources go into a folder. */
async function requireFolder(capsule: Capsule, target: string, to: Remote | undefined): Promise<void> {
  const isFolder =
    to === undefined
      ? await stat(onDisk(named(target)))
          .then((found) => found.isDirectory())
          .catch(() => false)
      : isFolderIn(await statIn(capsule, to.path), to.path);
  if (!isFolder) throw new Failure(`${target} is no folder; several sources are copied into one`);
}

/**
 * `ID:PATH`, where a relative path starts at the home directory; undefined: a path of this machine, which has a slash before
 * its first colon, if it has one. `ID` is what `capsuleBy` takes.
 */
function remote(text: string): Remote | undefined {
  const [, id, path] = /^([a-z0-9][A-Za-z0-9._-]*):(.*)$/s.exec(text) ?? [];
  if (id === undefined || path === undefined) return undefined;
  return { id, path: path.startsWith("/") ? path : `/root/${path}` };
}
