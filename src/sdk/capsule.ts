/** One capsule, and all that can be done with it. */
import { captureSubject } from "../wire/capture-subject.ts";
import { BackgroundProcess } from "./background-process.ts";
import { hasCode, ServiceError } from "./errors.ts";
import { type CommandOptions, type ExecOptions, type ExecResult, execute, startStream } from "./exec.ts";
import { Files } from "./files.ts";
import { camelKeys, snakeKeys } from "./key-case.ts";
import type { OutputStream } from "./output-stream.ts";
import { Pty, type PtyConnection, type PtyOptions } from "./pty.ts";
import type { CapsuleInfo, CapsuleStatus, ProcessInfo, TemplateInfo } from "./resources.ts";
import { type CallOptions, type ClientOptions, Transport } from "./transport.ts";

export interface CreateOptions {
  /** Default: `minimal`. */
  template?: string;
  /** Default: 1. A snapshot template brings its own. */
  vcpus?: number;
  /** MiB. Default: 512. A snapshot template brings its own. */
  memoryMb?: number;
  /** Inactivity until it is paused by itself, seconds. Default: 0, never. */
  timeoutSec?: number;
  /** False: resolve at once, with the capsule on its way. Default: resolve when it is `running`. */
  wait?: boolean;
  signal?: AbortSignal | undefined;
}

/** Of one request that is held until the status is reached. */
const holdSec = 60;
const heldMs = (holdSec + 30) * 1_000;
const waitMs = 180_000;
const finalStatuses: readonly CapsuleStatus[] = ["stopped", "error"];

/**
 * `await using capsule = await Capsule.create()` destroys it at the end of the block. The fields are what was last heard
 * of it; `refresh()` asks again.
 */
export class Capsule {
  readonly id: string;
  readonly files: Files;
  readonly #transport: Transport;
  readonly #path: string;
  #info: CapsuleInfo;

  /** Throws what came of it when it does not come to run; nothing is left behind then. */
  static async create(options: CreateOptions & ClientOptions = {}): Promise<Capsule> {
    return Capsule.createBy(new Transport(options), options);
  }

  /** A capsule that exists. */
  static async connect(id: string, options: ClientOptions & CallOptions = {}): Promise<Capsule> {
    return Capsule.connectBy(new Transport(options), id, options);
  }

  /** The team's capsules, newest first. */
  static async list(options: ClientOptions & CallOptions = {}): Promise<Capsule[]> {
    return Capsule.listBy(new Transport(options), options);
  }

  /** @internal */
  static async createBy(transport: Transport, options: CreateOptions): Promise<Capsule> {
    const { template, vcpus, memoryMb, timeoutSec, wait = true, signal } = options;
    const json = snakeKeys({ template, vcpus, memoryMb, timeoutSec });
    const info = await transport.json({ method: "POST", path: "/v1/capsules", json, signal });
    const capsule = new Capsule(transport, camelKeys(info));
    if (!wait) return capsule;
    try {
      return await capsule.until("running", { signal });
    } catch (error) {
      await capsule.destroy().catch(() => {}); // the first error says more
      throw error;
    }
  }

  /** @internal */
  static async connectBy(transport: Transport, id: string, options: CallOptions): Promise<Capsule> {
    const info = await transport.json({ method: "GET", path: pathOf(id), signal: options.signal });
    return new Capsule(transport, camelKeys(info));
  }

  /** @internal */
  static async listBy(transport: Transport, options: CallOptions): Promise<Capsule[]> {
    const infos = await transport.json<unknown[]>({ method: "GET", path: "/v1/capsules", signal: options.signal });
    return infos.map((info) => new Capsule(transport, camelKeys(info)));
  }

