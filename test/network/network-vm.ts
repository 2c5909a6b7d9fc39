/** VMs with a network port and no server: booted once, saved, and restored for each test, as capsules are. */
import assert from "node:assert/strict";
import { cp, mkdir, mkdtemp, rm, truncate, writeFile } from "node:fs/promises";
import { join, relative } from "node:path";
import type { Agent } from "../../src/agent/agent.ts";
import { connectAgent } from "../../src/agent/connection.ts";
import { type Image, loadImage } from "../../src/host/images/images.ts";
import { Jail } from "../../src/vmm/jail/jail.ts";
import { installedProgram, type QemuProgram } from "../../src/vmm/machine/qemu-program.ts";
import { measureTscKhz } from "../../src/vmm/machine/tsc.ts";
import { flattenMemory } from "../../src/vmm/memory/base-memory.ts";
import { endProcess, findByNonce } from "../../src/vmm/process.ts";
import { emptyOverlay } from "../../src/vmm/qcow2.ts";
import { Qemu } from "../../src/vmm/qemu.ts";
import { saveVm } from "../../src/vmm/vm-save.ts";
import type { SavedVm, Vm, VmSpec } from "../../src/vmm/vmm.ts";
import { Transcript } from "../fakes/transcript.ts";
import { waitFor } from "../wait-for.ts";
import { RelayPeer } from "./relay-peer.ts";

const dataDir = process.env.CAPSULE_DATA ?? join(import.meta.dirname, "../../.capsule");
const cpu = "max,-erms,-fsrm";
const memoryMb = 256;
const uids = { first: 1_900_001_000, last: 1_900_001_999 };
const bootMs = 300_000;
const answerMs = 120_000;

export interface Saved {
  state: string;
  memory: string;
  disk: string;
}

export class NetworkVms implements AsyncDisposable {
  readonly #folder: string;
  readonly #image: Image;
  readonly #vmm: Qemu;
  readonly #nonces: string[] = [];
  #base: Promise<Saved> | undefined;
  #count = 0;

  static async open(): Promise<NetworkVms> {
    const image = loadImage(dataDir, "minimal"); // says what to do when it is missing
    await mkdir(join(dataDir, "work"), { recursive: true });
    const folder = await mkdtemp(join(dataDir, "work", "network-test-"));
    const program = await installedProgram("qemu-system-x86_64");
    const vmm = await qemuOf(program);
    return new NetworkVms(folder, image, vmm);
  }

  private constructor(folder: string, image: Image, vmm: Qemu) {
    this.#folder = folder;
    this.#image = image;
    this.#vmm = vmm;
  }

  /** A guest of its own, from the base. */
  async start(): Promise<NetworkGuest> {
    this.#base ??= this.#makeBase();
    const base = await this.#base;
    return this.restore({ ...base, memory: base.memory }, null);
  }

