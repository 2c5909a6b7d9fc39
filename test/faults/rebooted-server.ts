/**
 * A server on the copy of a data folder, as after a reboot: in its own PID namespace it finds none of the processes that
 * the files name, and the kernel ends its VMs with it.
 */
import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, openSync, readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { Client } from "../client.ts";
import { listening } from "../server.ts";
import { ServerLog } from "../server-log.ts";
import { waitFor } from "../wait-for.ts";

const program = resolve(import.meta.dirname, "../../src/main.ts");
/** A journal is written without fsync: a power cut may leave it empty, and ends its VM all the same. */
const unsynced = /"why":"vm\.json cannot be read: .*"msg":"a folder is damaged, or could not be checked"/;
const fresh = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];

export class RebootedServer implements AsyncDisposable {
  readonly #process: ChildProcess;
  readonly dataDir: string;
  readonly client: Client;
  readonly log: ServerLog;

  /** Throws with the server's last lines when it does not start. */
  static async start(dataDir: string, env: Record<string, string>): Promise<RebootedServer> {
    const logFile = join(dataDir, "../rebooted.log");
    const log = openSync(logFile, "w");
    const child = spawn("unshare", [...fresh, process.execPath, program, "serve"], {
      env: { ...process.env, CAPSULE_HOST: "127.0.0.1", CAPSULE_PORT: "0", ...env, CAPSULE_DATA: dataDir },
      stdio: ["ignore", log, "pipe"],
    });
    closeSync(log);
    try {
      const url = await listening(child, createInterface({ input: child.stderr! }));
      const key = readFileSync(join(dataDir, "api-key"), "utf8").trim();
      assert.notEqual(key, "", "the first API key is in its file");
      return new RebootedServer(child, dataDir, await Client.connect(url, key), new ServerLog(logFile, [unsynced]));
    } catch (error) {
      await end(child);
      throw error;
    }
  }

  private constructor(child: ChildProcess, dataDir: string, client: Client, log: ServerLog) {
    this.#process = child;
    this.dataDir = dataDir;
    this.client = client;
    this.log = log;
  }

  entries(folder: string): string[] {
    return readdirSync(join(this.dataDir, folder)).sort();
  }

  /** Resolves when these folders are empty. */
  async emptied(...folders: string[]): Promise<void> {
    for (const folder of folders) {
      await waitFor(`${folder} is empty`, async () => this.entries(folder).length === 0).catch((error) => {
        throw new Error(`${folder} has ${this.entries(folder)}`, { cause: error });
      });
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.client.close();
    await end(this.#process);
  }
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = once(child, "exit");
  child.kill("SIGKILL");
  await gone;
}
