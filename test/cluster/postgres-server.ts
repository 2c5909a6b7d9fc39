/** A PostgreSQL of the test's own: Debian's programs, in a folder of their own, reached by a socket in it. */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import {
  chmodSync,
  chownSync,
  closeSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { createConnection } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after } from "node:test";
import { waitFor } from "../wait-for.ts";

const programs = "/usr/lib/postgresql";

/** Why the tests of this file are skipped; false: they run. */
export const lacksPostgres: string | false =
  programFolder() === undefined ? "PostgreSQL, of Debian's package postgresql" : false;

export class PostgresServer {
  readonly folder: string;
  /** Path of the socket that it listens on. */
  readonly socket: string;
  /** Path of its log, where that is written. */
  log: string | undefined;
  #process: ChildProcess | undefined;
  #databases = 0;
  #dumps = 0;

  private constructor(folder: string) {
    this.folder = folder;
    this.socket = join(folder, ".s.PGSQL.5432");
  }

  /** Starts one, which is removed after the file's tests. */
  static async start(options: { logs?: boolean } = {}): Promise<PostgresServer> {
    const server = await PostgresServer.startIn(mkdtempSync(join(tmpdir(), "capsule-postgres-")), options);
    after(async () => {
      await server.stop();
      rmSync(server.folder, { recursive: true, force: true });
    });
    return server;
  }

  /** Starts one in a folder that is made where there is none. */
  static async startIn(folder: string, { logs = false } = {}): Promise<PostgresServer> {
    mkdirSync(folder, { recursive: true });
    const server = new PostgresServer(folder);
    if (logs) server.log = join(folder, "log");
    const user = userOf();
    if (user !== undefined) chownSync(folder, user.uid, user.gid);
    chmodSync(folder, 0o755);
    makeDatabases(server.#data, "capsule");
    await server.resume();
    return server;
  }

  /** Starts its processes. */
  async resume(): Promise<void> {
    const settings = [
      "fsync=off",
      "max_connections=200",
      "listen_addresses=",
      `unix_socket_directories=${this.folder}`,
    ];
    const [program, words] = asUser([
      postgresProgram("postgres"),
      ...["-D", this.#data, ...settings.flatMap((each) => ["-c", each])],
    ]);
    const log = this.log === undefined ? "ignore" : openSync(this.log, "a");
    const started = spawn(program!, words, { stdio: ["ignore", "ignore", log] });
    if (typeof log === "number") closeSync(log);
    this.#process = started;
    await waitFor("PostgreSQL to accept connections", async () => {
      if (started.exitCode !== null) throw new Error(`PostgreSQL ended with ${started.exitCode}`);
      return (await this.#isUp()) ? true : undefined;
    });
  }

  /** Ends its processes, as a crash does. */
  async stop(): Promise<void> {
    const ending = this.#process;
    this.#process = undefined;
    if (ending === undefined || ending.exitCode !== null) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    ending.once("exit", () => resolve());
    ending.kill("SIGQUIT");
    await promise;
  }

  /** Keeps what it has now, for `putBack`. Its connections end. */
  async save(): Promise<void> {
    await this.stop();
    rmSync(this.#saved, { recursive: true, force: true });
    cpSync(this.#data, this.#saved, { recursive: true, preserveTimestamps: true });
    this.#own(this.#saved);
    await this.resume();
  }

  /** It has forgotten all since then, as a replica that is promoted: on another timeline. */
  async putBack(): Promise<void> {
    await this.stop();
    rmSync(this.#data, { recursive: true, force: true });
    renameSync(this.#saved, this.#data);
    rmSync(join(this.#data, "postmaster.pid"), { force: true });
    writeFileSync(join(this.#data, "standby.signal"), "");
    this.#own(this.#data);
    await this.resume();
    runProgram("psql", [...this.#client, "--dbname=postgres", "--command=SELECT pg_promote()"]);
  }

  /** The URL of a new, empty database. */
  newDatabase(): string {
    const name = `test_${++this.#databases}`;
    runProgram("createdb", [...this.#client, name]);
    return `postgres://capsule@localhost/${name}?host=${encodeURIComponent(this.folder)}`;
  }

  /** Writes what the database of that URL has into a file, whose path it returns. */
  dump(url: string): string {
    const path = join(this.folder, `dump-${++this.#dumps}`);
    runProgram("pg_dump", [...this.#client, "--format=custom", "--file", path, nameIn(url)]);
    return path;
  }

  /** Restores a dump into the database of that URL: over the tables that it has, or, `isAnew`, into another one of its name. */
  restore(url: string, path: string, isAnew: boolean): void {
    const name = nameIn(url);
    if (isAnew) {
      runProgram("dropdb", [...this.#client, "--force", name]);
      runProgram("createdb", [...this.#client, name]);
    }
    const options = ["--single-transaction", ...(isAnew ? [] : ["--clean"])];
    runProgram("pg_restore", [...this.#client, ...options, "--dbname", name, path]);
  }

  get #client(): string[] {
    return ["--host", this.folder, "--username=capsule"];
  }

  get #data(): string {
    return join(this.folder, "data");
  }

  get #saved(): string {
    return join(this.folder, "saved");
  }

  /** PostgreSQL has a user of its own. */
  #own(folder: string): void {
    const user = userOf();
    if (user !== undefined) execFileSync("chown", ["-R", `${user.uid}:${user.gid}`, folder]);
    chmodSync(folder, 0o700);
  }

  async #isUp(): Promise<boolean> {
    try {
      runProgram("pg_isready", ["--host", this.folder]);
    } catch {
      return false;
    }
    const socket = createConnection(this.socket);
    const { promise, resolve } = Promise.withResolvers<boolean>();
    socket.once("connect", () => resolve(true)).once("error", () => resolve(false));
    return await promise.finally(() => socket.destroy());
  }
}

/** The path of one of its programs. */
export function postgresProgram(name: string): string {
  return join(programFolder()!, name);
}

/** Makes a new folder with empty databases, which belong to that user of theirs and trust every client. */
export function makeDatabases(data: string, owner: string): void {
  const user = userOf();
  mkdirSync(data, { mode: 0o700 });
  if (user !== undefined) chownSync(data, user.uid, user.gid);
  const options = [`--username=${owner}`, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"];
  runProgram("initdb", ["--pgdata", data, ...options]);
}

function nameIn(url: string): string {
  return new URL(url).pathname.slice(1);
}

function runProgram(name: string, words: string[]): void {
  const [first, rest] = asUser([postgresProgram(name), ...words]);
  execFileSync(first!, rest, { stdio: ["ignore", "ignore", "pipe"], cwd: "/" });
}

/** PostgreSQL refuses to run as root: then as the user of Debian's package, and never longer than this process. */
function asUser(words: string[]): [string | undefined, string[]] {
  const end = ["--pdeathsig", "QUIT"];
  const as = userOf() === undefined ? [] : ["--reuid", "postgres", "--regid", "postgres", "--clear-groups"];
  return ["setpriv", [...as, ...end, ...words]];
}

function userOf(): { uid: number; gid: number } | undefined {
  if (process.getuid?.() !== 0) return undefined;
  const id = (flag: string) => Number(execFileSync("id", [flag, "postgres"], { encoding: "utf8" }));
  return { uid: id("-u"), gid: id("-g") };
}

function programFolder(): string | undefined {
  if (!existsSync(programs)) return undefined;
  const versions = readdirSync(programs).sort((a, b) => Number(b) - Number(a));
  return versions.map((each) => join(programs, each, "bin")).find((each) => existsSync(join(each, "initdb")));
}
