/** `capsule cp`: files and folders in and out of a capsule; `-` is standard input or output. */
import type { Call } from "./command.ts";
import { download, downloadToStandardOutput } from "./download.ts";
import { exitCodes, Failure } from "./failures.ts";
import { named } from "./names.ts";
import { Progress, type Tally } from "./progress.ts";
import { note, printJson } from "./screen.ts";
import { capsuleBy } from "./service.ts";
import { upload, uploadStandardInput } from "./upload.ts";

interface Remote {
  id: string;
  path: string;
}

export async function cp(call: Call): Promise<number> {
  const [source, target] = call.words as [string, string];
  const [from, to] = [remote(source), remote(target)];
  if ((from === undefined) === (to === undefined))
    throw new Failure(
      "one side must be in a capsule, the other here",
      "As in: capsule cp FILE ID:/path, or capsule cp ID:/path FILE.",
    );
  const { id, path } = (from ?? to)!;
  const client = await call.client();
  const capsule = await capsuleBy(client, id);
  const progress = new Progress(!call.isJson && !call.isSet("quiet") && target !== "-");
  const tally: Tally = { files: 0, links: 0, directories: 0 };
  try {
    if (to !== undefined) {
      if (source === "-") await uploadStandardInput(capsule, path, progress, tally);
      else await upload(capsule, named(source), path, progress, tally);
    } else if (target === "-") await downloadToStandardOutput(capsule, path, progress, tally);
    else {
      const { listDepthMax: deepest } = await client.limits();
      await download({ capsule, deepest }, path, named(target), progress, tally);
    }
  } finally {
    progress.ends();
  }
  if (call.isJson && target !== "-") await printJson({ ...tally, bytes: progress.doneBytes });
  else if (process.stderr.isTTY && !call.isSet("quiet") && tally.files + tally.links > 1)
    note(`${tally.files} files, ${tally.links} links and ${tally.directories} folders`);
  return exitCodes.done;
}

/** `ID:PATH`, where a relative path starts at the home directory; undefined: a path of this machine. */
function remote(text: string): Remote | undefined {
  const [, id, path] = /^(cl-[0-9a-z]*):(.*)$/s.exec(text) ?? [];
  if (id === undefined || path === undefined) return undefined;
  return { id, path: path.startsWith("/") ? path : `/root/${path}` };
}
