/**
 * What a VM's own folder holds besides its disk layer: two sockets, a blank's for a moment a third, and the file through which QEMU's device state comes
 * and goes. All of them are made by us. QEMU can write to that one file and cannot replace it; still nothing is believed
 * of it when it is read.
 */
import { closeSync, constants, fstatSync, openSync, readSync, type Stats } from "node:fs";
import { type FileHandle, open, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type Listener, listenIn } from "./listener.ts";

export const agentSocketName = "agent.sock";
export const qmpSocketName = "qmp.sock";
export const qtestSocketName = "qtest.sock";
export const devicesName = "devices";

/** A device state takes some 12 KB, and a few more for each further CPU. */
export const devicesLimitBytes = 16 << 20;

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

/** Lays a saved device state, or none, where QEMU reads and writes it; returns its path. */
export async function layDevices(folder: string, saved: string | null): Promise<string> {
  const path = join(folder, devicesName);
  await writeFile(path, saved === null ? "" : await readFile(saved), { mode: 0o600, flag: "wx" });
  return path;
}

/** Moves all that QEMU was given in one folder to another. */
export async function moveFolder(from: string, to: string): Promise<void> {
  for (const name of [agentSocketName, qmpSocketName, devicesName]) await rename(join(from, name), join(to, name));
}

/** Writes into the file that QEMU sees: this very file, wherever it has been moved. */
export async function writeDevices(folder: string, devices: Uint8Array): Promise<void> {
  await using file = await openDevices(folder, constants.O_TRUNC);
  await file.writeFile(devices);
}

/** So that QEMU does not have to, for whom somebody waits: emptying a file takes several times as long as filling it. */
export async function emptyDevices(folder: string): Promise<void> {
  await using file = await openDevices(folder);
  requirePlain(await file.stat());
  await file.truncate(0);
}

/** Waits for nobody at its other end. */
function openDevices(folder: string, flags = 0): Promise<FileHandle> {
  const careful = constants.O_WRONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
  return open(join(folder, devicesName), careful | flags);
}

/** What QEMU has written there a moment ago. Throws on anything but a plain file of some device state's size. */
export function readDevices(folder: string): Buffer {
  const fd = openSync(join(folder, devicesName), constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    const found = fstatSync(fd);
    requirePlain(found);
    if (found.size === 0 || found.size > devicesLimitBytes)
      throw new Error(`QEMU's device state has ${found.size} bytes`);
    const bytes = Buffer.alloc(found.size);
    return bytes.subarray(0, readSync(fd, bytes, 0, bytes.length, 0));
  } finally {
    closeSync(fd);
  }
}

function requirePlain(found: Stats): void {
  if (!found.isFile() || found.nlink !== 1) throw new Error("QEMU's device state is no plain file");
}

export async function clearFolder(folder: string): Promise<void> {
  const sockets = [agentSocketName, qmpSocketName, qtestSocketName].flatMap((name) => [name, `${name}.new`]);
  await Promise.all([...sockets, devicesName].map((name) => rm(join(folder, name), { force: true })));
}
