/**
 * Bases, the checkpoints of built-in images: each image is booted once per shape and machine and saved when its agent
 * answers, and every capsule of that shape starts from this checkpoint. Bases without a capsule are kept up to a limit, the
 * most recently used first.
 */
import { hash, randomBytes } from "node:crypto";
import { readdir, rename, rm, stat, utimes } from "node:fs/promises";
import { basename, join, relative } from "node:path";
import type { Agent } from "../../agent/agent.ts";
import { flattenMemory } from "../../vmm/memory/base-memory.ts";
import { saveVm } from "../../vmm/vm-save.ts";
import type { Machine, Vm, Vmm } from "../../vmm/vmm.ts";
import type { StartScheduler } from "../capacity/start-scheduler.ts";
import { withDeadline } from "../deadline.ts";
import { removeVm } from "../disk/capsule-folder.ts";
import { fileNames, openCheckpoint, writeManifest } from "../disk/checkpoint-folder.ts";
import type { DiskSpace } from "../disk/disk-space.ts";
import { publish } from "../disk/files.ts";
import { isSameRate } from "../disk/machine-record.ts";
import { imageLayer, type Manifest } from "../disk/manifest.ts";
import type { Paths } from "../disk/paths.ts";
import { type Connect, identityOf } from "../guest.ts";
import type { Shape } from "../host.ts";
import { runWarmUp, type WarmUpCommand } from "../warm-up.ts";
import { bootImage, zeroName } from "./boot.ts";
import type { Image } from "./images.ts";

export interface Base {
  folder: string;
  manifest: Manifest;
}

export interface BasesOptions {
  paths: Paths;
  space: DiskSpace;
  /** The current builds. */
  images: Image[];
  vmm: Vmm;
  connect: Connect;
  bootMs: number;
  /** How many bases without a capsule or template are kept. */
  spare: number;
  /** False for a folder that was found damaged. */
  isSound: (folder: string) => boolean;
  /** Called before a folder is removed: another base may take its path. */
  forget?: (folder: string) => void;
  /** Shared with all other starts of VMs. */
  scheduler: StartScheduler;
}

const graceMs = 600_000;
/** Upper estimate of a base's memory and disk layer. */
const baseBytes = 256 << 20;

export class Bases {
  readonly #options: BasesOptions;
  readonly #making = new Map<string, Promise<Base>>();
  /** By owner and key: each owner that needs a base waits for its own turn to make it. */
  readonly #waiting = new Map<string, Promise<Base>>();
  readonly #ready = new Map<string, Base>();
  readonly #usedMs = new Map<string, number>();

  constructor(options: BasesOptions) {
    this.#options = options;
  }

