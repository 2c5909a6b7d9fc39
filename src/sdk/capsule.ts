/** One capsule: its fields, life cycle, commands, files and terminals. */
import { BackgroundProcess } from "./background-process.ts";
import {
  type CapsuleChange,
  type CapsuleConditions,
  changeRequest,
  listRequest,
  type MetricOptions,
  type NetworkOptions,
} from "./capsule-options.ts";
import { type CreateOptions, createOnce, onceOnly } from "./create.ts";
import { hasCode, ServiceError } from "./errors.ts";
import {
  type CommandOptions,
  type ExecOptions,
  type ExecResult,
  execute,
  type StreamOptions,
  startStream,
} from "./exec.ts";
import { Files } from "./files.ts";
import { held, slowly, waitMs } from "./held-request.ts";
import { camelKeys, snakeKeys } from "./key-case.ts";
import { makePortUrl, readNetwork, replaceNetwork, revokePortUrls } from "./network.ts";
import { checkArgs, refuseUnknown } from "./options.ts";
import type { OutputStream } from "./output-stream.ts";
import { PortConnection } from "./port-connection.ts";
import { Pty, type PtyConnection, type PtyOptions } from "./pty.ts";
import type {
  CapsuleInfo,
  CapsuleMetric,
  CapsuleStatus,
  NetworkState,
  PortInfo,
  PortUrl,
  ProcessInfo,
  TemplateInfo,
} from "./resources.ts";
import { type CallOptions, type ClientOptions, splitClientOptions, Transport } from "./transport.ts";

type Inspect = (value: unknown, options: unknown) => string;
const finalStatuses: readonly CapsuleStatus[] = ["stopped", "error"];

/**
 * `await using capsule = await Capsule.create()` destroys it at the end of the block. The fields are those of the last
 * answer; `refresh()` asks again.
 */
export class Capsule {
  readonly id: string;
  readonly files: Files;
  readonly #transport: Transport;
  readonly #path: string;
  #info: CapsuleInfo | undefined;

  /**
   * When the capsule does not reach `running`, it is destroyed and the reason is thrown. An aborted call leaves no capsule either, but
   * with an `idempotencyKey` of your own.
   */
  static async create(options: CreateOptions & ClientOptions = {}): Promise<Capsule> {
    const { client, rest } = splitClientOptions(options);
    return createCapsule(new Transport(client), rest);
  }

  /** A capsule that exists. Throws `not_found`. */
  static async connect(id: string, options: ClientOptions & CallOptions = {}): Promise<Capsule> {
    const { client, rest } = splitClientOptions(options);
    return new Capsule(new Transport(client), id).refresh({ ...rest, timeoutMs: options.timeoutMs });
  }

  /** The team's capsules that meet the conditions, newest first. */
  static async list(options: CapsuleConditions & ClientOptions & CallOptions = {}): Promise<Capsule[]> {
    const { client, rest } = splitClientOptions(options);
    return listCapsules(new Transport(client), { ...rest, timeoutMs: options.timeoutMs });
  }

