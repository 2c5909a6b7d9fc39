/** A process of a capsule, by tag or PID: one started in the background, or any other. */
import { hasCode, ServiceError } from "./errors.ts";
import { held } from "./held-request.ts";
import { OutputStream } from "./output-stream.ts";
import type { ProcessInfo } from "./resources.ts";
import type { CallOptions, Transport } from "./transport.ts";

export class BackgroundProcess {
  /** Its tag, else its PID. */
  readonly selector: string;
  /** PID inside the capsule; undefined when only the tag is known. */
  readonly pid: number | undefined;
  readonly #transport: Transport;
  readonly #capsulePath: string;
  readonly #path: string;

  /** `path`: the capsule's path in the API. */
  constructor(transport: Transport, path: string, selector: string | number, pid?: number) {
    this.#transport = transport;
    this.selector = String(selector);
    this.pid = pid ?? (/^\d+$/.test(this.selector) ? Number(selector) : undefined);
    this.#capsulePath = path;
    this.#path = `${path}/processes/${encodeURIComponent(this.selector)}`;
  }

  /**
   * Its output from now on; earlier output is not kept. The process is not affected. A process that was started with
   * `stdin: true` can be written to; its input stays open when the stream is closed, until `endStdin`.
   */
  async attach(options: CallOptions = {}): Promise<OutputStream> {
    const refusal = (said: string) => new ServiceError("not_found", said);
    try {
      return await OutputStream.open(this.#transport, `${this.#path}/stream`, { refusal }, options);
    } catch (error) {
      if (!hasCode(error, "cut_off") || (await this.#isThere(options))) throw error;
      throw new ServiceError("not_found", `no process ${this.selector} runs in the capsule`);
    }
  }

  /**
   * Resolves with its exit code when it ends; no time limit by default. Works for an ended process too: the exit codes
   * of the latest 64 processes of a capsule are kept for five minutes. Throws `not_found` when there is none, `timeout`
   * when the process still runs after `timeoutMs`.
   */
  async wait({ signal, timeoutMs = 0 }: CallOptions = {}): Promise<number> {
    const deadline = timeoutMs === 0 ? Number.POSITIVE_INFINITY : performance.now() + timeoutMs;
    for (;;) {
      const path = `${this.#path}/exit`;
      const { exit_code } = await held<{ exit_code: number | null }>(this.#transport, { path, deadline, signal });
      if (exit_code !== null) return exit_code;
      if (performance.now() >= deadline) throw new ServiceError("timeout", `process ${this.selector} still runs`);
    }
  }

  /**
   * Sends the signal to its process group. After SIGKILL (the default) the whole group has ended when this resolves.
   * Throws `not_found` when it has ended already.
   */
  async kill(signal: "SIGKILL" | "SIGTERM" = "SIGKILL", options: CallOptions = {}): Promise<void> {
    await this.#transport.done({ method: "DELETE", path: this.#path, query: { signal }, ...options });
  }

  /** A refused socket does not tell whether the process exists. */
  async #isThere(options: CallOptions): Promise<boolean> {
    const path = `${this.#capsulePath}/processes`;
    const { processes } = await this.#transport.json<{ processes: ProcessInfo[] }>({ method: "GET", path, ...options });
    return processes.some(({ pid, tag }) => tag === this.selector || String(pid) === this.selector);
  }
}
