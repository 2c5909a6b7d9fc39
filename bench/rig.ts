/** What the benchmarks measure on: a server of their own with real VMs, and the machine below it. */
import { randomBytes } from "node:crypto";
import { rm } from "node:fs/promises";
import http from "node:http";
import { join } from "node:path";
import { connectAgent } from "../src/agent/connection.ts";
import { bootImage } from "../src/host/boot.ts";
import { identityOf } from "../src/host/identity.ts";
import { openMachine, type ThisMachine } from "../src/host/machine.ts";
import { Paths } from "../src/host/paths.ts";
import { Server } from "../test/server.ts";

const bootDeadlineMs = 120_000;

export interface ExecResult {
  stdout: string;
  stderr: string;
  exit_code: number;
}

export class Rig implements AsyncDisposable {
  /** What takes minutes is measured too. */
  readonly isLong: boolean;
  /** The machine below the server. */
  readonly machine: ThisMachine;
  readonly #server: Server;
  readonly #connections = new http.Agent({ keepAlive: true });

  static async start({ isLong }: { isLong: boolean }): Promise<Rig> {
    const server = await Server.start({ env: { CAPSULE_LOG_LEVEL: "error" } });
    const paths = new Paths(server.dataDir);
    const connect = connectBy;
    const machine = await openMachine({ paths, qemu: "qemu-system-x86_64", wanted: "auto", connect, progress() {} });
    return new Rig(server, machine, isLong);
  }

  private constructor(server: Server, machine: ThisMachine, isLong: boolean) {
    this.#server = server;
    this.machine = machine;
    this.isLong = isLong;
  }

  get url(): string {
    return this.#server.url;
  }

  get key(): string {
    return this.#server.apiKey;
  }

  /** By one connection that stays open, and with as little of a client as there can be. */
  async ask<T>(method: string, path: string, body?: object): Promise<T> {
    const { status, text } = await this.#answer(method, path, body === undefined ? undefined : JSON.stringify(body));
    if (status >= 300) throw new Error(`${method} ${path} answered ${status} ${text}`);
    return (text === "" ? undefined : JSON.parse(text)) as T;
  }

  #answer(method: string, path: string, body: string | undefined): Promise<{ status: number; text: string }> {
    return new Promise((resolve, reject) => {
      const sent =
        body === undefined ? {} : { "content-type": "application/json", "content-length": Buffer.byteLength(body) };
      const headers = { "x-api-key": this.key, ...sent };
      const request = http.request(this.url + path, { method, headers, agent: this.#connections }, (response) => {
        let text = "";
        response.setEncoding("utf8");
        response.on("data", (chunk) => {
          text += chunk;
        });
        response.once("end", () => resolve({ status: response.statusCode ?? 0, text }));
        response.once("error", reject);
      });
      request.once("error", reject);
      request.end(body);
    });
  }

  async createRunning(body: object = {}): Promise<string> {
    const { id } = await this.ask<{ id: string }>("POST", "/v1/capsules", body);
    const view = await this.ask<{ status: string }>("GET", `/v1/capsules/${id}?wait=running&timeout=120`);
    if (view.status !== "running") throw new Error(`capsule ${id} is ${view.status}`);
    return id;
  }

  async exec(id: string, cmd: string, ...args: string[]): Promise<ExecResult> {
    const result = await this.ask<ExecResult>("POST", `/v1/capsules/${id}/exec`, { cmd, args, timeout: 0 });
    if (result.exit_code !== 0) throw new Error(`${cmd} ended with ${result.exit_code}: ${result.stderr}`);
    return result;
  }

  destroy(id: string): Promise<void> {
    return this.ask("DELETE", `/v1/capsules/${id}`);
  }

  get serverPid(): number {
    const { pid } = this.#server;
    if (pid === undefined) throw new Error("the server does not run");
    return pid;
  }

  /** Where the server keeps everything. */
  get dataDir(): string {
    return this.#server.dataDir;
  }

  /** Milliseconds from starting QEMU on the kernel to the agent's first answer. */
  async coldBoot(): Promise<number> {
    let bootMs = 0;
    await this.withBootedVm(async (_folder, ms) => {
      bootMs = ms;
    });
    return bootMs;
  }

  /** Milliseconds from starting QEMU on the kernel to the result of a first /bin/true. */
  async coldBootToExec(): Promise<number> {
    let execMs = 0;
    const total = await this.withBootedVm(async (folder, bootMs) => {
      const agent = await connectBy(join(folder, "agent.sock"), bootDeadlineMs);
      try {
        await agent.wake(identityOf("bench"));
        await agent.thaw();
        const began = performance.now();
        await new Promise<void>((exited, failed) => {
          agent.run({ cmd: "/bin/true", args: [] }, { started() {}, output() {}, exited: () => exited(), failed });
        });
        execMs = performance.now() - began;
      } finally {
        agent.close();
      }
      return bootMs;
    });
    return total + execMs;
  }

  /** A VM of the default shape, booted from its kernel in a folder of its own, with nobody connected to its sockets. */
  async withBootedVm<T>(work: (folder: string, bootMs: number) => Promise<T>): Promise<T> {
    const { vmm, images } = this.machine;
    const nonce = randomBytes(16).toString("hex");
    const folder = join(this.dataDir, "work", `bench-${nonce}`);
    const boot = { vmm, connect: connectBy, image: images[0]!, machine: vmm.machine(1, 512), folder };
    try {
      const began = performance.now();
      const { vm, agent } = await bootImage({ ...boot, name: "bench", nonce, deadlineMs: bootDeadlineMs });
      const bootMs = performance.now() - began;
      agent.close();
      vm.release();
      try {
        return await work(folder, bootMs);
      } finally {
        await vmm.reap(nonce, vm.process);
      }
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#connections.destroy();
    await this.#server[Symbol.asyncDispose]();
  }
}

function connectBy(socketPath: string, deadlineMs: number, signal?: AbortSignal) {
  return connectAgent(socketPath, { deadlineMs, signal });
}
