/** Services that the user has logged in to: `contexts.json`, mode 0600, in the user's folder of settings. */
import { accessSync, chmodSync, constants, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { Failure } from "./failures.ts";

export interface Context {
  url: string;
  apiKey: string;
}

export interface Contexts {
  /** The chosen one. */
  current: string | null;
  contexts: Record<string, Context>;
}

const none: Contexts = { current: null, contexts: {} };

function folder(): string {
  return join(process.env.XDG_CONFIG_HOME || join(homedir(), ".config"), "capsule");
}

export function contextsFile(): string {
  return join(folder(), "contexts.json");
}

/** Throws a Failure when the file cannot be read. */
export function readContexts(): Contexts {
  let text: string;
  try {
    text = readFileSync(contextsFile(), "utf8");
  } catch (error) {
    if (["ENOENT", "ENOTDIR"].includes((error as NodeJS.ErrnoException).code ?? "")) return none;
    throw new Failure(`${contextsFile()} cannot be read: ${(error as Error).message}`);
  }
  try {
    return checked(JSON.parse(text));
  } catch {
    throw new Failure(`${contextsFile()} is damaged`, "Remove it, and log in again: capsule login URL");
  }
}

/** None in another user's folder, as after `su`. */
function readableContexts(): Contexts {
  try {
    accessSync(folder(), constants.R_OK | constants.X_OK);
  } catch {
    return none;
  }
  return readContexts();
}

/** The chosen context; undefined: there is none. */
export function currentContext(): Context | undefined {
  const { current, contexts } = readableContexts();
  return current === null ? undefined : contexts[current];
}

export function writeContexts(contexts: Contexts): void {
  mkdirSync(folder(), { recursive: true, mode: 0o700 });
  const made = `${contextsFile()}.${process.pid}`;
  writeFileSync(made, `${JSON.stringify(contexts, undefined, 2)}\n`, { mode: 0o600 });
  chmodSync(made, 0o600);
  renameSync(made, contextsFile());
}

function checked(value: unknown): Contexts {
  const { current, contexts } = value as Contexts;
  const isWhole = Object.values(contexts).every(
    ({ url, apiKey }) => typeof url === "string" && typeof apiKey === "string",
  );
  if (!isWhole || (current !== null && typeof current !== "string")) throw new TypeError("no contexts");
  return { current, contexts: { ...contexts } };
}