  /** A guest that goes on from what was saved; `diff`: its own pages, where it has some. */
  async restore(saved: Saved, diff: string | null): Promise<NetworkGuest> {
    const spec = await this.#specOf(saved.memory);
    await cp(saved.disk, spec.files.disk);
    const from: SavedVm = { state: saved.state, memory: diff };
    const vm = await this.#vmm.restore(spec, from, () => {});
    await vm.resume();
    return NetworkGuest.wake(vm, this.#newFile);
  }

  /** The memory file that all guests are made on. */
  async base(): Promise<Saved> {
    this.#base ??= this.#makeBase();
    return this.#base;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const nonce of this.#nonces) for (const process of await findByNonce(nonce)) await endProcess(process);
    await rm(this.#folder, { recursive: true, force: true });
  }

  readonly #newFile = (): string => join(this.#folder, `saved-${++this.#count}`);

  async #specOf(memory: string): Promise<VmSpec> {
    const name = `guest-${++this.#count}`;
    const dir = join(this.#folder, name);
    await mkdir(dir, { recursive: true });
    const nonce = crypto.randomUUID();
    this.#nonces.push(nonce);
    const { root, kernel, initrd } = this.#image;
    const files = { dir, memory, disk: join(dir, "disk"), backing: [root], kernel, initrd };
    return { name, nonce, machine: this.#vmm.machine(1, memoryMb), files };
  }

  async #makeBase(): Promise<Saved> {
    const zero = join(this.#folder, "zero");
    await writeFile(zero, "");
    await truncate(zero, memoryMb << 20);
    const spec = await this.#specOf(zero);
    const { dir, disk } = spec.files;
    const backingFile = relative(dir, this.#image.root); // true in every folder beside this one
    await writeFile(disk, emptyOverlay({ sizeBytes: this.#image.diskBytes, backingFile, backingFormat: "raw" }));
    const vm = await this.#vmm.boot(spec, () => {});
    const agent = await connectAgent(vm.agentSocket, { deadlineMs: bootMs }).catch(async (cause: unknown) => {
      throw new Error(`The guest did not come up, and printed: ${await vm.console()}`, { cause });
    });
    await freeze(agent);
    agent.close();
    await vm.stop();
    const [state, diff, memory] = [join(dir, "state"), join(dir, "diff"), join(dir, "memory")];
    await saveVm(vm, { state, memory: diff });
    await vm.kill();
    await flattenMemory(zero, diff, memory);
    return { state, memory, disk };
  }
}

async function qemuOf(program: QemuProgram): Promise<Qemu> {
  const accelerator = { kind: "tcg", cpu, tscKhz: await measureTscKhz(program.command), why: "tests" } as const;
  return new Qemu({ program, accelerator, jail: await Jail.open({ uids }) });
}

/** Freezes all programs. The agent gives up after a third of a second, in which a busy machine may not have run the guest. */
async function freeze(agent: Agent): Promise<void> {
  await waitFor("all programs are frozen", async () => (await agent.freeze()).frozen);
}

/** A guest whose programs run. */
export class NetworkGuest {
  readonly vm: Vm;
  readonly agent: Agent;
  readonly #newFile: () => string;

  static async wake(vm: Vm, newFile: () => string): Promise<NetworkGuest> {
    const agent = await connectAgent(vm.agentSocket, { deadlineMs: answerMs });
    await agent.wake({ entropy: crypto.getRandomValues(new Uint8Array(64)), hostname: "t", machineId: "a".repeat(32) });
    await agent.thaw();
    return new NetworkGuest(vm, agent, newFile);
  }

  private constructor(vm: Vm, agent: Agent, newFile: () => string) {
    this.vm = vm;
    this.agent = agent;
    this.#newFile = newFile;
  }

  relay(onRequest?: RelayPeer["onRequest"]): Promise<RelayPeer> {
    assert.ok(this.vm.networkSocket !== null);
    return RelayPeer.connect(this.vm.networkSocket, onRequest);
  }

  /** A program's transcript, while it runs. */
  run(cmd: string, ...args: string[]): Transcript {
    const transcript = new Transcript();
    transcript.of(this.agent.run({ cmd, args }, transcript));
    return transcript;
  }

  python(script: string, ...args: string[]): Transcript {
    return this.run("/usr/bin/python3", "-c", script, ...args);
  }

  /** Standard output of a shell command, which must succeed. */
  async sh(script: string): Promise<string> {
    const transcript = this.run("/bin/bash", "-c", script);
    const { exitCode } = await transcript.exit();
    assert.equal(exitCode, 0, transcript.text("stdout") + transcript.text("stderr"));
    return transcript.text("stdout").trim();
  }

  freeze(): Promise<void> {
    return freeze(this.agent);
  }

  /** Freezes and saves it, as a pause does. Its VM has ended afterwards. */
  async save(disk = this.vm.spec.files.disk): Promise<{ saved: Saved; diff: string }> {
    await this.freeze();
    this.agent.close();
    await this.vm.stop();
    const [state, diff, kept] = [this.#newFile(), this.#newFile(), this.#newFile()];
    await saveVm(this.vm, { state, memory: diff });
    await cp(disk, kept);
    await this.vm.kill();
    return { saved: { state, memory: this.vm.spec.files.memory, disk: kept }, diff };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.agent.close();
    await this.vm.kill();
  }
}
