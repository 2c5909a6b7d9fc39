/**
 * A real terminal emulator: a separate tmux server with one window in which a program runs. Tests read the screen, and
 * every change of it is an event.
 */
import assert from "node:assert/strict";
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { promisify } from "node:util";

const run = promisify(execFile);
const waitMs = 120_000;
/** Keeps the pane after its program's end, because tmux sends no event for a pane's last output otherwise. */
const outlived = ["sh", "-c", `trap : INT; "$@"; exec cat`, "sh"];
/** `set-option` needs a server, which needs a session. */
const options = "set-option -g status off ; set-option -g remain-on-exit on ; set-option -g window-size manual";

export interface Size {
  cols: number;
  rows: number;
}

export class Emulator implements AsyncDisposable {
  readonly #name: string;
  readonly #watcher: ChildProcess;
  #changed = Promise.withResolvers<void>();

  static async start(argv: string[], env: Record<string, string>, { cols, rows }: Size): Promise<Emulator> {
    const name = `capsule-test-${process.pid}-${Emulator.#count++}`;
    const begin = ["-L", name, "-f", "/dev/null", "new-session", "-d", "-x", String(cols), "-y", String(rows), "cat"];
    await run("tmux", [...begin, ";", ...options.split(" ")]);
    const emulator = new Emulator(name);
    const set = Object.entries(env).flatMap(([key, value]) => ["-e", `${key}=${value}`]);
    try {
      await emulator.#tmux("respawn-pane", "-k", ...set, [...outlived, ...argv].map(quote).join(" "));
      return emulator;
    } catch (error) {
      await emulator[Symbol.asyncDispose]();
      throw error;
    }
  }

  static #count = 0;

  private constructor(name: string) {
    this.#name = name;
    // tmux reports all output to a client in control mode; it is used as an event that the screen has changed.
    this.#watcher = spawn("tmux", ["-L", name, "-C", "attach"], { stdio: ["pipe", "pipe", "ignore"] });
    createInterface({ input: this.#watcher.stdout! }).on("line", () => {
      this.#changed.resolve();
      this.#changed = Promise.withResolvers();
    });
  }

  /** The lines of the screen, without trailing spaces. */
  async screen(): Promise<string> {
    return this.#tmux("capture-pane", "-p");
  }

  /** Waits until the screen matches, and returns it. */
  async shows(pattern: RegExp): Promise<string> {
    const late = Promise.withResolvers<void>();
    const timer = setTimeout(late.resolve, waitMs);
    try {
      for (;;) {
        const changed = this.#changed.promise;
        const screen = await this.screen();
        if (pattern.test(screen)) return screen;
        const isLate = await Promise.race([changed.then(() => false), late.promise.then(() => true)]);
        if (isLate) assert.fail(`${pattern} did not appear on the screen:\n${await this.screen()}`);
      }
    } finally {
      clearTimeout(timer);
    }
  }

  /** Types the text. */
  async types(text: string): Promise<void> {
    await this.#tmux("send-keys", "-l", "--", text);
  }

  /** Presses keys by tmux's names, such as Enter, Escape, C-c or PageDown. */
  async presses(...keys: string[]): Promise<void> {
    await this.#tmux("send-keys", ...keys);
  }

  /** Pastes the file's content at once. */
  async pastes(file: string): Promise<void> {
    await this.#tmux("load-buffer", file, ";", "paste-buffer", "-r");
  }

  async resizes({ cols, rows }: Size): Promise<void> {
    await this.#tmux("resize-window", "-x", String(cols), "-y", String(rows));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#tmux("kill-server");
    this.#watcher.kill();
  }

  async #tmux(...args: string[]): Promise<string> {
    return (await run("tmux", ["-L", this.#name, ...args])).stdout;
  }
}

function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
