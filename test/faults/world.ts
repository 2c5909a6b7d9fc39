/** A server that can be killed at a named step, and checks of the state that it leaves. */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { StepName } from "../../src/host/steps.ts";
import type { FullHealth } from "../../src/wire/health.ts";
import { Client, TestCapsule } from "../client.ts";
import { processesOf, Server, type ServerOptions } from "../server.ts";
import { waitFor } from "../wait-for.ts";

/** The processes that end at a step: the daemon alone, while its VMs continue, or with every process of its data folder. */
export type Fault = "daemon" | "machine";

/** Time for a killed VM to end. */
const dyingMs = 60_000;

export class World implements AsyncDisposable {
  readonly server: Server;
  readonly #hasWarmProcesses: boolean;
  #client: Client | undefined;

  /** Without pool and warm processes unless `env` sets them, because VMs are counted here. */
  static async start({ env, ...options }: ServerOptions = {}): Promise<World> {
    const whole = { CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0", ...env };
    const world = new World(await Server.start({ ...options, env: whole }), whole.CAPSULE_WARM_PROCESSES !== "0");
    await world.#connect();
    return world;
  }

  private constructor(server: Server, hasWarmProcesses: boolean) {
    this.server = server;
    this.#hasWarmProcesses = hasWarmProcesses;
  }

  get client(): Client {
    return this.#client!;
  }

  /**
   * Ends the server by a signal, while its VMs continue, and starts it again; with `crashAt` it kills or stops itself at that
   * step. Resolves when it has adopted all capsules.
   */
  async restart(...how: Parameters<World["startAgain"]>): Promise<void> {
    await this.startAgain(...how);
    await this.server.adopted();
  }

  /** As `restart`, without the wait for agents. */
  async startAgain(
    signal: "SIGTERM" | "SIGKILL",
    crashAt?: StepName | `${StepName}/stop`,
    env: Record<string, string> = {},
  ): Promise<void> {
    this.#client?.close();
    await this.server.kill(signal);
    await this.server.start(crashAt === undefined ? env : { CAPSULE_CRASH_AT: crashAt, ...env });
    await this.#connect();
  }

  /** Runs `act`, which must make the server kill itself at its step, and waits for its end. */
  async die(act: () => Promise<unknown>, fault: Fault = "daemon"): Promise<void> {
    const dead = this.server.exited().then((signal) => {
      if (fault === "machine") this.#killProcesses();
      return signal;
    });
    await act().catch(() => {});
    assert.equal(await dead, "SIGKILL", "the server did not reach its step");
    if (fault === "machine") await this.#processesEnded();
  }

  /** Runs `act`, and `meanwhile` at the step at which the server was started to stop itself. */
  async atStep<T>(act: () => Promise<T>, meanwhile: () => Promise<unknown> | undefined): Promise<T> {
    let isDone = false;
    const acted = act().finally(() => {
      isDone = true;
    });
    acted.catch(() => {}); // seen below
    const { pid } = this.server;
    await waitFor("the server stops at its step", async () => isInState(pid!, "T") || isDone);
    assert.ok(isInState(pid!, "T"), "the server did not reach its step");
    try {
      await meanwhile();
    } finally {
      process.kill(pid!, "SIGCONT");
    }
    return await acted;
  }

  /** Ends the server and every process of its data folder, as a reset of the machine does, and starts it again. `ended`: in between. */
  async reset(ended: () => void = () => {}): Promise<void> {
    this.#client?.close();
    await this.server.kill("SIGKILL");
    this.#killProcesses();
    await this.#processesEnded();
    ended();
    await this.server.start();
    await this.#connect();
  }

  #killProcesses(): void {
    for (const { pid } of processesOf(this.server.dataDir)) {
      try {
        process.kill(pid, "SIGKILL");
      } catch {} // it has just ended
    }
  }

