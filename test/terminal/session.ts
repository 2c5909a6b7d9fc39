/** A capsule's terminal session in a real terminal emulator. */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestCapsule } from "../client.ts";
import { Emulator, type Size } from "./emulator.ts";

const bridge = join(import.meta.dirname, "bridge.ts");
const defaultSize: Size = { cols: 80, rows: 24 };
const prompt = "ready> ";
const shell = {
  type: "start",
  args: ["--norc", "--noprofile", "-i"],
  envs: { PS1: prompt, LESS: "", HISTFILE: "" },
};

export class Session implements AsyncDisposable {
  readonly emulator: Emulator;
  readonly #folder: string;

  /** A new shell, at its prompt. */
  static async start(capsule: TestCapsule, size = defaultSize): Promise<Session> {
    const session = await Session.#open(capsule, shell, size);
    try {
      await session.isAtPrompt();
      return session;
    } catch (error) {
      await session[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** A window on an existing session. */
  static rejoin(capsule: TestCapsule, tag: string, size = defaultSize): Promise<Session> {
    return Session.#open(capsule, { type: "connect", tag }, size);
  }

  static async #open({ client, path }: TestCapsule, first: object, size: Size): Promise<Session> {
    const folder = await mkdtemp(join(tmpdir(), "capsule-terminal-"));
    const url = `${client.url.replace("http", "ws")}${path}/pty`;
    const env = { CAPSULE_API_KEY: client.key, BRIDGE_TAG: join(folder, "tag") };
    const emulator = await Emulator.start([process.execPath, bridge, url, JSON.stringify(first)], env, size);
    return new Session(emulator, folder);
  }

  private constructor(emulator: Emulator, folder: string) {
    this.emulator = emulator;
    this.#folder = folder;
  }

  get tag(): Promise<string> {
    return readFile(join(this.#folder, "tag"), "utf8");
  }

  /** Waits for the shell's prompt. */
  async isAtPrompt(): Promise<void> {
    await this.emulator.shows(/^ready>$/m);
  }

  /** Types a command line. */
  async enters(line: string): Promise<void> {
    await this.emulator.types(line);
    await this.emulator.presses("Enter");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.emulator[Symbol.asyncDispose]();
    await rm(this.#folder, { recursive: true, force: true });
  }
}
