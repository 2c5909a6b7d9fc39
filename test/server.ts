/**
 * A real server for tests: `capsule serve` on a new data folder, which is removed afterwards with every process that
 * belongs to it. Images are linked from `$CAPSULE_IMAGES_FROM`, by default the repository's.
 */

import { type ChildProcess, execFile, spawn, spawnSync } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { closeSync, existsSync, openSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { copyFile, mkdir, mkdtemp, readFile, rename, rm, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface, type Interface } from "node:readline";
import { promisify } from "node:util";
import { borrowBase, lendBases } from "./bases.ts";
import { ServerLog } from "./server-log.ts";
import { waitFor } from "./wait-for.ts";

const repository = resolve(import.meta.dirname, "..");
const ownProgram = join(repository, "src/main.ts");
export const ownImages = process.env.CAPSULE_IMAGES_FROM ?? join(repository, ".capsule/images");
/** The first start boots the base template, which is slow under software emulation. */
const startDeadlineMs = 600_000;
const stopDeadlineMs = 240_000;
const keptLines = 40;

/** Logged at each start. */
const unjailed = /"msg":"QEMU runs without a jail: /;

/** More than most machines have: tests share one team, and their capsules use little of their memory. */
const teamMemoryMb = 1 << 20;

export interface ServerOptions {
  /** Added to this process's environment. */
  env?: Record<string, string>;
  /** Parent of its folder. */
  parent?: string;
  /** An existing data folder, which is moved into the server's folder. */
  from?: string;
  /** Another version's program, for its first life. */
  program?: string;
  /** Another version's images; its bases are kept beside them. */
  images?: string;
  /** Keep QEMU in its own data folder, instead of one that is shared by all servers of the tests. */
  keepsQemu?: boolean;
  /** Called with the server before its first start; resolves with more of its environment. */
  prepare?: (server: Server) => Promise<Record<string, string>>;
  /** Errors that the test causes. Others in the server's log make its disposal throw. */
  errors?: readonly RegExp[];
}

/** Servers of this process. They end with it, also when it is told to end; SIGKILL alone leaves them. */
const running = new Set<Server>();
let isEndingWatched = false;

function watchEnding(): void {
  if (isEndingWatched) return;
  isEndingWatched = true;
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => process.exit(1));
  process.once("exit", () => {
    for (const server of running) server.abandon();
  });
}

export class Server implements AsyncDisposable {
  readonly dataDir: string;
  /** Its address, with another port after each start. */
  url = "";
  /** A key of the team `default`. */
  apiKey = "";
  /** The log of all its starts. */
  readonly log: ServerLog;
  readonly #folder: string;
  readonly #env: Record<string, string>;
  /** The one of its last start, or of its first. */
  #program: string;
  #process: ChildProcess | undefined;
  #progress: Interface | undefined;

