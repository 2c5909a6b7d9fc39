/**
 * `capsule backup`: a copy of the data folder that a server can be started on, made while the server runs.
 *
 * The records are copied first, at one moment. A paused capsule's files do not change until it is resumed, and every
 * resume changes its record: so its copy is good if its record is the same afterwards. What a running capsule has in
 * its memory cannot be copied; in the backup it is in status `error`, with the reason.
 */
import { execFile } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join, relative, resolve } from "node:path";
import { promisify } from "node:util";
import { loadConfig } from "../config.ts";
import { type CapsuleRow, CapsuleRows } from "../db/capsule-rows.ts";
import { databasePath, openDatabase } from "../db/database.ts";
import { TemplateRows } from "../db/template-rows.ts";
import { capsuleParts } from "../host/disk/capsule-folder.ts";

const run = promisify(execFile);

export async function backup(args: string[]): Promise<number> {
  const [folder] = args;
  if (folder === undefined || args.length !== 1) {
    console.error("usage: capsule backup FOLDER; it is made, and must not be there yet");
    return 2;
  }
  const { dataDir } = loadConfig();
  const target = resolve(folder);
  if (!existsSync(databasePath(dataDir))) throw new Error(`there is no capsule.db in ${dataDir}: nothing to back up`);
  if (!relative(dataDir, target).startsWith("..")) throw new Error(`${target} lies inside the data folder`);
  mkdirSync(target, { mode: 0o700 });
  try {
    const { kept, left } = await copyData(dataDir, target);
    await run("sync", ["-f", target]);
    console.log(`${target}: ${kept} paused capsules${left === 0 ? "" : `; ${left} others only as records`}`);
    return 0;
  } catch (error) {
    await rm(target, { recursive: true, force: true });
    throw error;
  }
}

async function copyData(dataDir: string, target: string): Promise<{ kept: number; left: number }> {
  const live = openDatabase(databasePath(dataDir));
  live.prepare("VACUUM INTO ?").run(databasePath(target));
  const copy = openDatabase(databasePath(target));
  try {
    for (const name of ["images", "bases", "templates"]) await copyEntries(join(dataDir, name), join(target, name));
    for (const { name, storage } of new TemplateRows(copy).all()) {
      if (!existsSync(join(target, "templates", storage))) {
        throw new Error(`template ${name} was deleted while it was being copied; try again`);
      }
    }
    mkdirSync(join(target, "capsules"), { mode: 0o700 });
    const [liveRows, copiedRows] = [new CapsuleRows(live), new CapsuleRows(copy)];
    let kept = 0;
    let left = 0;
    for (const row of copiedRows.all()) {
      // There is nothing to copy; and what was being destroyed is destroyed by the start of a server on the copy.
      if (row.status === "stopped" || row.status === "error" || row.intent === "destroy") continue;
      const isKept = isAtRest(row) && (await copyCapsule(dataDir, target, row, liveRows));
      if (isKept) kept += 1;
      else left += 1;
      if (!isKept) copiedRows.change(row.id, row.generation, lost);
    }
    copyKey(dataDir, target);
    return { kept, left };
  } finally {
    copy.close();
    live.close();
  }
}

const lost = { status: "error", intent: null, errorReason: "it was not paused when this backup was made" };

function isAtRest({ status, intent }: CapsuleRow): boolean {
  return status === "paused" && intent === null;
}

/** False when it was resumed or destroyed meanwhile. */
async function copyCapsule(dataDir: string, target: string, row: CapsuleRow, live: CapsuleRows): Promise<boolean> {
  const [from, to] = [dataDir, target].map((data) => join(data, "capsules", row.id)) as [string, string];
  mkdirSync(to, { mode: 0o700 });
  const failure = await Promise.all(capsuleParts.map((part) => copyTree(join(from, part), join(to, part)))).then(
    () => undefined,
    (error: unknown) => error,
  );
  const isUnchanged = live.get(row.id)?.generation === row.generation;
  if (isUnchanged && failure !== undefined) throw failure;
  if (!isUnchanged) await rm(to, { recursive: true });
  return isUnchanged;
}

/** Each entry is a folder that does not change once it is there; one that vanishes meanwhile is not needed any more. */
async function copyEntries(from: string, to: string): Promise<void> {
  mkdirSync(to, { mode: 0o700 });
  for (const name of existsSync(from) ? readdirSync(from) : []) {
    try {
      await copyTree(join(from, name), join(to, name));
    } catch (error) {
      await rm(join(to, name), { recursive: true, force: true });
      if (existsSync(join(from, name))) throw error;
    }
  }
}

/** With holes, owners and modes, and sharing the blocks where the file system can. */
async function copyTree(from: string, to: string): Promise<void> {
  await run("cp", ["--archive", "--reflink=auto", "--sparse=always", "--no-target-directory", from, to]);
}

function copyKey(dataDir: string, target: string): void {
  const key = join(dataDir, "api-key");
  if (!existsSync(key)) return;
  writeFileSync(join(target, "api-key"), readFileSync(key), { mode: 0o600 });
}
