/** The data folder of this machine, and the refusal of another user's. */
import { accessSync, constants, lstatSync, readFileSync, type Stats } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { Failure } from "./failures.ts";

export function dataDir(): string {
  return resolve(process.env.CAPSULE_DATA || resolve(import.meta.dirname, "../../.capsule"));
}

/** The text of one of its files; undefined: there is none. Throws a Failure when another user's folder hides it. */
export function textInDataFolder(name: string): string | undefined {
  const path = join(dataDir(), name);
  try {
    return readFileSync(path, "utf8").trim() || undefined;
  } catch (error) {
    if (isDenied(error)) throw new Failure(ownership(path), "Use sudo, or set CAPSULE_URL and CAPSULE_API_KEY.");
    return undefined;
  }
}

/** Whose folder it is, if this user may not work in it. A folder that does not exist yet is nobody's. */
export function foreignOwner(): string | undefined {
  try {
    accessSync(dataDir(), constants.R_OK | constants.W_OK | constants.X_OK);
    return undefined;
  } catch (error) {
    return isDenied(error) ? ownership(dataDir()) : undefined;
  }
}

function isDenied(error: unknown): boolean {
  return (error as NodeJS.ErrnoException).code === "EACCES";
}

/** Names the first path upwards that can be looked at, and its owner. */
function ownership(path: string): string {
  const stats = statsOf(path);
  if (stats === undefined) return ownership(dirname(path));
  const owner = stats.uid === 0 ? "root" : `the user with id ${stats.uid}`;
  return `${path} belongs to ${owner}, and this user may not use it`;
}

function statsOf(path: string): Stats | undefined {
  try {
    return lstatSync(path);
  } catch {
    return undefined;
  }
}