  static async start(options: ServerOptions = {}): Promise<Server> {
    const { env = {}, parent = tmpdir(), from, program = ownProgram, images = ownImages, keepsQemu = false } = options;
    const isJailed = (env.CAPSULE_JAIL ?? process.env.CAPSULE_JAIL) !== "off";
    const errors = [...(options.errors ?? []), ...(isJailed ? [] : [unjailed])];
    if (!existsSync(images))
      throw new Error(`no built images in ${images}; run ./dev image, or set CAPSULE_IMAGES_FROM`);
    const store = resolve(images, "..");
    const folder = await mkdtemp(join(parent, "capsule-test-"));
    watchEnding();
    const server = new Server(folder, { NODE_COMPILE_CACHE: join(store, "compiled"), ...env }, errors, program);
    if (from === undefined) await mkdir(server.dataDir, { mode: 0o700 });
    else await rename(from, server.dataDir);
    if (from === undefined) await symlink(resolve(images), join(server.dataDir, "images"));
    if (from === undefined && !keepsQemu) await linkQemu(join(store, "qemu"), server.dataDir);
    // The cached choice of accelerator; without it every server would probe KVM again.
    const [shared, own] = [store, server.dataDir].map((data) => join(data, "accelerator.json")) as [string, string];
    if (existsSync(shared)) await copyFile(shared, own);
    try {
      if (from === undefined) await borrowBase(join(store, "bases"), server.dataDir);
      Object.assign(server.#env, await options.prepare?.(server));
      await server.start({}, program);
      await lendBases(server.dataDir, join(store, "bases"));
      await shareIfChanged(own, shared);
    } catch (error) {
      await server[Symbol.asyncDispose]();
      throw error;
    }
    return server;
  }

  private constructor(folder: string, env: Record<string, string>, errors: readonly RegExp[], program: string) {
    running.add(this);
    this.#program = program;
    this.#folder = folder;
    this.log = new ServerLog(join(folder, "server.log"), errors);
    this.dataDir = join(folder, "data");
    const own = { CAPSULE_DATA: this.dataDir, CAPSULE_HOST: "127.0.0.1", CAPSULE_PORT: "0" };
    this.#env = { ...own, CAPSULE_RUNNING_MEMORY_MAX_MB: String(teamMemoryMb), ...env };
  }

  /** For a test process that exits early: runs `capsule down` synchronously, ignores its result, and removes the folder. */
  abandon(): void {
    this.#process?.kill("SIGKILL");
    spawnSync(process.execPath, [ownProgram, "down"], {
      env: { ...process.env, ...this.#env },
      timeout: stopDeadlineMs,
    });
    if (process.env.CAPSULE_TEST_KEEP === undefined) rmSync(this.#folder, { recursive: true, force: true });
  }

  /** Beside this process's. */
  get environment(): Readonly<Record<string, string>> {
    return this.#env;
  }

  get pid(): number | undefined {
    return this.#process?.pid;
  }

  /** Starts the server again after `kill`; `env` and the program `main` are for this start only. */
  async start(env: Record<string, string> = {}, main = ownProgram): Promise<void> {
    this.#program = main;
    const log = openSync(this.log.file, "a");
    const [program, ...args] = main === ownProgram ? [join(repository, "capsule")] : [process.execPath, main];
    const child = spawn(program!, [...args, "serve"], {
      env: { ...process.env, ...this.#env, ...env },
      stdio: ["ignore", log, "pipe"],
    });
    closeSync(log);
    this.#process = child;
    this.#progress = createInterface({ input: child.stderr! });
    this.url = await listening(child, this.#progress);
    this.apiKey = (await readFile(join(this.dataDir, "api-key"), "utf8")).trim();
  }

  /**
   * Resolves when the capsules that ran before the start are adopted, or the server has ended. A start waits a second for their agents,
   * a request to one of them 5 s; then it is 503.
   */
  async adopted(): Promise<void> {
    const hasEnded = () =>
      this.#process === undefined || this.#process.exitCode !== null || this.#process.signalCode !== null;
    const metrics = () => fetch(new URL("/metrics", this.url)).then((answer) => answer.text());
    await waitFor("the capsules are adopted", async () => {
      return /^capsule_capsules_adopting 0$/m.test(await metrics().catch(() => "")) || hasEnded();
    });
  }

  /** Sends a signal that does not end the server; resolves with its line of progress about it. */
  async signal(name: NodeJS.Signals): Promise<string> {
    const { promise: answer, resolve } = Promise.withResolvers<string>();
    const hear = (line: string) => line.includes(name) && resolve(line);
    this.#progress?.on("line", hear);
    this.#process?.kill(name);
    return answer.finally(() => this.#progress?.off("line", hear));
  }

  /** Resolves at the end of the server process with its signal; null when it exited. */
  async exited(): Promise<NodeJS.Signals | null> {
    const child = this.#process;
    if (child !== undefined && child.exitCode === null && child.signalCode === null) await once(child, "exit");
    return child?.signalCode ?? null;
  }

  /** Ends the server process alone and waits for its end; its VMs continue. */
  async kill(signal: "SIGTERM" | "SIGKILL"): Promise<void> {
    const child = this.#process;
    this.#process = undefined;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const gone = once(child, "exit");
    child.kill(signal);
    await gone;
  }

  /** Runs an operator's command of the server's version on this data folder; resolves with its output. */
  operate(...args: string[]): Promise<string> {
    return this.operateWithin(stopDeadlineMs, ...args);
  }

  /** As `operate`, for a command that waits longer, as for capsules that move: it is ended after so many milliseconds. */
  async operateWithin(deadlineMs: number, ...args: string[]): Promise<string> {
    const running = promisify(execFile)(process.execPath, [this.#program, ...args], {
      env: { ...process.env, ...this.#env },
      timeout: deadlineMs,
    });
    running.child.stdin?.end(); // a command that asks for a secret gets none
    return (await running).stdout;
  }

  /** A new key of the team, which is created if it does not exist. */
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

  /** Ends everything. Throws when `capsule down` has left a process, or the log has an error that the test did not announce. */
  async [Symbol.asyncDispose](): Promise<void> {
    running.delete(this);
    await this.operate("down");
    await this.kill("SIGKILL");
    const remaining = processesOf(this.#folder);
    for (const { pid } of remaining) process.kill(pid, "SIGKILL");
    const logged = await this.log.assertExpected().catch((error: Error) => error);
    if (process.env.CAPSULE_TEST_KEEP === undefined) await rm(this.#folder, { recursive: true, force: true });
    else console.error(`kept ${this.#folder}`);
    if (remaining.length > 0) {
      const list = remaining.map(({ pid, command }) => `${pid} ${command.slice(0, 200)}`).join("\n");
      throw new Error(`capsule down left processes:\n${list}`);
    }
    if (logged !== undefined) throw logged;
  }
}

/** Copies of the installed QEMU that all servers of the tests share. */
async function linkQemu(shared: string, dataDir: string): Promise<void> {
  await mkdir(shared, { recursive: true, mode: 0o700 });
  await symlink(shared, join(dataDir, "qemu"));
}

/** Replaces the shared cache atomically when it differs: another version of the server may have cached less. */
async function shareIfChanged(own: string, shared: string): Promise<void> {
  if (existsSync(shared) && readFileSync(own).equals(readFileSync(shared))) return;
  const temporary = `${shared}.${randomUUID()}`; // a pid would not do: one process starts several servers
  await copyFile(own, temporary);
  await rename(temporary, shared);
}

/** Resolves with the URL that a starting server prints. Throws with its last lines when it ends before. */
export async function listening(child: ChildProcess, lines: Interface): Promise<string> {
  const output: string[] = [];
  const timer = setTimeout(() => child.kill("SIGKILL"), startDeadlineMs);
  try {
    return await new Promise((resolve, reject) => {
      lines.on("line", (line) => {
        output.push(line);
        if (output.length > keptLines) output.shift();
        const url = /^capsule: listening on (\S+)/.exec(line)?.[1];
        if (url !== undefined) resolve(url);
      });
      child.once("error", reject);
      child.once("close", (code, signal) => {
        reject(new Error(`capsule serve ended (${signal ?? code}) before it listened:\n${output.join("\n")}`));
      });
    });
  } finally {
    clearTimeout(timer);
  }
}

/** Processes whose command line contains the folder's path. */
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
    return ""; // ended meanwhile
  }
}