  /** Kills again meanwhile: a process may have started another one just before its end. */
  async #processesEnded(): Promise<void> {
    await waitFor("all processes have ended", async () => {
      this.#killProcesses();
      return processesOf(this.server.dataDir).length === 0;
    });
  }

  /** The capsule, with a client of the running server. */
  capsule(id: string): TestCapsule {
    return new TestCapsule(this.client, id);
  }

  async views(): Promise<{ id: string; status: string; error_reason: string | null }[]> {
    return (await this.client.expect(200, "GET", "/v1/capsules")).json;
  }

  async health(): Promise<FullHealth> {
    return (await this.client.expect(200, "GET", "/healthz")).json;
  }

  async snapshots(): Promise<string[]> {
    const { json } = await this.client.expect(200, "GET", "/v1/snapshots?type=snapshot");
    return json.map(({ name }: { name: string }) => name);
  }

  /** VMs, rows and folders are consistent with each other. */
  async assertConsistent(): Promise<void> {
    const views = await this.views();
    const paused = views.filter(({ status }) => status === "paused").map(({ id }) => id);
    for (const id of paused) await this.vmEnded(id);
    const running = views.filter(({ status }) => status === "running").map(({ id }) => id);
    assert.deepEqual(this.#ownVms(), running.sort(), "exactly one VM for each running capsule");
    const folders = this.folders("capsules");
    const wanted = views.filter(({ id, status }) => status !== "error" || folders.includes(id));
    assert.deepEqual(
      folders,
      wanted.map(({ id }) => id).sort(),
      "one folder for each capsule; failed ones may have none",
    );
    await this.#assertNoScratch();
    for (const { id, status } of views) {
      if (status === "error") continue;
      const has = this.folders("capsules", id).includes("checkpoint");
      assert.equal(has, status === "paused", `${id} is ${status}, its checkpoint is ${has ? "there" : "not there"}`);
    }
  }

  /** Destroys everything; only bases may be left. */
  async assertNoResidue(): Promise<void> {
    for (const { id } of await this.views()) await this.client.expect(204, "DELETE", `/v1/capsules/${id}`);
    for (const name of await this.snapshots()) await this.client.expect(204, "DELETE", `/v1/snapshots/${name}`);
    assert.deepEqual(this.#ownVms(), []);
    for (const room of ["capsules", "templates"]) assert.deepEqual(this.folders(room), [], room);
    await this.#assertNoScratch();
    for (const pid of [this.server.dataDir, relayProgram].flatMap(unbuiltJails)) {
      await waitFor(`process ${pid}, of a jail that was not built, has ended`, () => hasEnded(pid));
    }
  }

  /** The one of the hashes, which are made in the background, may be there for a moment. */
  async #assertNoScratch(): Promise<void> {
    const isIdle = async () => !this.#scratchFolders().includes("hashing");
    await waitFor("the folder of the hashes is removed", isIdle);
    assert.deepEqual(this.#scratchFolders(), [], "no scratch folder is left");
  }

  /** VMs of capsules, without warm processes. */
  #ownVms(): string[] {
    return this.vms().filter((name) => !this.#hasWarmProcesses || name !== "warm");
  }

  #scratchFolders(): string[] {
    return this.folders("work").filter((name) => !this.#hasWarmProcesses || !/^(warm|handover)-/.test(name));
  }

  /** Sorted names of the running VMs: their capsules' ids, and "warm" for warm processes. */
  vms(): string[] {
    return this.#processes()
      .map(({ name }) => name)
      .sort();
  }

  /** The process of a capsule's VM; undefined when it has none. */
  vmPid(id: string): number | undefined {
    return this.#processes().find(({ name }) => name === id)?.pid;
  }

  /** All processes of this name. */
  pidsOf(name: string): number[] {
    return this.#processes().flatMap((process) => (process.name === name ? [process.pid] : []));
  }

  /** Signals a capsule's VM, as soon as it has one; resolves with its process. */
  async signalVm(id: string, signal: NodeJS.Signals): Promise<number> {
    const pid = await waitFor(`${id} has a VM`, async () => this.vmPid(id));
    process.kill(pid, signal);
    return pid;
  }

  /** Resolves when a paused capsule's VM has ended, which may be after the answer to the pause. */
  async vmEnded(id: string): Promise<void> {
    await waitFor(`the VM of ${id} has ended`, async () => this.vmPid(id) === undefined, { deadlineMs: dyingMs });
  }

  /** Kills a capsule's VM, as soon as it has one, and waits for its end. */
  async killVm(id: string): Promise<void> {
    const pid = await this.signalVm(id, "SIGKILL");
    await waitFor(`process ${pid} has ended`, async () => hasEnded(pid));
  }

  /** A warm process keeps its name when a capsule claims it; the journals tell which capsule did. */
  #processes(): { pid: number; name: string }[] {
    const owners = this.#journalled();
    return processesOf(this.server.dataDir).flatMap(({ pid, command }) => {
      if (/^\S*bwrap /.test(command)) return []; // waits for a VM, or will execute one
      const name = /-name guest=(\S+) nonce=/.exec(command)?.[1];
      return name === undefined ? [] : [{ pid, name: name === "warm" ? (owners.get(pid) ?? name) : name }];
    });
  }

  #journalled(): Map<number, string> {
    const owners = new Map<number, string>();
    for (const id of this.folders("capsules")) {
      try {
        const { process } = JSON.parse(readFileSync(join(this.server.dataDir, "capsules", id, "vm.json"), "utf8"));
        if (process !== null) owners.set(process.pid, id);
      } catch {} // it has no VM
    }
    return owners;
  }

  /** The last errors that the server has logged. */
  complaints(): string {
    const lines = readFileSync(this.server.log.file, "utf8").split("\n");
    return lines
      .filter((line) => line.includes('"level":50'))
      .slice(-3)
      .join("\n");
  }

  folders(...path: string[]): string[] {
    return readdirSync(join(this.server.dataDir, ...path)).sort();
  }

  async #connect(): Promise<void> {
    this.#client = await Client.connect(this.server.url, this.server.apiKey);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#client?.close();
    await this.server[Symbol.asyncDispose]();
  }
}

/** Its command names no data folder: tests beside this one have such processes, too. */
const relayProgram = join(import.meta.dirname, "../../src/relay/program.ts");

/** Processes that bubblewrap has started for such a command, and has not let begin before it died. */
export function unbuiltJails(part: string): number[] {
  const started = processesOf(part).filter(({ command }) => /^\S*bwrap /.test(command));
  return started.map(({ pid }) => pid).filter(isOrphan);
}

/** Whether it is process 1 of a namespace, and its parent no bubblewrap. */
function isOrphan(pid: number): boolean {
  try {
    const status = readFileSync(`/proc/${pid}/status`, "latin1");
    const parent = /^PPid:\t(\d+)$/m.exec(status)?.[1];
    return /^NSpid:.*\t1$/m.test(status) && readFileSync(`/proc/${parent}/comm`, "latin1") !== "bwrap\n";
  } catch {
    return false; // one of them has ended
  }
}

function hasEnded(pid: number): boolean {
  return isInState(pid, "ZX") ?? true;
}

/** Undefined when there is no such process. `letters`: of proc_pid_stat(5). */
function isInState(pid: number, letters: string): boolean | undefined {
  try {
    return new RegExp(`\\) [${letters}] `).test(readFileSync(`/proc/${pid}/stat`, "latin1"));
  } catch {
    return undefined;
  }
}
