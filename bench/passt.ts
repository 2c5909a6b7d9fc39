/** A VM of the default shape with a network card behind passt, which copies its connections without a policy. */
import { execFile, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { chmod, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import type { Agent } from "../src/agent/agent.ts";
import { identityOf } from "../src/host/guest.ts";
import { bootImage } from "../src/host/images/boot.ts";
import { findProgram } from "../src/vmm/jail/program-files.ts";
import { installedProgram } from "../src/vmm/machine/qemu-program.ts";
import { Qemu } from "../src/vmm/qemu.ts";
import type { Vm } from "../src/vmm/vmm.ts";
import { waitFor } from "../test/wait-for.ts";
import { output } from "./booted-agent.ts";
import { connect, type Fixture } from "./fixture.ts";

const run = promisify(execFile);
const bootDeadlineMs = 120_000;
/** passt dials 127.0.0.1 of the host for it. */
export const passtGateway = "10.0.2.2";
const address = "10.0.2.15";
/** In loading order. Capsules have no network card, so their image has no driver of one. */
const drivers = ["failover", "net_failover", "virtio_net"];
const argumentBytes = 90_000;

export class PasstVm implements AsyncDisposable {
  readonly #folder: string;
  readonly #passt: { kill(): void };
  readonly #vm: Vm;
  readonly #agent: Agent;

  /** A sentence: why it cannot run here. */
  static async start(fixture: Fixture): Promise<PasstVm | string> {
    if (findProgram("passt") === undefined) return "passt is not installed";
    const folder = await mkdtemp(join(tmpdir(), "bench-passt-"));
    try {
      return await PasstVm.#startIn(folder, fixture);
    } catch (error) {
      await rm(folder, { recursive: true });
      return `a VM with passt: ${(error as Error).message}`;
    }
  }

  static async #startIn(folder: string, fixture: Fixture): Promise<PasstVm> {
    const { accelerator, images } = fixture.machine;
    const modules = await driversOf(images.default.manifest.kernel_release, folder);
    await chmod(folder, 0o777); // root's passt becomes nobody
    const socket = join(folder, "passt.sock");
    const own = ["-f", "-q", "-4", "-s", socket, "-a", address, "-n", "255.255.255.0", "-g", passtGateway];
    const passt = spawn("passt", own, { stdio: "ignore" });
    passt.on("error", () => {});
    let vm: Vm | undefined;
    try {
      await Promise.race([
        waitFor("passt listens", async () => (await readdir(folder)).includes("passt.sock")),
        once(passt, "exit").then(([code]) => Promise.reject(new Error(`passt exited with ${code}`))),
      ]);
      const vmm = new Qemu({ program: await programWithCard(folder, socket), accelerator, jail: undefined });
      const nonce = randomBytes(16).toString("hex");
      const boot = { vmm, connect, image: images.default, machine: vmm.machine(1, 512), deadlineMs: bootDeadlineMs };
      // In the server's folder, whose VMs its `down` ends too.
      const vmFolder = join(fixture.service.dataDir, "work", `bench-${nonce}`);
      const booted = await bootImage({ ...boot, folder: vmFolder, name: "bench-passt", nonce });
      vm = booted.vm;
      const started = new PasstVm(folder, passt, vm, booted.agent);
      await started.#connect(modules);
      return started;
    } catch (error) {
      await vm?.kill();
      passt.kill();
      throw error;
    }
  }

  private constructor(folder: string, passt: { kill(): void }, vm: Vm, agent: Agent) {
    this.#folder = folder;
    this.#passt = passt;
    this.#vm = vm;
    this.#agent = agent;
  }

  /** The command's output. Rejects unless it exits with 0. */
  run(cmd: string, ...args: string[]): Promise<string> {
    return output(this.#agent, cmd, ...args);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#agent.close();
    await this.#vm.kill();
    this.#passt.kill();
    await rm(this.#folder, { recursive: true });
  }

  async #connect(modules: Buffer[]): Promise<void> {
    await this.#agent.wake(identityOf("bench"));
    await this.#agent.thaw();
    for (const each of modules) await this.#load(each);
    const card = (await this.run("sh", "-c", "ls -d /sys/class/net/*/device")).split("/")[4]!;
    await this.run("ip", "address", "add", `${address}/24`, "dev", card);
    await this.run("ip", "link", "set", card, "up");
  }

  async #load(module: Buffer): Promise<void> {
    const text = module.toString("base64");
    const parts = Array.from({ length: Math.ceil(text.length / argumentBytes) }, (_, index) =>
      text.slice(index * argumentBytes, (index + 1) * argumentBytes),
    );
    const load = `
import base64, ctypes, sys
code = base64.b64decode("".join(sys.argv[1:]))
if ctypes.CDLL(None, use_errno=True).syscall(175, code, len(code), b"") != 0: # init_module
    sys.exit(f"error {ctypes.get_errno()}")`;
    await this.run("python3", "-c", load, ...parts);
  }
}

/** QEMU that adds a card to what it is told. */
async function programWithCard(folder: string, socket: string) {
  const program = await installedProgram("qemu-system-x86_64");
  const card = `-netdev stream,id=net,server=off,addr.type=unix,addr.path=${socket} -device virtio-net-device,netdev=net`;
  const wrapper = join(folder, "qemu");
  await writeFile(wrapper, `#!/bin/sh\nexec ${program.command.join(" ")} "$@" ${card}\n`, { mode: 0o755 });
  return { ...program, command: [wrapper] as const };
}

/** From Debian's package of the kernel. */
async function driversOf(release: string, folder: string): Promise<Buffer[]> {
  await run("apt-get", ["-q", "-o", "APT::Sandbox::User=root", "download", `linux-image-${release}`], { cwd: folder });
  const archive = (await readdir(folder)).find((name) => name.endsWith(".deb"))!;
  const tree = join(folder, "kernel");
  await run("dpkg-deb", ["-x", join(folder, archive), tree]);
  const files = await readdir(tree, { recursive: true });
  const paths = drivers.map((name) => join(tree, files.find((file) => file.endsWith(`/${name}.ko`))!));
  const modules = await Promise.all(paths.map((path) => readFile(path)));
  await rm(tree, { recursive: true });
  return modules;
}
