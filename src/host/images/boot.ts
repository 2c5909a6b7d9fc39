/** Boots a built-in image from its kernel, in a folder of its own, until its agent answers. */
import { truncate, writeFile } from "node:fs/promises";
import { join, relative } from "node:path";
import type { Agent } from "../../agent/agent.ts";
import { printable } from "../../agent/failure.ts";
import { emptyOverlay, type Overlay } from "../../vmm/qcow2.ts";
import type { Machine, Vm, Vmm } from "../../vmm/vmm.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { writeVm } from "../disk/capsule-folder.ts";
import { fileNames } from "../disk/checkpoint-folder.ts";
import { freshFolder } from "../disk/files.ts";
import type { Connect } from "../guest.ts";
import type { Image } from "./images.ts";

export interface Boot {
  vmm: Vmm;
  connect: Connect;
  image: Image;
  machine: Machine;
  /** Created or emptied; holds the memory file `zero`, the disk layer and the VM's sockets. */
  folder: string;
  /** In QEMU's command line. */
  name: string;
  nonce: string;
  deadlineMs: number;
  /** Ends the boot before the deadline. */
  signal?: AbortSignal;
  /** Called with what can be found out about a guest whose agent did not answer, before its VM is ended. */
  onSilence?: (guest: SilentGuest) => void;
}

export interface SilentGuest {
  /** In QEMU's command line. */
  name: string;
  /** As QEMU says: `running`, `stopped`, `shutdown`; undefined when it does not answer. */
  state: string | undefined;
  /** The end of the guest's console, 4 KiB at most. Guest text, without control characters but for line feeds. */
  console: string;
}

const consoleTailLength = 4_096;

/** Name of the all-zero memory file that a booted VM maps. */
export const zeroName = "zero";

/** Throws CapsuleError("agent_error") at the deadline; the VM is gone then, the folder is the caller's to remove. */
export async function bootImage(boot: Boot): Promise<{ vm: Vm; agent: Agent }> {
  const { vmm, connect, image, machine, folder, name, nonce, deadlineMs, signal } = boot;
  await freshFolder(folder);
  const memory = join(folder, zeroName);
  await writeFile(memory, "", { mode: 0o600 });
  await truncate(memory, machine.memoryMb * (1 << 20));
  const disk = join(folder, fileNames.disk);
  await writeFile(disk, emptyOverlay(overlayOn(folder, image.root, "raw", image.diskBytes)), { mode: 0o600 });
  await writeVm(folder, { nonce, process: null });
  const files = { dir: folder, memory, disk, backing: [image.root], kernel: image.kernel, initrd: image.initrd };
  const vm = await vmm.boot({ name, nonce, machine, files }, () => {}, signal);
  try {
    return { vm, agent: await connect(vm.agentSocket, deadlineMs, signal) };
  } catch (error) {
    if (isSilence(error)) boot.onSilence?.(await describeGuest(name, vm));
    await vm.kill();
    throw error;
  }
}

function isSilence(error: unknown): boolean {
  return error instanceof CapsuleError && error.code === "agent_error";
}

async function describeGuest(name: string, vm: Vm): Promise<SilentGuest> {
  const [state, printed] = await Promise.all([vm.state().catch(() => undefined), vm.console().catch(() => "")]);
  const lines = printed.slice(-consoleTailLength).split(/\r*\n/);
  return { name, state, console: lines.map(printable).join("\n").slice(-consoleTailLength) };
}

/**
 * As `bootImage`; a second time when the first guest's agent did not answer by the deadline. A guest was seen to hang in its boot,
 * under emulation on a busy machine.
 */
export async function bootUntilAnswered(boot: Boot): Promise<{ vm: Vm; agent: Agent }> {
  try {
    return await bootImage(boot);
  } catch (error) {
    if (!isSilence(error)) throw error;
    return await bootImage(boot);
  }
}

/** An overlay in `folder` on top of `backing`, named relatively so that the data folder can move. */
export function overlayOn(
  folder: string,
  backing: string,
  backingFormat: Overlay["backingFormat"],
  sizeBytes: number,
): Overlay {
  return { sizeBytes, backingFile: relative(folder, backing), backingFormat };
}
