/**
 * The throughput limit of the virtio-serial port and the guest's disk: a VM of the default shape whose process 1 copies
 * bytes without a protocol (guest/agent/examples/dumb-pipe.rs), and a plain socket on the host.
 */
import { execFile } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdir, readFile, rm, truncate, writeFile } from "node:fs/promises";
import net from "node:net";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { cpioArchive } from "../guest/image/cpio.ts";
import { overlayOn } from "../src/host/images/boot.ts";
import type { ThisMachine } from "../src/host/machine.ts";
import { emptyOverlay } from "../src/vmm/qcow2.ts";
import type { Vm } from "../src/vmm/vmm.ts";
import type { Fixture } from "./fixture.ts";

const crate = resolve(import.meta.dirname, "../guest/agent");
const chunk = randomBytes(65_536);
const bootDeadlineMs = 120_000;

export class DumbPipe implements AsyncDisposable {
  readonly #folder: string;
  readonly #vm: Vm;
  readonly #socket: net.Socket;
  /** The bytes still expected by the current operation. */
  #wanted = { bytes: 0, arrived: () => {} };

  static async start({ service: { dataDir }, machine }: Fixture): Promise<DumbPipe> {
    const folder = join(dataDir, "work", `dumb-${randomBytes(4).toString("hex")}`);
    await mkdir(folder, { recursive: true });
    const vm = await boot(machine, folder);
    const pipe = new DumbPipe(folder, vm, await connect(vm.agentSocket));
    await pipe.sync(AbortSignal.timeout(bootDeadlineMs));
    return pipe;
  }

  private constructor(folder: string, vm: Vm, socket: net.Socket) {
    this.#folder = folder;
    this.#vm = vm;
    this.#socket = socket;
    socket.on("data", (bytes) => {
      this.#wanted.bytes -= bytes.length;
      if (this.#wanted.bytes === 0) this.#wanted.arrived();
    });
  }

  /** Resolves when the guest has written everything to its file. */
  async write(sizeBytes: number): Promise<void> {
    const done = this.#receive(1);
    this.#socket.write(order("w", sizeBytes));
    for (let left = sizeBytes; left > 0; left -= chunk.length) {
      const part = left < chunk.length ? chunk.subarray(0, left) : chunk;
      if (!this.#socket.write(part)) await new Promise((drained) => this.#socket.once("drain", drained));
    }
    await done;
  }

  /** Reads the first bytes of the file. */
  async read(sizeBytes: number): Promise<void> {
    const done = this.#receive(sizeBytes);
    this.#socket.write(order("r", sizeBytes));
    await done;
  }

  /** Resolves when the guest has synced its disk. */
  async sync(signal?: AbortSignal): Promise<void> {
    const done = this.#receive(1, signal);
    this.#socket.write("s");
    await done;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#socket.destroy();
    await this.#vm.kill();
    await rm(this.#folder, { recursive: true, force: true });
  }

  #receive(bytes: number, signal?: AbortSignal): Promise<void> {
    return new Promise((arrived, late) => {
      this.#wanted = { bytes, arrived };
      signal?.addEventListener("abort", () => late(new Error("the dumb guest does not answer")));
    });
  }
}

async function boot({ vmm, images }: ThisMachine, folder: string): Promise<Vm> {
  const machine = vmm.machine(1, 512);
  const { root, kernel, initrd, diskBytes } = images.default;
  const memory = join(folder, "zero");
  await writeFile(memory, "");
  await truncate(memory, machine.memoryMb * (1 << 20));
  const disk = join(folder, "disk");
  await writeFile(disk, emptyOverlay(overlayOn(folder, root, "raw", diskBytes)));
  const dumbInitrd = join(folder, "initrd");
  await writeFile(dumbInitrd, Buffer.concat([await readFile(initrd), await replacementOfInit()]));
  const files = { dir: folder, memory, disk, backing: [root], kernel, initrd: dumbInitrd };
  return vmm.boot({ name: "dumb-pipe", nonce: randomBytes(16).toString("hex"), machine, files }, () => {});
}

/** The kernel unpacks all archives in order, so this one replaces /init. */
async function replacementOfInit(): Promise<Buffer> {
  await promisify(execFile)(join(crate, "build"), ["build", "--example", "dumb-pipe"]);
  const target = process.env.CARGO_TARGET_DIR ?? join(crate, "target");
  const content = await readFile(join(target, "release/examples/dumb-pipe"));
  return cpioArchive([{ kind: "file", path: "init", mode: 0o755, content }]);
}

function connect(socketPath: string): Promise<net.Socket> {
  return new Promise((connected, failed) => {
    const socket = net.connect(socketPath, () => connected(socket));
    socket.once("error", failed);
  });
}

function order(verb: "w" | "r", sizeBytes: number): Buffer {
  const bytes = Buffer.alloc(9, verb);
  bytes.writeBigUInt64LE(BigInt(sizeBytes), 1);
  return bytes;
}
