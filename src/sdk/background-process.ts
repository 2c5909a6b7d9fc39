/** A process of a capsule by its tag or PID: one started in the background, or any other that the listing shows. */
import { hasCode, ServiceError } from "./errors.ts";
import { OutputStream } from "./output-stream.ts";
import type { ProcessInfo } from "./resources.ts";
import type { CallOptions, Transport } from "./transport.ts";

/** Of one request that is held until the process ends. */
const holdSec = 60;
const heldMs = (holdSec + 30) * 1_000;

export class BackgroundProcess {
  /** What it is called by: its tag, else its PID. */
  readonly selector: string;
  /** Inside the capsule; undefined when it is called by a tag and has not been attached to. */
  readonly pid: number | undefined;
  readonly #transport: Transport;
  readonly #capsulePath: string;
  readonly #path: string;

  /** `path`: of the capsule in the API. */
  constructor(transport: Transport, path: string, selector: string | number, pid?: number) {
    this.#transport = transport;
    this.selector = String(selector);
    this.pid = pid ?? (/^\d+$/.test(this.selector) ? Number(selector) : undefined);
    this.#capsulePath = path;
    this.#path = `${path}/processes/${encodeURIComponent(this.selector)}`;
  }

  /** Its output from now on; what it said before is not kept. The process does not notice. */
  async attach(options: CallOptions = {}): Promise<OutputStream> {
    const refusal = (said: string) => new ServiceError("not_found", said);
    try {
      return await OutputStream.open(this.#transport, `${this.#path}/stream`, undefined, refusal, options);
    } catch (error) {
      if (!hasCode(error, "cut_off") || (await this.#isThere(options))) throw error;
      throw new ServiceError("not_found", `no process ${this.selector} runs in the capsule`);
    }
  }

  /**
   * Its exit code, when it ends; by default however long that takes. Also of one that has ended already: exit codes are
   * kept for five minutes, those of the latest 64 in a capsule. Throws `not_found` when there is none, `timeout` when it
   * still runs after `timeoutMs`.
   */
  async wait({ signal, timeoutMs = 0 }: CallOptions = {}): Promise<number> {
    const deadline = timeoutMs === 0 ? Number.POSITIVE_INFINITY : performance.now() + timeoutMs;
    for (;;) {
      const leftSec = Math.ceil((deadline - performance.now()) / 1_000);
      const query = { timeout: Math.max(1, Math.min(holdSec, leftSec)) };
      const request = { method: "GET", path: `${this.#path}/exit`, query, signal, timeoutMs: heldMs } as const;
      const { exit_code } = await this.#transport.json<{ exit_code: number | null }>(request);
      if (exit_code !== null) return exit_code;
      if (performance.now() >= deadline) throw new ServiceError("timeout", `process ${this.selector} still runs`);
    }
  }

  /**
   * Sends the signal to it and its whole group. After SIGKILL (the default) all of them are gone when this resolves.
   * Throws `not_found` when it is gone already.
   */
  async kill(signal: "SIGKILL" | "SIGTERM" = "SIGKILL", options: CallOptions = {}): Promise<void> {
    await this.#transport.done({ method: "DELETE", path: this.#path, query: { signal }, ...options });
  }

  /** What a socket that was not accepted does not say. */
  async #isThere(options: CallOptions): Promise<boolean> {
    const path = `${this.#capsulePath}/processes`;
    const { processes } = await this.#transport.json<{ processes: ProcessInfo[] }>({ method: "GET", path, ...options });
    return processes.some(({ pid, tag }) => tag === this.selector || String(pid) === this.selector);
  }
}
