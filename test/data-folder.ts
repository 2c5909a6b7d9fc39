/** A data folder for tests of the operator's commands, which find it by CAPSULE_DATA. */
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Calls `work` with a new data folder while CAPSULE_DATA names it, and removes it and its siblings afterwards. */
export async function inNewDataFolder(work: (dataDir: string) => Promise<void>): Promise<void> {
  const parent = mkdtempSync(join(tmpdir(), "operator-"));
  const dataDir = join(parent, "data");
  const { CAPSULE_DATA: before } = process.env;
  process.env.CAPSULE_DATA = dataDir;
  try {
    mkdirSync(dataDir);
    await work(dataDir);
  } finally {
    if (before === undefined) delete process.env.CAPSULE_DATA;
    else process.env.CAPSULE_DATA = before;
    rmSync(parent, { recursive: true });
  }
}
