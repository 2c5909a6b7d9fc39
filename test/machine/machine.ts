/**
 * A whole machine in software emulation: q35 with a processor that has AMD's virtualization, so that there is a /dev/kvm
 * inside which runs stock kernels. Its disks are layers on the built ones, in a folder of the machine's own; what a
 * guest has flushed is in those files, and what it has not is lost with QEMU's process, as in a power cut.
 *
 *   <folder>/  machine.json  root.qcow2  tree.qcow2  data.qcow2  console.log  qemu.log
 */
import { spawn } from "node:child_process";
import { openSync } from "node:fs";
import { mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { runProgram } from "../../guest/image/program.ts";
import { measureTscKhz } from "../../src/vmm/tsc.ts";
import { emulator, type Program } from "./emulator.ts";
import { type RootDisk, rootDisk } from "./root-disk.ts";
import type { Shape } from "./shape.ts";
import { type Door, type Outcome, type RunOptions, shareConnection, ssh } from "./ssh.ts";
import { dataDisk, type Sources, treeDisk } from "./tree-disks.ts";

const memoryMb = 4_096;
/** With two, QEMU's emulation of AMD's virtualization fails now and then: VMs inside hang, and the machine's kernel panics. */
const vcpus = 1;
const bootDeadlineMs = 300_000;
const powerOffDeadlineMs = 120_000;
const pollMs = 500;
/** Of the service in the machine. */
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
  /** Of the time stamp counter, which emulation hands on: a kernel that measures it itself is wrong by too much. */
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
  /** Of systemd, what it was started with. */
  #unit: string | undefined;

  /** A new machine: builds what is missing, starts it, and resolves when commands can be run in it. */
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
    const [sshPort, apiPort] = [await freePort(), await freePort()];
    const tscKhz = await measureTscKhz(qemu);
    const state = { pid: 0, startTicks: "", sshPort, apiPort, shape, root, emulator: qemu, tscKhz };
    const machine = new Machine(folder, state);
    progress("starting the machine");
    await machine.start();
    return machine;
  }

  /** The one that was created in this folder; undefined: none. */
  static async open(folder: string): Promise<Machine | undefined> {
    const text = await readFile(join(folder, "machine.json"), "utf8").catch(() => undefined);
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
    this.#unit = unit;
    const log = openSync(join(this.folder, "qemu.log"), "a");
    for (const path of [this.#door.socket, this.#console]) await rm(path, { force: true });
    const [program, ...args] = this.#state.emulator;
    const child = spawn(program, [...args, ...this.#qemuArgs(unit)], { detached: true, stdio: ["ignore", log, log] });
    await new Promise((resolve, reject) => child.once("spawn", resolve).once("error", reject));
    child.unref();
    const pid = child.pid!;
    await this.#keep({ ...this.#state, pid, startTicks: (await startTicks(pid)) ?? "" });
  }

  /**
   * To be called while a start is awaited. Emulation sometimes loses the timer of a CPU at boot; then its kernel reports that
   * the CPU stands still, everything takes minutes, and another start is the way out.
   */
  async startAgainIfStalled(): Promise<void> {
    const said = await readFile(this.#console, "utf8").catch(() => "");
    if (!/rcu: INFO: \w+ (self-)?detected stalls?/.test(said)) return;
    await this.cut();
    await this.powerOn(this.#unit);
  }

  /** Of the machine to ours: its kernel reads the time from a device that counts seconds. */
  async setClock(): Promise<void> {
    const options = { user: "root", onReady: () => `${Date.now() / 1_000}\n` } as const;
    await this.sh('echo ready; read -r now; date --set="@$now"', options);
  }

  async isRunning(): Promise<boolean> {
    const { pid, startTicks: known } = this.#state;
    return pid !== 0 && (await startTicks(pid)) === known;
  }

  /** Runs a shell command in the working tree. */
  run(command: string, options: RunOptions = {}): Promise<Outcome> {
    const user = options.user ?? (this.shape.isRootless ? "tester" : "root");
    return ssh(this.#door, command, { ...options, user });
  }

  /** As `run`; rejects unless the command ends with 0. Resolves with its standard output, trimmed. */
  async sh(command: string, options: RunOptions = {}): Promise<string> {
    const { code, stdout, stderr } = await this.run(command, options);
    if (code !== 0) throw new Error(`in the machine: ${command}: ended with ${code}\n${stdout}${stderr}`);
    return stdout.trim();
  }

  async reboot(): Promise<void> {
    await this.powerOff();
    await this.start();
  }

  /** An orderly end. */
  async powerOff(): Promise<void> {
    if (!(await this.isRunning())) return;
    await this.run("systemctl poweroff", { user: "root", deadlineMs: powerOffDeadlineMs }).catch(() => {});
    await this.#isGone(powerOffDeadlineMs).catch(() => this.cut());
  }

  /** A power cut. */
  async cut(): Promise<void> {
    if (!(await this.isRunning())) return;
    process.kill(this.#state.pid, "SIGKILL");
    await this.#isGone(powerOffDeadlineMs);
  }

  /** For a process that ends: cuts the power and waits for nothing. */
  abandon(): void {
    try {
      process.kill(this.#state.pid, "SIGKILL");
    } catch {} // it has ended
  }

  /** Cuts its power and removes its folder. */
  async remove(): Promise<void> {
    await this.cut();
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
    return join(this.folder, "console.log");
  }

  async #reached(): Promise<void> {
    const deadline = performance.now() + bootDeadlineMs;
    for (;;) {
      const { code } = await this.run("true", { user: "root" });
      if (code === 0) return;
      await this.startAgainIfStalled();
      if (!(await this.isRunning())) throw new Error(`the machine ended; see ${this.folder}/qemu.log and console.log`);
      if (performance.now() > deadline) throw new Error(`the machine does not come up; see ${this.folder}/console.log`);
      await delay(pollMs);
    }
  }

  async #isGone(deadlineMs: number): Promise<void> {
    const deadline = performance.now() + deadlineMs;
    while (await this.isRunning()) {
      if (performance.now() > deadline) throw new Error("the machine does not end");
      await delay(pollMs / 10);
    }
  }

  async #keep(state: State): Promise<void> {
    this.#state = state;
    const path = join(this.folder, "machine.json");
    await writeFile(`${path}.new`, JSON.stringify(state, null, 1));
    await rename(`${path}.new`, path);
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

async function startTicks(pid: number): Promise<string | undefined> {
  const stat = await readFile(`/proc/${pid}/stat`, "utf8").catch(() => undefined);
  const fields = stat?.slice(stat.lastIndexOf(")") + 2).split(" ");
  return fields === undefined || fields[0] === "Z" ? undefined : fields[19];
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address() as { port: number };
  await new Promise((resolve) => server.close(resolve));
  return port;
}
