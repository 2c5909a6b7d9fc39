/**
 * A data folder whose database was lost or exchanged: the next start would know none of its capsules and templates. It is
 * refused instead.
 */
import { existsSync } from "node:fs";
import { CapsuleError } from "../../wire/errors.ts";
import { LostFound } from "./lost-found.ts";
import { Paths } from "./paths.ts";

/** Throws CapsuleError("conflict") when the database `file` is missing beside capsules or templates. */
export function requireDatabase(dataDir: string, file: string): void {
  if (existsSync(file)) return;
  const { capsules, templates } = foldersIn(new Paths(dataDir));
  refuseIfAny(dataDir, capsules.length, templates.length, `${file} is missing`);
}

/**
 * Call when the database has no record of any capsule or template, not even of a destroyed one. Throws
 * CapsuleError("conflict") when there are paused capsules or templates. A capsule without a checkpoint may be one that was made
 * ahead of time and has no record yet. `isNoted`: whether the database has explained a template's files before they came; a start may
 * find them where a daemon has ended in a fetch.
 */
export function requireNoSaved(dataDir: string, file: string, isNoted: (storage: string) => boolean): void {
  const paths = new Paths(dataDir);
  const { capsules, templates } = foldersIn(paths);
  const lostFound = new LostFound(paths);
  const paused = capsules.filter((id) => lostFound.isSaved("capsules", id));
  const whole = templates.filter((storage) => !isNoted(storage) && lostFound.isSaved("templates", storage));
  refuseIfAny(dataDir, paused.length, whole.length, `${file} has no record of any`);
}

function foldersIn(paths: Paths): { capsules: string[]; templates: string[] } {
  return {
    capsules: existsSync(paths.capsules) ? paths.capsuleIds() : [],
    templates: existsSync(paths.templates) ? paths.templateIds() : [],
  };
}

function refuseIfAny(dataDir: string, capsules: number, templates: number, why: string): void {
  if (capsules + templates === 0) return;
  throw new CapsuleError(
    "conflict",
    `${dataDir} has ${capsules} capsules and ${templates} templates, but ${why}: put back the database that belongs to them, ` +
      "or one of a backup; or move the folders capsules and templates elsewhere, to start without them",
  );
}
