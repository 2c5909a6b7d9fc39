/** A server with real VMs, started for the benchmarks, and a minimal client for it. */
import { setTimeout as delay } from "node:timers/promises";
import { Server } from "../test/server.ts";
import { type Answer, HttpConnection } from "./http-connection.ts";
import { timed } from "./statistics.ts";

export interface ExecResult {
  stdout: string;
  stderr: string;
  exit_code: number;
}

interface CapsuleView {
  id: string;
  status: string;
}

const poolDeadlineMs = 60_000;
const poolPollMs = 10;

const running = new Set<Service>();

/** For an interrupted run: kills all servers and VMs without waiting. */
export function abandonAll(): void {
  for (const service of running) service.abandon();
}

export class Service implements AsyncDisposable {
  readonly #server: Server;
  /** Open connections without a request in flight. */
  #idle: HttpConnection[] = [];

  /** `env` on top of the defaults. */
  static async start(env: Record<string, string> = {}): Promise<Service> {
    return new Service(
      await Server.start({ env: { CAPSULE_LOG_LEVEL: "error", CAPSULE_REQUESTS_PER_SEC: "1000000", ...env } }),
    );
  }

  private constructor(server: Server) {
    this.#server = server;
    running.add(this);
  }

  get url(): string {
    return this.#server.url;
  }

  get key(): string {
    return this.#server.apiKey;
  }

  get pid(): number {
    const { pid } = this.#server;
    if (pid === undefined) throw new Error("the server does not run");
    return pid;
  }

  /** Where the server keeps everything. */
  get dataDir(): string {
    return this.#server.dataDir;
  }

  /** Ends the server and, after `meanwhile`, starts it again; resolves with the milliseconds from spawn to listening. */
  async restart(meanwhile: () => void = () => {}): Promise<number> {
    this.#hangUp();
    await this.#server.kill("SIGTERM");
    meanwhile();
    return await timed(() => this.#server.start());
  }

  /** Uses an idle keep-alive connection. Throws when the answer is an error. */
  async ask<T>(method: string, path: string, body?: object): Promise<T> {
    const { status, text } = await this.#answer(method, path, body === undefined ? undefined : JSON.stringify(body));
    if (status >= 300) throw new Error(`${method} ${path} answered ${status} ${text}`);
    return (text === "" ? undefined : JSON.parse(text)) as T;
  }

  async createRunning(body: object = {}): Promise<string> {
    let view = await this.ask<CapsuleView>("POST", "/v1/capsules", body);
    const { id } = view;
    if (view.status !== "running") {
      view = await this.ask<CapsuleView>("GET", `/v1/capsules/${id}?wait=running&timeout=120`);
    }
    if (view.status !== "running") throw new Error(`capsule ${id} is ${view.status}`);
    return id;
  }

  /** Throws unless the command ends well. */
  async exec(id: string, cmd: string, ...args: string[]): Promise<ExecResult> {
    const result = await this.ask<ExecResult>("POST", `/v1/capsules/${id}/exec`, { cmd, args, timeout: 0 });
    if (result.exit_code !== 0) throw new Error(`${cmd} ended with ${result.exit_code}: ${result.stderr}`);
    return result;
  }

  destroy(id: string): Promise<void> {
    return this.ask("DELETE", `/v1/capsules/${id}`);
  }

  /** Milliseconds from the create request to the result of a first /bin/true. The capsule is destroyed afterwards. */
  async timeToInteractive(body: object = {}): Promise<number> {
    let id: string | undefined;
    try {
      return await timed(async () => {
        id = await this.createRunning(body);
        await this.exec(id, "/bin/true");
      });
    } finally {
      if (id !== undefined) await this.destroy(id);
    }
  }

  /** True as soon as the pool has its target size; false after `withinMs`, or if there is no pool. */
  poolIsFull(withinMs = poolDeadlineMs): Promise<boolean> {
    return this.#isFull("pool", withinMs);
  }

  /** Throws when the pool is not full in time. */
  async requirePool(): Promise<void> {
    if (!(await this.poolIsFull())) throw new Error("the pool was not filled in time");
  }

  /** The same for warm processes. */
  warmProcessesAreReady(withinMs = poolDeadlineMs): Promise<boolean> {
    return this.#isFull("warm_processes", withinMs);
  }

  /** Throws when there are none in time. */
  async requireWarmProcesses(): Promise<void> {
    if (!(await this.warmProcessesAreReady())) throw new Error("no process was started ahead of time");
  }

  async #isFull(field: "pool" | "warm_processes", withinMs: number): Promise<boolean> {
    const lateMs = performance.now() + withinMs;
    do {
      const health = await this.ask<Record<string, { ready: number; target: number } | undefined>>("GET", "/healthz");
      const { ready, target } = health[field] ?? { ready: 0, target: -1 };
      if (target < 0) return false;
      if (target > 0 && ready >= target) return true;
      await delay(poolPollMs);
    } while (performance.now() < lateMs);
    return false;
  }

  abandon(): void {
    this.#server.abandon();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    running.delete(this);
    this.#hangUp();
    await this.#server[Symbol.asyncDispose]();
  }

  #hangUp(): void {
    for (const connection of this.#idle) connection.close();
    this.#idle = [];
  }

  async #answer(method: string, path: string, body: string | undefined): Promise<Answer> {
    let connection = this.#idle.pop();
    while (connection?.isOver) connection = this.#idle.pop();
    connection ??= await HttpConnection.open(this.url);
    const answer = await connection.ask(method, path, this.key, body);
    this.#idle.push(connection);
    return answer;
  }
}