  /** What `create`, `connect` and `list` make; nothing is asked of the service. */
  constructor(transport: Transport, info: CapsuleInfo) {
    this.id = info.id;
    this.#transport = transport;
    this.#path = pathOf(info.id);
    this.#info = info;
    this.files = new Files(transport, this.#path);
  }

  /** All that was last heard of it. */
  get info(): Readonly<CapsuleInfo> {
    return this.#info;
  }

  get status(): CapsuleStatus {
    return this.#info.status;
  }

  /** As the API says it. */
  toJSON(): Record<string, unknown> {
    return snakeKeys(this.#info);
  }

  // ---- Its life

  /** Asks how it is. */
  async refresh(options: CallOptions = {}): Promise<this> {
    return this.#become(await this.#transport.json({ method: "GET", path: this.#path, ...options }));
  }

  /**
   * Resolves when it has reached the status; by default it is given three minutes. Throws `invalid_state` when it has
   * come to an end instead.
   */
  async until(status: CapsuleStatus, { signal, timeoutMs = waitMs }: CallOptions = {}): Promise<this> {
    const deadline = timeoutMs === 0 ? Number.POSITIVE_INFINITY : performance.now() + timeoutMs;
    for (;;) {
      const leftSec = Math.max(0, Math.min(holdSec, Math.ceil((deadline - performance.now()) / 1_000)));
      const query = { wait: status, timeout: leftSec };
      const request = { method: "GET", path: this.#path, query, signal, timeoutMs: heldMs } as const;
      this.#become(await this.#transport.json(request));
      if (this.status === status) return this;
      const why = this.#info.errorReason === null ? "" : `: ${this.#info.errorReason}`;
      if (finalStatuses.includes(this.status))
        throw new ServiceError("invalid_state", `capsule ${this.id} is ${this.status}, not ${status}${why}`);
      if (performance.now() >= deadline)
        throw new ServiceError("timeout", `capsule ${this.id} is still ${this.status}, not ${status}`);
    }
  }

  /** Resolves when memory, processes and files are on disk and the machine is free again. */
  async pause(options: CallOptions = {}): Promise<this> {
    return this.#become(await this.#post("pause", options));
  }

  /** Resolves when it runs again, with every process where it was. */
  async resume(options: CallOptions = {}): Promise<this> {
    return this.#become(await this.#post("resume", options));
  }

  /** Keeps it from being paused for inactivity for another `timeoutSec`. */
  async ping(options: CallOptions = {}): Promise<void> {
    await this.#transport.done({ method: "POST", path: `${this.#path}/ping`, repeat: "always", ...options });
  }

  /** Turns it into a template, and destroys it. Without a name one is made up. */
  async snapshot(
    name?: string,
    { overwrite, ...options }: { overwrite?: boolean } & CallOptions = {},
  ): Promise<TemplateInfo> {
    const query = { overwrite: overwrite === true ? true : undefined };
    const json = { [captureSubject]: this.id, name };
    const request = { method: "POST", path: "/v1/snapshots", query, json, ...slowly(options) } as const;
    return camelKeys(await this.#transport.json(request));
  }

  /** Ends it for good, in whatever status it is. One that is gone already is as good. */
  async destroy(options: CallOptions = {}): Promise<void> {
    try {
      await this.#transport.done({ method: "DELETE", path: this.#path, repeat: "always", ...options });
    } catch (error) {
      if (!hasCode(error, "not_found")) throw error;
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.destroy();
  }

  // ---- Commands

  /**
   * Runs a command to its end. No shell: `exec("bash", ["-c", "…"])` for one. Any exit code is a result; throws `timeout`
   * when the command takes longer than `timeoutSec`.
   */
  exec(cmd: string, args: string[] = [], options: ExecOptions = {}): Promise<ExecResult> {
    return execute(this.#transport, this.#path, { cmd, args }, options);
  }

  /** Runs a command and gives its output while it runs. It lives no longer than the stream. */
  stream(cmd: string, args: string[] = [], options: CommandOptions & CallOptions = {}): Promise<OutputStream> {
    const { envs, cwd, ...call } = options;
    return startStream(this.#transport, this.#path, { cmd, args }, { envs, cwd }, call);
  }

  /** Starts a command in the background, where it goes on by itself. `tag` is a name for it, else one is made up. */
  async spawn(
    cmd: string,
    args: string[] = [],
    { envs, cwd, tag, ...call }: CommandOptions & { tag?: string } & CallOptions = {},
  ): Promise<BackgroundProcess> {
    const json = { cmd, args, envs, cwd, tag, background: true };
    const path = `${this.#path}/exec`;
    const started = await this.#transport.json<{ pid: number; tag: string }>({ method: "POST", path, json, ...call });
    return new BackgroundProcess(this.#transport, this.#path, started.tag, started.pid);
  }

  /** Every process in it. */
  async processes(options: CallOptions = {}): Promise<ProcessInfo[]> {
    const request = { method: "GET", path: `${this.#path}/processes`, ...options } as const;
    return (await this.#transport.json<{ processes: ProcessInfo[] }>(request)).processes;
  }

  /** One that runs already, by its tag or PID; whether it is there is seen when it is used. */
  process(selector: string | number): BackgroundProcess {
    return new BackgroundProcess(this.#transport, this.#path, selector);
  }

  // ---- Terminals

  /** Opens a terminal; by default with `/bin/bash`. */
  pty({ signal, reconnectMs, onState, ...start }: PtyOptions & PtyConnection = {}): Promise<Pty> {
    const first = { type: "start" as const, ...start };
    return Pty.open(this.#transport, `${this.#path}/pty`, first, { signal, reconnectMs, onState });
  }

  /** Comes back to a terminal that was left, with what it has said since, up to 256 KiB. Throws `not_found`. */
  rejoin(tag: string, connection: PtyConnection = {}): Promise<Pty> {
    return Pty.open(this.#transport, `${this.#path}/pty`, { type: "connect", tag }, connection);
  }

  #post(verb: "pause" | "resume", options: CallOptions): Promise<unknown> {
    return this.#transport.json({ method: "POST", path: `${this.#path}/${verb}`, ...slowly(options) });
  }

  #become(info: unknown): this {
    this.#info = camelKeys(info);
    return this;
  }
}

function pathOf(id: string): string {
  return `/v1/capsules/${encodeURIComponent(id)}`;
}

/** What moves memory to or from disk may take longer than other requests. */
function slowly(options: CallOptions): CallOptions {
  return { ...options, timeoutMs: options.timeoutMs ?? waitMs };
}
