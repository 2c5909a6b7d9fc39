/** A process of a capsule, by tag or PID: one started in the background, or any other. */
import { type Bytes, concatenated, utf8Text } from "./bytes.ts";
import { hasCode, ServiceError } from "./errors.ts";
import { held } from "./held-request.ts";
import { refuseUnknown } from "./options.ts";
import { collect, OutputStream } from "./output-stream.ts";
import type { ProcessInfo } from "./resources.ts";
import { sleep } from "./retry.ts";
import type { CallOptions, Transport } from "./transport.ts";

/** Cuts in a row, each before any output, after which `result` throws; the wait grows by this much after each. */
const cutsMax = 5;
const cutDelayMs = 200;

export interface LogsOptions extends CallOptions {
  /** Default: both, in the order in which the process wrote. */
  stream?: "both" | "stdout" | "stderr" | undefined;
  /** Only the last lines, so many. */
  tail?: number | undefined;
}

/** The kept output of a process. */
export interface KeptOutput {
  bytes: Bytes;
  /** The same as text; invalid UTF-8 becomes U+FFFD. */
  text: string;
  /** Bytes of both streams that were written before and are no longer kept. */
  droppedBytes: number;
}

export interface AttachOptions extends CallOptions {
  /**
   * Where the output begins: `start`: with what is kept, also of a process that has ended; `now`; or the `nextOffset` of an
   * earlier stream. Default: `now`.
   */
  from?: "start" | "now" | number | undefined;
}

/** The end of a process, with its kept output. */
export interface ProcessResult {
  stdout: string;
  stderr: string;
  stdoutBytes: Bytes;
  stderrBytes: Bytes;
  exitCode: number;
  /** Bytes of both streams that are no longer kept. */
  droppedBytes: number;
}

const resultMaxBytes = 16 * 1024 * 1024;

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

  /** Its kept output: the last 1 MiB, until five minutes after its end. Throws `not_found` when nothing is kept. */
  async logs({ stream, tail, ...options }: LogsOptions = {}): Promise<KeptOutput> {
    const query = { stream, tail };
    const response = await this.#transport.response({ method: "GET", path: `${this.#path}/logs`, query, ...options });
    const bytes = new Uint8Array(await response.arrayBuffer());
    const droppedBytes = Number(response.headers.get("x-dropped-bytes") ?? 0);
    return { bytes, text: utf8Text(bytes), droppedBytes };
  }

  /**
   * Gathers its output, from the first byte that is kept to its end, up to 16 MiB of each stream. Output beyond that is read
   * and discarded. A connection that is cut is made again where it was.
   */
  async result(options: CallOptions = {}): Promise<ProcessResult> {
    const parts = { stdout: [] as Bytes[], stderr: [] as Bytes[] };
    let droppedBytes = 0;
    let cuts = 0;
    for (let from: "start" | number = "start"; ; ) {
      const stream = await this.attach({ ...options, from });
      try {
        const { stdout, stderr, exitCode } = await collect(stream, resultMaxBytes, parts);
        const [stdoutBytes, stderrBytes] = [concatenated(stdout), concatenated(stderr)];
        const text = { stdout: utf8Text(stdoutBytes), stderr: utf8Text(stderrBytes) };
        return { ...text, stdoutBytes, stderrBytes, exitCode, droppedBytes: droppedBytes + stream.droppedBytes };
      } catch (error) {
        if (!hasCode(error, "cut_off")) throw error;
        if (stream.nextOffset === undefined) {
          cuts += 1; // before its first piece
          if (cuts > cutsMax) throw error;
          await sleep(cuts * cutDelayMs, options.signal);
          continue;
        }
        cuts = 0;
        droppedBytes += stream.droppedBytes;
        from = stream.nextOffset;
      }
    }
  }

  /**
   * Its output from now on, or with `from` kept output first, then live, without a gap. The process is not affected. If
   * it was started with `stdin: true`, it can be written to; its input stays open when the stream is closed, until `endStdin`.
   */
  async attach({ from = "now", ...options }: AttachOptions = {}): Promise<OutputStream> {
    const refusal = (said: string) => new ServiceError("not_found", said);
    try {
      return await OutputStream.open(this.#transport, `${this.#path}/stream`, { refusal, from }, options);
    } catch (error) {
      if (!hasCode(error, "cut_off")) throw error;
      if (from !== "now") {
        const { bytes, droppedBytes } = await this.logs(options); // throws where nothing is kept
        const written = droppedBytes + bytes.length;
        if (from === "start" || from <= written) throw error;
        throw new ServiceError("invalid_request", `from is ${from}, and ${written} bytes are written`);
      }
      if (await this.#isThere(options)) throw error;
      throw new ServiceError("not_found", `no process ${this.selector} runs in the capsule`);
    }
  }

  /**
   * Resolves with its exit code when it ends; no time limit by default. Works for an ended process too: the exit codes
   * of the latest 64 processes of a capsule are kept for five minutes. Throws `not_found` when there is none, `timeout`
   * when the process still runs after `timeoutMs`.
   */
  async wait({ signal, timeoutMs = 0, ...unknown }: CallOptions = {}): Promise<number> {
    refuseUnknown("wait", unknown);
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
