/**
 * A VM's own folder besides its disk layer: the sockets of its parts and of its monitor, one more while a warm process starts,
 * and the file through which device state is exchanged with QEMU. The daemon creates all of them. QEMU can write that file but not replace it; its
 * content and type are checked whenever it is read.
 */
import { closeSync, constants, fstatSync, openSync, readSync } from "node:fs";
import { open, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type Listener, listenIn } from "./listener.ts";

export const agentSocketName = "agent.sock";
export const networkSocketName = "net.sock";
export const qmpSocketName = "qmp.sock";
export const qtestSocketName = "qtest.sock";
export const deviceStateName = "devices";
/** Each socket, also under the name that it is bound to. */
const socketPattern = /\.sock(\.new)?$/;

/** A device state has about 12 KB, and a few more for each further CPU. */
export const deviceStateMaxBytes = 16 << 20;

/** Listens on sockets of these names, in the order in which QEMU inherits them. */
export async function listenForVm(folder: number, names: readonly string[]): Promise<Listener[]> {
  const listeners: Listener[] = [];
  try {
    for (const name of names) listeners.push(await listenIn(folder, name));
    return listeners;
  } catch (error) {
    for (const listener of listeners) listener.close();
    throw error;
  }
}

/** Creates the device state file, with a saved state or empty; returns its path. */
export async function layDeviceState(folder: string, saved: string | null): Promise<string> {
  const path = join(folder, deviceStateName);
  await writeFile(path, saved === null ? "" : await readFile(saved), { mode: 0o600, flag: "wx" });
  return path;
}

/** Moves sockets and device state from one VM folder to another. */
export async function moveFolder(from: string, to: string): Promise<void> {
  const sockets = (await readdir(from)).filter((name) => socketPattern.test(name));
  for (const name of [...sockets, deviceStateName]) await rename(join(from, name), join(to, name));
}

const checkedFlags = constants.O_NOFOLLOW | constants.O_NONBLOCK;

/** Overwrites the file in place: QEMU's jail shows this inode. */
export async function writeDeviceState(folder: string, devices: Uint8Array): Promise<void> {
  await using file = await open(join(folder, deviceStateName), constants.O_WRONLY | constants.O_TRUNC | checkedFlags);
  await file.writeFile(devices);
}

/** The state that QEMU has just written. Throws unless it is a plain file of a plausible size. */
export function readDeviceState(folder: string): Buffer {
  const fd = openSync(join(folder, deviceStateName), constants.O_RDONLY | checkedFlags);
  try {
    const found = fstatSync(fd);
    if (!found.isFile() || found.nlink !== 1) throw new Error("QEMU's device state is no plain file");
    if (found.size === 0 || found.size > deviceStateMaxBytes)
      throw new Error(`QEMU's device state has ${found.size} bytes`);
    const bytes = Buffer.alloc(found.size);
    return bytes.subarray(0, readSync(fd, bytes, 0, bytes.length, 0));
  } finally {
    closeSync(fd);
  }
}

export async function clearFolder(folder: string): Promise<void> {
  const found = await readdir(folder).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return [];
    throw error;
  });
  const names = found.filter((name) => name === deviceStateName || socketPattern.test(name));
  await Promise.all(names.map((name) => rm(join(folder, name), { force: true })));
}
