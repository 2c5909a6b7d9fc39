/**
 * A real server for tests: `capsule serve` on a data folder of its own, which is gone afterwards together with every
 * process that belonged to it. The built images are borrowed from `$CAPSULE_IMAGES_FROM`, by default the repository's.
 */

import { type ChildProcess, execFile, spawn, spawnSync } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { closeSync, existsSync, openSync, readdirSync, readFileSync } from "node:fs";
import { copyFile, mkdir, mkdtemp, readFile, rename, rm, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";
import { borrowBase, lendBases } from "./bases.ts";

const repository = resolve(import.meta.dirname, "..");
const program = join(repository, "src/main.ts");
/** The first start boots the base template, in software emulation if need be. */
const startDeadlineMs = 600_000;
const stopDeadlineMs = 240_000;
const keptLines = 40;

export interface ServerOptions {
  /** On top of the process's own environment. */
  env?: Record<string, string>;
  /** Where to make its folder. */
  parent?: string;
  /** A data folder that is there already; it is moved into the server's own folder. */
  from?: string;
}

export class Server implements AsyncDisposable {
  readonly dataDir: string;
  /** Where it listens; another port after each start. */
  url = "";
  /** Of the team `default`. */
  apiKey = "";
  readonly #folder: string;
  readonly #env: Record<string, string>;
  #process: ChildProcess | undefined;

  static async start({ env = {}, parent = tmpdir(), from }: ServerOptions = {}): Promise<Server> {
    const images = process.env.CAPSULE_IMAGES_FROM ?? join(repository, ".capsule/images");
    if (!existsSync(images))
      throw new Error(`no built images in ${images}; run ./dev image, or set CAPSULE_IMAGES_FROM`);
    const store = resolve(images, "..");
    const folder = await mkdtemp(join(parent, "capsule-test-"));
    const server = new Server(folder, { NODE_COMPILE_CACHE: join(store, "compiled"), ...env });
    if (from === undefined) await mkdir(server.dataDir, { mode: 0o700 });
    else await rename(from, server.dataDir);
    if (from === undefined) await symlink(resolve(images), join(server.dataDir, "images"));
    // The choice of accelerator holds until the machine boots again; without it every server would try KVM anew.
    const [kept, own] = [store, server.dataDir].map((data) => join(data, "accelerator.json")) as [string, string];
    if (existsSync(kept)) await copyFile(kept, own);
    try {
      if (from === undefined) await borrowBase(join(store, "bases"), server.dataDir);
      await server.start();
      await lendBases(server.dataDir, join(store, "bases"));
      await keepNews(own, kept);
    } catch (error) {
      await server[Symbol.asyncDispose]();
      throw error;
    }
    return server;
  }

  private constructor(folder: string, env: Record<string, string>) {
    this.#folder = folder;
    this.dataDir = join(folder, "data");
    this.#env = { CAPSULE_DATA: this.dataDir, CAPSULE_HOST: "127.0.0.1", CAPSULE_PORT: "0", ...env };
  }

  /** For a test process that ends early: `capsule down`, without waiting for what comes of it. */
  abandon(): void {
    this.#process?.kill("SIGKILL");
    spawnSync(process.execPath, [program, "down"], { env: { ...process.env, ...this.#env }, timeout: stopDeadlineMs });
  }

  get pid(): number | undefined {
    return this.#process?.pid;
  }

  /** What it logged, in every life. */
  get logFile(): string {
    return join(this.#folder, "server.log");
  }

  /** Log lines of requests that ended as internal_error, which is a bug whatever was asked. */
  async internalErrors(): Promise<string[]> {
    const lines = (await readFile(this.logFile, "utf8")).split("\n");
    return lines.filter((line) => line.includes('"code":"internal_error"'));
  }

  /** Again, after `kill`; `env` and another version's program for this life only. */
  async start(env: Record<string, string> = {}, main = program): Promise<void> {
    const log = openSync(this.logFile, "a");
    const child = spawn(process.execPath, [main, "serve"], {
      env: { ...process.env, ...this.#env, ...env },
      stdio: ["ignore", log, "pipe"],
    });
    closeSync(log);
    this.#process = child;
    this.url = await listening(child);
    this.apiKey = (await readFile(join(this.dataDir, "api-key"), "utf8")).trim();
  }

  /** Resolves with the signal that ended the server process, null when it exited, as soon as it is gone. */
  async exited(): Promise<NodeJS.Signals | null> {
    const child = this.#process;
    if (child !== undefined && child.exitCode === null && child.signalCode === null) await once(child, "exit");
    return child?.signalCode ?? null;
  }

  /** The server process alone; its VMs run on. Resolves when it is gone. */
  async kill(signal: "SIGTERM" | "SIGKILL"): Promise<void> {
    const child = this.#process;
    this.#process = undefined;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const gone = once(child, "exit");
    child.kill(signal);
    await gone;
  }

  /** One of the operator's commands on this data folder; resolves with what it printed. */
  async operate(...args: string[]): Promise<string> {
    const { stdout } = await promisify(execFile)(process.execPath, [program, ...args], {
      env: { ...process.env, ...this.#env },
      timeout: stopDeadlineMs,
    });
    return stdout;
  }

  /** A new key of the team, which is made if there is none of that name. */
  async createKey(team: string, label = ""): Promise<string> {
    return (await this.operate("admin", "keys", "create", "--team", team, "--name", label)).trim();
  }

  /** Revokes the keys of this label. */
  async revokeKeys(label: string): Promise<void> {
    const rows = (await this.operate("admin", "keys", "list")).trim().split("\n");
    for (const [id, , name] of rows.map((row) => row.split("\t"))) {
      if (id !== undefined && name === label) await this.operate("admin", "keys", "revoke", id);
    }
  }

  /** Ends everything. Throws when `capsule down` left a process behind. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.operate("down");
    await this.kill("SIGKILL");
    const left = processesOf(this.#folder);
    for (const { pid } of left) process.kill(pid, "SIGKILL");
    if (process.env.CAPSULE_TEST_KEEP === undefined) await rm(this.#folder, { recursive: true, force: true });
    else console.error(`kept ${this.#folder}`);
    if (left.length > 0) {
      const said = left.map(({ pid, command }) => `${pid} ${command.slice(0, 200)}`).join("\n");
      throw new Error(`processes were left behind by capsule down:\n${said}`);
    }
  }
}

/** What is kept may have been found out by a version that remembered less: it is replaced, in one piece. */
async function keepNews(own: string, kept: string): Promise<void> {
  if (existsSync(kept) && readFileSync(own).equals(readFileSync(kept))) return;
  const half = `${kept}.${randomUUID()}`; // servers start side by side, of one process too
  await copyFile(own, half);
  await rename(half, kept);
}

/** Resolves with the URL that a starting server prints. Throws with its last words when it does not come up. */
async function listening(child: ChildProcess): Promise<string> {
  const said: string[] = [];
  const timer = setTimeout(() => child.kill("SIGKILL"), startDeadlineMs);
  const lines = createInterface({ input: child.stderr! });
  try {
    return await new Promise((resolve, reject) => {
      lines.on("line", (line) => {
        said.push(line);
        if (said.length > keptLines) said.shift();
        const url = /^capsule: listening on (\S+)/.exec(line)?.[1];
        if (url !== undefined) resolve(url);
      });
      child.once("error", reject);
      child.once("close", (code, signal) => {
        reject(new Error(`capsule serve ended (${signal ?? code}) before it listened:\n${said.join("\n")}`));
      });
    });
  } finally {
    clearTimeout(timer);
  }
}

/** Processes whose command line carries the folder's path. */
export function processesOf(folder: string): { pid: number; command: string }[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map((name) => ({ pid: Number(name), command: commandOf(name) }))
    .filter(({ command }) => command.includes(folder));
}

function commandOf(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ");
  } catch {
    return ""; // it has just ended
  }
}
