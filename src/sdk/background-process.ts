/** A process of a capsule by its tag or PID: one started in the background, or any other that the listing shows. */
import { hasCode, ServiceError } from "./errors.ts";
import { OutputStream } from "./output-stream.ts";
import type { ProcessInfo } from "./resources.ts";
import type { CallOptions, Transport } from "./transport.ts";

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
   * Its exit code, when it ends. Exit codes of processes that have ended are not kept: throws `not_found` for one that
   * is gone already.
   */
  async wait(options: CallOptions = {}): Promise<number> {
    return (await this.attach(options)).wait();
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