  /** A handle by id, without a request; `Client.capsule` makes one. `info`: its fields in an answer. */
  constructor(transport: Transport, id: string, info?: unknown) {
    this.id = id;
    this.#transport = transport;
    if (info !== undefined) this.#become(info);
    this.#path = `/v1/capsules/${encodeURIComponent(id)}`;
    this.files = new Files(transport, this.#path);
  }

  /** The fields of the last answer. Throws on a handle that has had none yet. */
  get info(): Readonly<CapsuleInfo> {
    if (this.#info === undefined) throw new TypeError(`capsule ${this.id} has not been read yet: call refresh()`);
    return this.#info;
  }

  get status(): CapsuleStatus {
    return this.info.status;
  }

  /** With the API's field names. */
  toJSON(): Record<string, unknown> {
    return snakeKeys(this.#info ?? { id: this.id });
  }

  /** Id, name and status, for `console.log` of Node, Deno and Bun. */
  [Symbol.for("nodejs.util.inspect.custom")](_depth: number, options: unknown, inspect: Inspect): string {
    const shown = this.#info && { name: this.#info.name, status: this.#info.status };
    return `Capsule ${inspect({ id: this.id, ...shown }, options)}`;
  }

  // ---- Life cycle

  /** Reads its fields. Throws `not_found`. */
  async refresh(options: CallOptions = {}): Promise<this> {
    return this.#become(await this.#transport.json({ method: "GET", path: this.#path, ...options }));
  }

  /**
   * Resolves when the capsule has the status; waits three minutes by default. Throws `invalid_state` when the capsule
   * has stopped or failed instead, `timeout` when the time is up.
   */
  async until(status: CapsuleStatus, { signal, timeoutMs = waitMs, ...unknown }: CallOptions = {}): Promise<this> {
    refuseUnknown("until", unknown);
    const deadline = timeoutMs === 0 ? Number.POSITIVE_INFINITY : performance.now() + timeoutMs;
    for (;;) {
      this.#become(await held(this.#transport, { path: this.#path, query: { wait: status }, deadline, signal }));
      if (this.status === status) return this;
      const why = this.info.errorReason === null ? "" : `: ${this.info.errorReason}`;
      if (finalStatuses.includes(this.status))
        throw new ServiceError("invalid_state", `capsule ${this.id} is ${this.status}, not ${status}${why}`);
      if (performance.now() >= deadline)
        throw new ServiceError("timeout", `capsule ${this.id} is still ${this.status}, not ${status}`);
    }
  }

  /** Changes all of these fields or none, in any status. Throws `name_taken` when another capsule has the name. */
  async update(change: CapsuleChange, options: CallOptions = {}): Promise<this> {
    return this.#become(await this.#transport.json({ ...changeRequest(this.#path, change), ...options }));
  }

  /** Resolves when memory, processes and files are on disk, and its CPU and memory are free. */
  async pause(options: CallOptions = {}): Promise<this> {
    return this.#become(await this.#post("pause", options));
  }

  /** Resolves when the capsule runs again, with every process as it was. */
  async resume(options: CallOptions = {}): Promise<this> {
    return this.#become(await this.#post("resume", options));
  }

  /**
   * Ends its programs, SIGTERM first and SIGKILL ten seconds later, and its virtual machine. The disk is kept: `start` boots from it.
   * Throws `invalid_state` unless it runs.
   */
  async stop(options: CallOptions = {}): Promise<this> {
    return this.#become(await this.#post("stop", options));
  }

  /** Boots a stopped capsule from its disk, or one in `error` that has one. Throws `invalid_state` when there is none. */
  async start(options: CallOptions = {}): Promise<this> {
    return this.#become(await this.#post("start", options));
  }

  /** Restarts the inactivity time `timeoutSec`. */
  async ping(options: CallOptions = {}): Promise<void> {
    await this.#transport.done({ method: "POST", path: `${this.#path}/ping`, repeat: "always", ...options });
  }

  /** Its use of CPU, memory and disk, oldest first, in every status. Resumes nothing and is no activity. */
  async metrics({ since, step, ...options }: MetricOptions & CallOptions = {}): Promise<CapsuleMetric[]> {
    const request = { method: "GET", path: `${this.#path}/metrics`, query: { since, step }, ...options } as const;
    return camelKeys(await this.#transport.json(request));
  }

  /** Turns the capsule into a template and destroys it. Without a name the service generates one. */
  async snapshot(
    name?: string,
    { overwrite, ...options }: { overwrite?: boolean } & CallOptions = {},
  ): Promise<TemplateInfo> {
    const query = { overwrite: overwrite === true ? true : undefined };
    const asked = onceOnly("/v1/snapshots", { sandbox_id: this.id, name }); // the API's older name of a capsule
    return camelKeys(await this.#transport.json({ ...asked, query, ...slowly(options) }));
  }

  /** Destroys the capsule, whatever its status. No error when it does not exist. */
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
   * Runs a command to its end, without a shell. Any exit code is a result; throws `timeout` when the command takes longer than
   * `timeoutSec`.
   */
  exec(cmd: string, args: string[] = [], options: ExecOptions = {}): Promise<ExecResult> {
    return execute(this.#transport, this.#path, { cmd, args }, options);
  }

  /** Runs a line of the shell: `sh("make && make test | tail")`. Anything else as `exec`. */
  sh(script: string, options: ExecOptions = {}): Promise<ExecResult> {
    return this.exec("sh", ["-c", script], options);
  }

  /**
   * Runs a command and streams its output. The end of the stream is the end of the command, which with `survive` goes on as the
   * background process `tag` of the stream. With `stdin` its standard input is open: `write` and `endStdin` of the stream. `tag`
   * names the process while it runs.
   */
  async stream(
    cmd: string,
    args: string[] = [],
    { envs, cwd, user, tag, stdin, survive, ...call }: StreamOptions & CallOptions = {},
  ): Promise<OutputStream> {
    checkArgs("stream", args);
    return await startStream(this.#transport, this.#path, { cmd, args, envs, cwd, user, tag, stdin, survive }, call);
  }

  /**
   * Starts a command in the background. `tag` names the process; by default the service generates one. With `stdin` its
   * standard input is open: `attach`, then `write`.
   */
  async spawn(
    cmd: string,
    args: string[] = [],
    { envs, cwd, user, tag, stdin, ...call }: CommandOptions & { tag?: string; stdin?: boolean } & CallOptions = {},
  ): Promise<BackgroundProcess> {
    checkArgs("spawn", args);
    const json = { cmd, args, envs, cwd, user, tag, stdin, background: true };
    const request = { method: "POST", path: `${this.#path}/exec`, json, ...call } as const;
    const started = await this.#transport.json<{ pid: number; tag: string }>(request);
    return new BackgroundProcess(this.#transport, this.#path, started.tag, started.pid);
  }

  /** Every process in the capsule. `resume: false`: a paused one with `autoResume` is not resumed, and it throws `invalid_state`. */
  async processes({ resume, ...options }: CallOptions & { resume?: boolean } = {}): Promise<ProcessInfo[]> {
    const request = { method: "GET", path: `${this.#path}/processes`, query: { resume }, ...options } as const;
    return (await this.#transport.json<{ processes: unknown[] }>(request)).processes.map((one) => camelKeys(one));
  }

  /** A handle of a running process, by tag or PID, without a request. */
  process(selector: string | number): BackgroundProcess {
    return new BackgroundProcess(this.#transport, this.#path, selector);
  }

  // ---- Network
  /** Its network, what holds of it, and what the capsule has tried to reach. */
  network(options: CallOptions = {}): Promise<NetworkState> {
    return readNetwork(this.#transport, this.#path, options);
  }

  /** Replaces the whole network, in any status. */
  setNetwork(network: NetworkOptions, options: CallOptions = {}): Promise<NetworkState> {
    return replaceNetwork(this.#transport, this.#path, network, options);
  }

  /** A link that opens one port without a key, for an hour by default. In any status; it resumes nothing. */
  url(port: number, options: { expiresSec?: number } & CallOptions = {}): Promise<PortUrl> {
    return makePortUrl(this.#transport, this.#path, port, options);
  }

  /** Ends all links to its ports. */
  revokeUrls(options: CallOptions = {}): Promise<void> {
    return revokePortUrls(this.#transport, this.#path, options);
  }

  // ---- Terminals
  /** Opens a terminal. Default command: `/bin/bash`. */
  async pty({ signal, reconnectMs, onState, ...start }: PtyOptions & PtyConnection = {}): Promise<Pty> {
    const { cmd: _, args = [], cols, rows, envs, cwd, user, tag, ...unknown } = start;
    refuseUnknown("pty", unknown);
    checkArgs("pty", args);
    const first = { type: "start", ...start } as const;
    return await Pty.open(this.#transport, `${this.#path}/pty`, first, { signal, reconnectMs, onState });
  }

  /**
   * Joins a detached terminal again; its output since then, up to 256 KiB, comes first, or with `from` the last 256 KiB of all.
   * Throws `not_found`.
   */
  async rejoin(
    tag: string,
    { from, ...connection }: PtyConnection & { from?: "start" | undefined } = {},
  ): Promise<Pty> {
    const { signal: _, reconnectMs, onState, ...unknown } = connection;
    refuseUnknown("rejoin", unknown);
    const first = { type: "connect" as const, tag, ...(from && { from }) };
    return await Pty.open(this.#transport, `${this.#path}/pty`, first, connection);
  }

  /** Servers in the capsule, which must run: it is not resumed. */
  ports(options: CallOptions = {}): Promise<PortInfo[]> {
    return this.#transport.json<PortInfo[]>({ method: "GET", path: `${this.#path}/ports`, ...options });
  }

  /** A connection to a TCP server in the capsule. Throws `port_closed`, whose `details.ports` says which ports are listened on. */
  connect(port: number, options: CallOptions = {}): Promise<PortConnection> {
    return PortConnection.open(this.#transport, `${this.#path}/ports/${port}/tcp`, options);
  }

  /** A request to a web server in the capsule, with the client's key. Resolves with any status, and follows no redirect. */
  async fetch(port: number, path = "/", init: RequestInit = {}): Promise<Response> {
    return this.#transport.fetchPort((this.#info ?? (await this.refresh()).info).portUrl, port, path, init);
  }

  #post(verb: "pause" | "resume" | "stop" | "start", options: CallOptions): Promise<unknown> {
    return this.#transport.json({ method: "POST", path: `${this.#path}/${verb}`, ...slowly(options) });
  }

  #become(info: unknown): this {
    this.#info = camelKeys(info);
    return this;
  }
}

/** As `Capsule.create`. */
export function createCapsule(transport: Transport, options: CreateOptions): Promise<Capsule> {
  return createOnce(transport, options, (info) => new Capsule(transport, info.id, info));
}

export async function listCapsules(
  transport: Transport,
  conditions: CapsuleConditions & CallOptions,
): Promise<Capsule[]> {
  const infos = await transport.json<{ id: string }[]>(listRequest(conditions));
  return infos.map((info) => new Capsule(transport, info.id, info));
}
