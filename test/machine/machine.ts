/**
 * A whole machine in software emulation: q35 with a processor that has AMD's virtualization, so that there is a /dev/kvm
 * inside which runs unmodified kernels. Its disks are layers on the built ones, in a folder of the machine's own. QEMU's process
 * killed is a power cut: pages in the machine's memory are lost, and clusters that only QEMU's cache had mapped.
 *
 *   <folder>/  machine.json  root.qcow2  tree.qcow2  data.qcow2  console.log  qemu.log
 */
import { spawn } from "node:child_process";
import { randomInt } from "node:crypto";
import { closeSync, openSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { mkdir, readFile, rename, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { dirname, join } from "node:path";
import { runProgram } from "../../guest/image/program.ts";
import { measureTscKhz } from "../../src/vmm/machine/tsc.ts";
import { waitFor } from "../wait-for.ts";
import { emulator, type Program } from "./emulator.ts";
import { type RootDisk, rootDisk } from "./root-disk.ts";
import type { Shape } from "./shape.ts";
import { type Door, type Outcome, type RunOptions, shareConnection, ssh } from "./ssh.ts";
import { dataDisk, type Sources, treeDisk } from "./tree-disks.ts";

const stateName = "machine.json";
const consoleName = "console.log";
const memoryMb = 4_096;
/** With two, of 50 starts and resumes of VMs inside one hung, and the machine's kernel panicked once in several hours. */
const vcpus = 1;
const bootDeadlineMs = 300_000;
const powerOffDeadlineMs = 120_000;
/** For one command, such as an install. */
const commandDeadlineMs = 1_800_000;
/** For one try to connect during the boot. */
const tryDeadlineMs = 60_000;
/** Below the range from which the kernel takes ports for connections, so that none has it while the machine is off. */
const ports = { ssh: 20_000, api: 26_000, count: 6_000 };
/** The end of each log that is shown when the machine does not come up. */
const shownBytes = 4_096;
/** The service listens on it inside the machine. */
const servicePort = 8080;

interface State {
  pid: number;
  /** Field 22 of /proc/<pid>/stat: with the pid it identifies the process. */
  startTicks: string;
  sshPort: number;
  apiPort: number;
  shape: Shape;
  root: RootDisk;
  /** The program that emulates it, and its first arguments. */
  emulator: Program;
  /** The rate of the time stamp counter, which emulation hands on: a kernel measures it too inaccurately. */
  tscKhz: number;
}

export interface MachineOptions {
  /** Built disks that machines share. */
  machines: string;
  /** The machine's own. */
  folder: string;
  shape: Shape;
  sources: Sources;
  /** Told before a step that can take long. */
  progress?: (step: string) => void;
}

export class Machine {
  readonly folder: string;
  #state: State;

  /** A new machine: builds what is missing, starts it, and resolves when commands can be run in it; else nothing of it is left. */
  static async create({ machines, folder, shape, sources, progress = () => {} }: MachineOptions): Promise<Machine> {
    await rm(folder, { recursive: true, force: true });
    await mkdir(folder, { recursive: true });
    progress("unpacking the machine's QEMU");
    const qemu = await emulator(machines);
    progress("building the machine's root disk");
    const root = await rootDisk(machines, shape);
    progress("building the disks of the working tree");
    const disks = {
      root: root.disk,
      tree: await treeDisk(machines, sources),
      data: await dataDisk(machines, sources, shape),
    };
    for (const [name, backing] of Object.entries(disks)) {
      await runProgram("qemu-img", [
        "create",
        "-q",
        "-f",
        "qcow2",
        "-F",
        "raw",
        "-b",
        backing,
        join(folder, `${name}.qcow2`),
      ]);
    }
    const [sshPort, apiPort] = [await freePort(ports.ssh), await freePort(ports.api)];
    const tscKhz = await measureTscKhz(qemu);
    const state = { pid: 0, startTicks: "", sshPort, apiPort, shape, root, emulator: qemu, tscKhz };
    const machine = new Machine(folder, state);
    progress("starting the machine");
    try {
      await machine.start();
      return machine;
    } catch (error) {
      await machine.remove();
      throw error;
    }
  }

  /** The one that was created in this folder; undefined: none. */
  static async open(folder: string): Promise<Machine | undefined> {
    const text = await readFile(join(folder, stateName), "utf8").catch(() => undefined);
    return text === undefined ? undefined : new Machine(folder, JSON.parse(text) as State);
  }

  private constructor(folder: string, state: State) {
    this.folder = folder;
    this.#state = state;
  }

  get shape(): Shape {
    return this.#state.shape;
  }

  /** Where the service in the machine is reached from here. */
  get url(): string {
    return `http://127.0.0.1:${this.#state.apiPort}`;
  }

  /** Starts it with the disks it has; resolves when commands can be run in it. */
  async start(): Promise<void> {
    await this.powerOn();
    await this.#reached();
    shareConnection(this.#door);
    await this.setClock();
  }

  /** As `start`, without waiting. `unit`: of systemd, what it starts instead of everything that is enabled. */
  async powerOn(unit?: string): Promise<void> {
    for (const path of [this.#door.socket, this.#console]) await rm(path, { force: true });
    const log = openSync(join(this.folder, "qemu.log"), "a");
    const [program, ...args] = this.#state.emulator;
    const child = spawn(program, [...args, ...this.#qemuArgs(unit)], { detached: true, stdio: ["ignore", log, log] });
    closeSync(log);
    // Kept before anything else runs, so that QEMU is found when this process was killed.
    if (child.pid !== undefined)
      this.#keep({ ...this.#state, pid: child.pid, startTicks: startTicks(child.pid) ?? "" });
    await new Promise((resolve, reject) => child.once("spawn", resolve).once("error", reject));
    child.unref();
  }

  /** Sets the machine's clock to this host's: its kernel reads the time from a device that counts seconds. */
  async setClock(): Promise<void> {
    const options = { user: "root", onReady: () => `${Date.now() / 1_000}\n` } as const;
    await this.sh('echo ready; read -r now; date --set="@$now"', options);
  }

  get isRunning(): boolean {
    return isSame(this.#state);
  }

  /** Runs a shell command in the working tree. */
  run(command: string, options: RunOptions = {}): Promise<Outcome> {
    const user = options.user ?? (this.shape.isRootless ? "tester" : "root");
    return ssh(this.#door, command, { ...options, user });
  }

  /** As `run`, for half an hour at most; rejects unless the command ends with 0. Resolves with its standard output, trimmed. */
  async sh(command: string, options: RunOptions = {}): Promise<string> {
    const { code, stdout, stderr } = await this.run(command, { deadlineMs: commandDeadlineMs, ...options });
    if (code !== 0) throw new Error(`in the machine: ${command}: ended with ${code}\n${stdout}${stderr}`);
    return stdout.trim();
  }

  async reboot(): Promise<void> {
    await this.powerOff();
    await this.start();
  }

  /** An orderly end. Rejects when it takes more than two minutes. */
  async powerOff(): Promise<void> {
    if (!this.isRunning) return;
    await this.run("systemctl poweroff", { user: "root", deadlineMs: powerOffDeadlineMs }).catch(() => {});
    await this.#isGone(powerOffDeadlineMs);
  }

  /** A power cut. */
  async cut(): Promise<void> {
    if (!this.isRunning) return;
    process.kill(this.#state.pid, "SIGKILL");
    await this.#isGone(powerOffDeadlineMs);
  }

  /** For a process that ends: cuts the power of the machine in `folder`, if there is one, and removes the folder. */
  static abandon(folder: string): void {
    try {
      const state = JSON.parse(readFileSync(join(folder, stateName), "utf8")) as State;
      if (isSame(state)) process.kill(state.pid, "SIGKILL");
    } catch {} // it was never started, or has ended
    rmSync(folder, { recursive: true, force: true });
  }

  /** Cuts its power and removes its folder, but for the console's text, which becomes `<machines>/console.log`. */
  async remove(): Promise<void> {
    await this.cut();
    await rename(this.#console, join(dirname(this.folder), consoleName)).catch(() => {}); // it was never started
    await rm(this.folder, { recursive: true, force: true });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.remove();
  }

  get #door(): Door {
    const { sshPort: port, root } = this.#state;
    return { port, key: root.sshKey, socket: join(this.folder, "ssh") };
  }

  get #console(): string {
    return join(this.folder, consoleName);
  }

  async #reached(): Promise<void> {
    const isReached = async () => {
      const { code } = await this.run("true", { user: "root", deadlineMs: tryDeadlineMs });
      if (code !== 0 && !this.isRunning) throw new Error("the machine ended");
      return code === 0;
    };
    try {
      await waitFor("the machine comes up", isReached, { deadlineMs: bootDeadlineMs, longestPauseMs: 500 });
    } catch (error) {
      throw new Error(`${(error as Error).message}:\n${await this.#saidLast()}`);
    }
  }

  async #saidLast(): Promise<string> {
    const texts = ["qemu.log", consoleName].map((name) => readFile(join(this.folder, name), "utf8").catch(() => ""));
    return (await Promise.all(texts)).map((text) => text.slice(-shownBytes)).join("\n");
  }

  async #isGone(deadlineMs: number): Promise<void> {
    await waitFor("the machine ends", () => !this.isRunning, { deadlineMs });
  }

  #keep(state: State): void {
    this.#state = state;
    const path = join(this.folder, stateName);
    writeFileSync(`${path}.new`, JSON.stringify(state, null, 1));
    renameSync(`${path}.new`, path);
  }

  #qemuArgs(unit: string | undefined): string[] {
    const { shape, root, sshPort, apiPort, tscKhz } = this.#state;
    const clock = `tsc=reliable tsc_early_khz=${tscKhz}`;
    const target = unit === undefined ? "" : ` systemd.unit=${unit}`;
    const forwards = [`tcp:127.0.0.1:${sshPort}-:22`, `tcp:127.0.0.1:${apiPort}-:${servicePort}`];
    return [
      ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"],
      // qemu.log tells a triple fault, which ends the machine without a word on its console.
      ["-d", "cpu_reset"],
      ["-machine", "q35"],
      ["-accel", "tcg,thread=multi"],
      ["-cpu", shape.hasKvm ? "max" : "max,-svm"],
      ["-smp", String(vcpus)],
      ["-m", `${memoryMb}M`],
      ["-kernel", root.kernel],
      ["-initrd", root.initrd],
      ["-append", `root=/dev/vda rw console=ttyS0 net.ifnames=0 mitigations=off panic=1 ${clock}${target}`],
      ["-serial", `file:${this.#console}`],
      ...["root", "tree", "data"].map((name) =>
        [
          [
            "-drive",
            `if=none,id=${name},format=qcow2,cache=writeback,discard=unmap,file=${join(this.folder, `${name}.qcow2`)}`,
          ],
          ["-device", `virtio-blk-pci,drive=${name}`],
        ].flat(),
      ),
      ["-netdev", `user,id=net,restrict=on,${forwards.map((each) => `hostfwd=${each}`).join()}`],
      ["-device", "virtio-net-pci,netdev=net"],
      ["-device", "virtio-rng-pci"],
    ].flat();
  }
}

function isSame({ pid, startTicks: known }: State): boolean {
  return pid !== 0 && startTicks(pid) === known;
}

/** Undefined for a process that has ended. */
function startTicks(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    return fields[0] === "Z" ? undefined : fields[19];
  } catch {
    return undefined;
  }
}

/** Throws when a hundred tries find none. */
async function freePort(first: number): Promise<number> {
  for (let tries = 0; tries < 100; tries++) {
    const port = first + randomInt(ports.count);
    const server = createServer().listen(port, "127.0.0.1");
    const isFree = await new Promise<boolean>((resolve) =>
      server.once("listening", () => resolve(true)).once("error", () => resolve(false)),
    );
    if (!isFree) continue;
    await new Promise((resolve) => server.close(resolve));
    return port;
  }
  throw new Error(`no port is free from ${first} on`);
}