  /** The base of this image and shape, booted in a start slot of `owner` if there is none. */
  ensure(image: Image, shape: Shape, owner: string): Promise<Base> {
    const { vmm, scheduler } = this.#options;
    const machine = vmm.machine(shape.vcpus, shape.memoryMb);
    const key = keyOf(image, machine, vmm.kernelOptions);
    const ready = this.#sound(key);
    if (ready !== undefined) return Promise.resolve(this.#use(key, ready));
    const name = JSON.stringify([owner, key]);
    let waiting = this.#waiting.get(name);
    if (waiting === undefined) {
      waiting = this.#find(key, machine)
        .then((found) => found ?? scheduler.run(owner, () => this.#makeOnce(key, image, machine)))
        .finally(() => this.#waiting.delete(name));
      this.#waiting.set(name, waiting);
    }
    return waiting;
  }

  #makeOnce(key: string, image: Image, machine: Machine): Promise<Base> {
    const ready = this.#sound(key);
    if (ready !== undefined) return Promise.resolve(this.#use(key, ready));
    let making = this.#making.get(key);
    if (making === undefined) {
      making = this.#make(key, image, machine).finally(() => this.#making.delete(key));
      this.#making.set(key, making);
    }
    return making;
  }

  /** The base that is in use; undefined once it was found damaged. */
  #sound(key: string): Base | undefined {
    const base = this.#ready.get(key);
    return base !== undefined && this.#options.isSound(base.folder) ? base : undefined;
  }

  /**
   * Removes bases for which `isNeeded`, called with the path relative to the data folder, is false: all of older builds of the
   * image or QEMU, and the least recently used beyond the spare ones. A base returned by `ensure` within ten minutes stays, since the capsule that
   * needs it may not be written yet.
   */
  async trim(isNeeded: (folder: string) => boolean): Promise<void> {
    const { paths, images, spare, vmm } = this.#options;
    const qemu = `_${inKey(qemuOf(vmm.machine(1, 128)))}_`;
    const unused: { name: string; usedMs: number }[] = [];
    const outdated: { name: string }[] = [];
    for (const name of await readdir(paths.bases)) {
      if (isNeeded(relative(paths.data, paths.base(name)))) continue;
      const isCurrent = name.includes(qemu) && images.some((image) => name.startsWith(keyOfImage(image)));
      if (!isCurrent) outdated.push({ name });
      else unused.push({ name, usedMs: Math.max((await stat(paths.base(name))).mtimeMs, this.#usedMs.get(name) ?? 0) });
    }
    unused.sort((a, b) => b.usedMs - a.usedMs);
    for (const { name } of [...outdated, ...unused.slice(spare)]) {
      if (Date.now() - (this.#usedMs.get(name) ?? 0) < graceMs) continue;
      for (const [key, base] of this.#ready) if (base.folder === paths.base(name)) this.#ready.delete(key);
      this.#usedMs.delete(name);
      this.#options.forget?.(paths.base(name));
      const removed = paths.scratch(`trimmed-${name}`);
      await rename(paths.base(name), removed);
      await rm(removed, { recursive: true, force: true });
    }
  }

  /**
   * The newest undamaged base of this key whose guest knows this machine's rate of the time stamp counter. Others stay for their
   * capsules, and another folder is made.
   */
  async #find(key: string, { tscKhz }: Machine): Promise<Base | undefined> {
    const { paths, isSound } = this.#options;
    for (const name of await this.#namesOf(key)) {
      const folder = paths.base(name);
      if (!isSound(folder)) continue;
      const manifest = await openCheckpoint(folder).catch(() => undefined);
      if (manifest === undefined || !isSameRate(manifest.machine.tscKhz, tscKhz)) continue;
      await utimes(folder, new Date(), new Date());
      return this.#use(key, { folder, manifest });
    }
    return undefined;
  }

  /** Folders of this key, newest first: an older one may have been replaced for damage that an earlier daemon found. */
  async #namesOf(key: string): Promise<string[]> {
    const { paths } = this.#options;
    const names = (await readdir(paths.bases)).filter((name) => name === key || name.startsWith(`${key}-again`));
    const changedMs = (name: string) =>
      stat(paths.base(name)).then(
        (found) => found.mtimeMs,
        () => 0,
      );
    const dated = await Promise.all(names.map(async (name) => ({ name, ms: await changedMs(name) })));
    return dated.sort((a, b) => b.ms - a.ms).map(({ name }) => name);
  }

  #use(key: string, base: Base): Base {
    this.#ready.set(key, base);
    this.#usedMs.set(basename(base.folder), Date.now());
    return base;
  }

  async #make(key: string, image: Image, machine: Machine): Promise<Base> {
    const { paths, space, vmm, connect, bootMs } = this.#options;
    const nonce = randomBytes(16).toString("hex");
    const folder = paths.scratch(`base-${nonce}`);
    await space.require(baseBytes, `booting ${image.name} for ${machine.memoryMb} MiB`);
    let vm: Vm | undefined;
    try {
      const name = `base-${key}`;
      const booted = await bootImage({ vmm, connect, image, machine, folder, name, nonce, deadlineMs: bootMs });
      vm = booted.vm;
      const { agent } = booted;
      await withDeadline(bootMs, `settling the base of ${image.name}`, settle(agent));
      const diff = join(folder, "diff");
      await saveVm(vm, { state: join(folder, fileNames.state), memory: diff });
      agent.close();
      await vm.kill();
      const zero = join(folder, zeroName);
      await flattenMemory(zero, diff, join(folder, fileNames.memory));
      await Promise.all([rm(zero), rm(diff), removeVm(folder)]);
      await removeSockets(folder);
      const layers = [imageLayer(image.name, image.hash, image.manifest.files["root.ext4"].sha256)];
      const about = { machine, layers, agent: { protocol: agent.protocol }, revision: null, diskLayer: null };
      const saved = { ...about, kind: "base", frozen: true } as const;
      const manifest = await writeManifest(folder, saved, [fileNames.state, fileNames.memory, fileNames.disk], {
        hashAll: true,
      });
      const before = await this.#namesOf(key);
      const target = paths.base(before.length === 0 ? key : `${key}-again-${nonce.slice(0, 8)}`);
      await publish(folder, target);
      return this.#use(key, { folder: target, manifest });
    } catch (error) {
      await vm?.kill();
      await rm(folder, { recursive: true, force: true }).catch(() => {});
      throw error;
    }
  }
}

/** Prepares a booted guest for its checkpoint: warmed up, its page cache written out, frozen. */
async function settle(agent: Agent): Promise<void> {
  await agent.wake(identityOf(placeholderId));
  await agent.thaw();
  // Files that most capsules use first end up in the base's page cache: shared memory instead of a read in each capsule.
  await runWarmUp(agent, warmUp);
  await agent.freeze();
}

/** Has the length of every capsule id, so that the capsule's host name fits in its place. */
const placeholderId = `cl-${"0".repeat(25)}`;

const warmUp: WarmUpCommand[] = [
  ["/bin/true"],
  ["/bin/bash", "-c", "ls / | cat >/dev/null"],
  ["/usr/bin/python3", "-c", "import json, os, sys, subprocess"],
  ["/bin/sync"],
];

/** QEMU's sockets do not belong into a published folder. */
async function removeSockets(folder: string): Promise<void> {
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    if (entry.isSocket()) await rm(join(folder, entry.name));
  }
}

/** The base's folder. */
export function keyOf(image: Image, machine: Machine, kernelOptions: string): string {
  const { accelerator, cpu, cpuFeatures = "", devices } = machine;
  const [options, features] = [kernelOptions, cpuFeatures].map((text) => hash("sha256", text).slice(0, 8));
  const processor = [accelerator, cpu, ...(cpuFeatures === "" ? [] : [features])];
  const parts = [...processor, qemuOf(machine), ...devices, options].join("_");
  return `${keyOfImage(image)}${machine.vcpus}x${machine.memoryMb}-${inKey(parts)}`;
}

function qemuOf({ qemu, qemuBuild }: Machine): string {
  return qemuBuild === undefined ? qemu : `${qemu}-${qemuBuild.slice(0, 12)}`;
}

function inKey(parts: string): string {
  return parts.replace(/[^a-zA-Z0-9.]+/g, "_");
}

function keyOfImage({ name, hash }: Image): string {
  return `${name}-${hash.slice(0, 12)}-`;
}
