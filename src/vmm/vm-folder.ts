/**
 * What a VM's own folder holds besides its disk layer: two sockets, and the file through which QEMU's device state comes
 * and goes. All of them are made by us. QEMU can write to that one file and cannot replace it; still nothing is believed
 * of it when it is read.
 */
import { closeSync, constants, fstatSync, openSync, readSync } from "node:fs";
import { readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type Listener, listenIn } from "./listener.ts";

export const agentSocketName = "agent.sock";
export const qmpSocketName = "qmp.sock";
export const devicesName = "devices";

/** A device state takes some 12 KB, and a few more for each further CPU. */
export const devicesLimitBytes = 16 << 20;

/** The sockets, in the order in which QEMU inherits them. */
export async function listenForVm(folder: number): Promise<Listener[]> {
  const agent = await listenIn(folder, agentSocketName);
  try {
    return [agent, await listenIn(folder, qmpSocketName)];
  } catch (error) {
    agent.close();
    throw error;
  }
}

/** Lays a saved device state, or none, where QEMU reads and writes it; returns its path. */
export async function layDevices(folder: string, saved: string | null): Promise<string> {
  const path = join(folder, devicesName);
  await writeFile(path, saved === null ? "" : await readFile(saved), { mode: 0o600, flag: "wx" });
  return path;
}

/** Moves all that QEMU was given in one folder to another, with a device state that was not known before. */
export async function moveFolder(from: string, to: string, saved: string): Promise<void> {
  const state = await readFile(saved);
  // Written into, and moved: what QEMU sees is this very file.
  await writeFile(join(from, devicesName), state, { flag: "r+" });
  for (const name of [agentSocketName, qmpSocketName, devicesName]) await rename(join(from, name), join(to, name));
}

/** What QEMU has written there a moment ago. Throws on anything but a plain file of a device state's size. */
export function readDevices(folder: string): Buffer {
  const fd = openSync(join(folder, devicesName), constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    const found = fstatSync(fd);
    if (!found.isFile() || found.nlink !== 1) throw new Error("QEMU's device state is no plain file");
    if (found.size > devicesLimitBytes) throw new Error(`QEMU's device state has ${found.size} bytes`);
    const bytes = Buffer.alloc(found.size);
    return bytes.subarray(0, readSync(fd, bytes, 0, bytes.length, 0));
  } finally {
    closeSync(fd);
  }
}

export async function clearFolder(folder: string): Promise<void> {
  const sockets = [agentSocketName, qmpSocketName].flatMap((name) => [name, `${name}.new`]);
  await Promise.all([...sockets, devicesName].map((name) => rm(join(folder, name), { force: true })));
}
