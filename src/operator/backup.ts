/**
 * `capsule admin backup`: a copy of the data folder that a server can be started on, made while the server runs.
 *
 * The records are copied first, in one transaction. The files of a paused or stopped capsule do not change until it runs again, and
 * that changes its record: its copy is consistent if the record is the same afterwards. The memory of a running
 * capsule cannot be copied; in the backup the capsule is in status `error`, with the reason.
 */
import { execFile } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { dirname, join, relative, resolve } from "node:path";
import { promisify } from "node:util";
import type { Call } from "../cli/command.ts";
import { Failure } from "../cli/failures.ts";
import { loadConfig } from "../config.ts";
import { type CapsuleRow, CapsuleRows } from "../db/capsule-rows.ts";
import { databasePath, openDatabase } from "../db/database.ts";
import { TemplateRows } from "../db/template-rows.ts";
import { capsuleParts, stoppedName } from "../host/disk/capsule-folder.ts";
import { secretKeyName } from "../secret.ts";

const run = promisify(execFile);

export async function backup({ words: [folder] }: Pick<Call, "words">): Promise<number> {
  const { dataDir } = loadConfig();
  const target = resolve(folder!);
  if (existsSync(join(dataDir, "host.json")))
    throw new Failure(
      `${dataDir} belongs to a cluster, whose records are in PostgreSQL: back that up, and data folders as docs/operations/cluster-failures.md says`,
    );
  if (!existsSync(databasePath(dataDir))) throw new Error(`there is no capsule.db in ${dataDir}: nothing to back up`);
  if (!relative(dataDir, target).startsWith("..")) throw new Error(`${target} lies inside the data folder`);
  if (existsSync(target)) throw new Failure(`${target} is there already`, "Name a folder that does not exist yet.");
  if (!existsSync(dirname(target)))
    throw new Failure(`${dirname(target)} does not exist`, "Make it first, on the disk for backups.");
  mkdirSync(target, { mode: 0o700 });
  try {
    const { kept, left } = await copyData(dataDir, target);
    await run("sync", ["-f", target]);
    const rest =
      left === 0
        ? ""
        : `; of ${left} running ones only the records, so they are in error there: pause them before a backup`;
    console.log(`The backup in ${target} has ${kept} capsules whole${rest}.`);
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
    for (const name of ["images", "qemu", "bases", "templates"])
      await copyEntries(join(dataDir, name), join(target, name));
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
      if (row.intent === "destroy") continue; // a server that starts on the copy finishes it
      if (row.status === "error" && !existsSync(join(dataDir, "capsules", row.id))) continue; // it never ran
      const isKept = isAtRest(row) && (await copyCapsule(dataDir, target, row, liveRows));
      if (isKept) kept += 1;
      else left += 1;
      if (!isKept) copiedRows.change(row.id, row.revision, lost);
    }
    copyKeys(dataDir, target);
    return { kept, left };
  } finally {
    copy.close();
    live.close();
  }
}

const lost = { status: "error", intent: null, errorReason: "it was not paused when this backup was made" };

function isAtRest({ status, intent }: CapsuleRow): boolean {
  return ["paused", "stopped", "error"].includes(status) && intent === null;
}

/** False: it was resumed or destroyed during the copy. */
async function copyCapsule(dataDir: string, target: string, row: CapsuleRow, live: CapsuleRows): Promise<boolean> {
  const [from, to] = [dataDir, target].map((data) => join(data, "capsules", row.id)) as [string, string];
  mkdirSync(to, { mode: 0o700 });
  const isPart = (part: string) => row.status === "paused" || existsSync(join(from, part));
  const parts = [...capsuleParts.filter(isPart), ...[stoppedName].filter((name) => existsSync(join(from, name)))];
  const failure = await Promise.all(parts.map((part) => copyTree(join(from, part), join(to, part)))).then(
    () => undefined,
    (error: unknown) => error,
  );
  const isUnchanged = live.get(row.id)?.revision === row.revision;
  if (isUnchanged && failure !== undefined) throw failure;
  if (!isUnchanged) await rm(to, { recursive: true });
  return isUnchanged;
}

/** Entries are folders that never change; one that is deleted during the copy is left out. */
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

/** Keeps holes, owners and modes; shares blocks where the file system can. */
async function copyTree(from: string, to: string): Promise<void> {
  await run("cp", ["--archive", "--reflink=auto", "--sparse=always", "--no-target-directory", from, to]);
}

function copyKeys(dataDir: string, target: string): void {
  for (const name of ["api-key", secretKeyName]) {
    const key = join(dataDir, name);
    if (existsSync(key)) writeFileSync(join(target, name), readFileSync(key), { mode: 0o600 });
  }
}
