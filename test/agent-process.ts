/**
 * The real guest agent on a UNIX socket of this machine. It acts on this machine's files and processes, so every test
 * uses a temporary folder.
 */
import assert from "node:assert/strict";
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { promisify } from "node:util";
import type { Agent } from "../src/agent/agent.ts";
import { type ConnectOptions, connectAgent } from "../src/agent/connection.ts";
import { waitFor } from "./wait-for.ts";

const crate = path.join(import.meta.dirname, "../guest/agent");
const startDeadlineMs = 60_000;
const stopDeadlineMs = 30_000;

let binary: Promise<string> | undefined;

/** The agent's program: the one that `./dev` has built, or else built here if its sources changed. */
export function agentBinary(): Promise<string> {
  const { CAPSULE_AGENT } = process.env;
  if (CAPSULE_AGENT !== undefined) return Promise.resolve(CAPSULE_AGENT);
  // Its path is the last line.
  binary ??= promisify(execFile)(path.join(crate, "build")).then(({ stdout }) => stdout.trim().split("\n").at(-1)!);
  return binary;
}

export class AgentProcess implements AsyncDisposable {
  /** A folder for the test, removed at the end. */
  readonly dir: string;
  readonly socketPath: string;
  readonly process: ChildProcess;
  readonly #agents: Agent[] = [];

  /** `args`: further arguments of the agent. */
  static async start(args: string[] = []): Promise<AgentProcess> {
    const dir = await mkdtemp(path.join(tmpdir(), "agent-"));
    const agent = new AgentProcess(dir, await agentBinary(), args);
    await agent.#listening();
    return agent;
  }

  private constructor(dir: string, program: string, args: string[]) {
    this.dir = dir;
    this.socketPath = path.join(dir, "agent.sock");
    this.process = spawn(program, ["--socket", this.socketPath, ...args], {
      stdio: ["ignore", "inherit", "inherit"],
      detached: true, // in its own process group, so that it cannot kill the test runner by mistake
    });
  }

  async connect(options: Partial<ConnectOptions> = {}): Promise<Agent> {
    const agent = await connectAgent(this.socketPath, { deadlineMs: startDeadlineMs, ...options });
    this.#agents.push(agent);
    return agent;
  }

  /** Agents start asleep. On a socket, WAKE does not change this machine's clock and names. */
  async wake(agent: Agent): Promise<void> {
    await agent.wake({ entropy: randomBytes(64), hostname: "test", machineId: "0".repeat(32) });
    await agent.thaw();
  }

  /**
   * A proxy socket that sends `stale` to the agent before the bytes of each connection, like an incomplete frame that
   * an earlier host left in a VM's port.
   */
  async behind(stale: Uint8Array): Promise<AsyncDisposable & { socketPath: string }> {
    const socketPath = path.join(this.dir, "stale.sock");
    const server = net.createServer((host) => {
      const guest = net.connect(this.socketPath);
      for (const socket of [host, guest]) socket.on("error", () => {});
      guest.write(stale);
      host.pipe(guest).pipe(host);
    });
    await once(server.listen(socketPath), "listening");
    return {
      socketPath,
      [Symbol.asyncDispose]: async () => {
        await new Promise((resolve) => server.close(resolve));
      },
    };
  }

  file(name: string): string {
    return path.join(this.dir, name);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const agent of this.#agents) agent.close();
    if (this.process.exitCode === null && this.process.signalCode === null) {
      const gone = once(this.process, "exit");
      this.process.kill("SIGTERM"); // it ends its commands too
      const killTimer = setTimeout(() => this.process.kill("SIGKILL"), stopDeadlineMs);
      await gone;
      clearTimeout(killTimer);
    }
    await rm(this.dir, { recursive: true, force: true });
  }

  async #listening(): Promise<void> {
    const isListening = async () => {
      assert.equal(this.process.exitCode, null, "the agent has ended");
      const socket = net.connect(this.socketPath);
      const isConnected = await once(socket, "connect").then(
        () => true,
        () => false,
      );
      socket.destroy();
      return isConnected;
    };
    try {
      await waitFor(`the agent listens on ${this.socketPath}`, isListening, { deadlineMs: startDeadlineMs });
    } catch (error) {
      await this[Symbol.asyncDispose]();
      throw error;
    }
  }
}
