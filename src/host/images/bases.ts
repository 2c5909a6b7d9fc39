/**
 * Bases, the checkpoints of built-in images: each image is booted once per shape and machine and saved when its agent
 * answers, and every capsule of that shape starts from this checkpoint. Before one is made, those are removed that no capsule
 * needs beyond the spare ones (base-trimmer.ts).
 */
import { hash } from "node:crypto";
import { readdir, readFile, rm, stat, utimes } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { basename, join } from "node:path";
import type { Agent } from "../../agent/agent.ts";
import { flattenMemory } from "../../vmm/memory/base-memory.ts";
import { newNonce } from "../../vmm/process.ts";
import { saveVm } from "../../vmm/vm-save.ts";
import type { Machine, Vm, Vmm } from "../../vmm/vmm.ts";
import { FairSlots } from "../capacity/fair-slots.ts";
import { unlessAborted, withDeadline } from "../deadline.ts";
import { removeVm } from "../disk/capsule-folder.ts";
import { fileNames, openCheckpoint, writeManifest } from "../disk/checkpoint-folder.ts";
import { type DiskSpace, writtenIn } from "../disk/disk-space.ts";
import { publish } from "../disk/files.ts";
import { isSameRate } from "../disk/machine-record.ts";
import { imageLayer, type Manifest } from "../disk/manifest.ts";
import type { Paths } from "../disk/paths.ts";
import { type Connect, identityOf } from "../guest.ts";
import type { Shape, Turn } from "../host.ts";
import { runWarmUp, type WarmUpCommand } from "../warm-up.ts";
import { BaseTrimmer, type BaseTrimmerOptions } from "./base-trimmer.ts";
import { bootUntilAnswered, type SilentGuest, zeroName } from "./boot.ts";
import type { ImageStore } from "./image-store.ts";
import type { Image } from "./images.ts";

/** The checkpoint of a base or template, from which capsules start. */
export interface Parent {
  folder: string;
  manifest: Manifest;
}

export interface BasesOptions extends Pick<BaseTrimmerOptions, "spare" | "references" | "onRemove"> {
  paths: Paths;
  space: DiskSpace;
  images: Pick<ImageStore, "current">;
  vmm: Vmm;
  connect: Connect;
  bootMs: number;
  /** Called for each boot whose guest says nothing. */
  onSilentBoot: (guest: SilentGuest) => void;
  /** False for a folder that was found damaged. */
  isSound: (folder: string) => boolean;
  /** The line of boots, `lineOfBases` unless a test has its own. */
  line?: Pick<FairSlots, "run">;
}

/**
 * A boot takes seconds of a whole core, so boots have a line of their own: no other start waits behind them. They leave a core to
 * the starts on small machines.
 */
export function lineOfBases(): FairSlots {
  return new FairSlots(availableParallelism() > 4 ? 2 : 1, { perOwner: 1 });
}

/** Upper estimate of a base's memory and disk layer. */
const baseBytes = 256 << 20;

/** An owner's turn to make a base. */
interface Waiting {
  base: Promise<Parent>;
  /** Callers that have not left. */
  callers: number;
  /** Fires when the last one has left. */
  abandoned: AbortController;
}

export class Bases {
  readonly #options: BasesOptions;
  readonly #line: Pick<FairSlots, "run">;
  readonly #trimmer: BaseTrimmer;
  readonly #making = new Map<string, Promise<Parent>>();
  /** By owner and key: each owner that needs a base waits for its own turn to make it. */
  readonly #waiting = new Map<string, Waiting>();
  readonly #ready = new Map<string, Parent>();
  /** By the hash of an image, whether its agent can make the root file system larger. */
  readonly #growing = new Map<string, boolean>();

  constructor(options: BasesOptions) {
    this.#options = options;
    this.#line = options.line ?? lineOfBases();
    this.#trimmer = new BaseTrimmer({
      ...options,
      isCurrent: (name) => this.#isCurrent(name),
      onRemove: (folder) => {
        for (const [key, base] of this.#ready) if (base.folder === folder) this.#ready.delete(key);
        return options.onRemove(folder);
      },
    });
  }

  /**
   * The base of this image and shape, which is not removed until the result is disposed of: then `references` must find the
   * capsule that was started from it. If there is none, it is booted at the owner's turn, one of an owner at a time. When the
   * signal fires this rejects with its reason; a boot under way goes on, and one that waits for its turn is dropped if no other call
   * of the owner needs it.
   */
  async ensure(image: Image, shape: Shape, turn: Turn): Promise<Parent & Disposable> {
    const { vmm } = this.#options;
    const machine = vmm.machine(shape.vcpus, shape.memoryMb);
    const key = keyOf(image, machine, vmm.kernelOptions);
    const base = this.#usable(key) ?? (await this.#waitFor(key, image, machine, turn));
    return Object.assign(this.#trimmer.use(basename(base.folder), turn.owner), base);
  }

  /** Whether the agent of an image can make its root file system larger; undefined: no base of it was used yet. */
  canGrow({ hash }: Pick<Image, "hash">): boolean | undefined {
    return this.#growing.get(hash);
  }

  /** Removes the bases of older builds of the image or QEMU, and those beyond the spare ones, that no capsule needs. */
  trim(): Promise<void> {
    return this.#trimmer.trim();
  }

  /** The base of this name, once it is there, is not removed until the result is disposed of. */
  hold(name: string): Promise<Disposable> {
    return this.#trimmer.hold(name);
  }

  async #waitFor(key: string, image: Image, machine: Machine, { owner, signal }: Turn): Promise<Parent> {
    signal?.throwIfAborted();
    const name = JSON.stringify([owner, key]);
    const waiting = this.#waiting.get(name) ?? this.#wait(key, image, machine, owner);
    this.#waiting.set(name, waiting);
    waiting.callers++;
    try {
      return await unlessAborted(signal, waiting.base);
    } finally {
      if (--waiting.callers === 0) {
        this.#waiting.delete(name);
        waiting.abandoned.abort();
      }
    }
  }

  #wait(key: string, image: Image, machine: Machine, owner: string): Waiting {
    const abandoned = new AbortController();
    const find = async () => {
      const found = await this.#find(key, machine);
      if (found !== undefined) return found;
      abandoned.signal.throwIfAborted();
      const make = () => this.#makeOnce(key, image, machine, owner);
      return this.#line.run(owner, make, abandoned.signal);
    };
    return { base: find(), callers: 0, abandoned };
  }

  #makeOnce(key: string, image: Image, machine: Machine, owner: string): Promise<Parent> {
    const ready = this.#usable(key);
    if (ready !== undefined) return Promise.resolve(ready);
    let making = this.#making.get(key);
    if (making === undefined) {
      making = this.#make(key, image, machine, owner).finally(() => this.#making.delete(key));
      this.#making.set(key, making);
    }
    return making;
  }

  /** The base that is in use; undefined once it was found damaged. */
  #usable(key: string): Parent | undefined {
    const base = this.#ready.get(key);
    return base !== undefined && this.#options.isSound(base.folder) ? base : undefined;
  }

  #isCurrent(name: string): boolean {
    const { images, vmm } = this.#options;
    const qemu = `_${inKey(qemuOf(vmm.machine(1, 128)))}_`;
    return name.includes(qemu) && images.current.some((image) => name.startsWith(keyOfImage(image)));
  }

  /**
   * The newest undamaged base of this key whose guest knows this machine's rate of the time stamp counter, and whose agent's
   * abilities are recorded. Others stay for their capsules, and another folder is made.
   */
  async #find(key: string, { tscKhz }: Machine): Promise<Parent | undefined> {
    const { paths, isSound } = this.#options;
    for (const name of await this.#namesOf(key)) {
      const folder = paths.base(name);
      if (!isSound(folder) || this.#trimmer.isBeingRemoved(name)) continue;
      using _use = this.#trimmer.use(name);
      const manifest = await openCheckpoint(folder).catch(() => undefined);
      if (manifest?.agent.grows === undefined || !isSameRate(manifest.machine.tscKhz, tscKhz)) continue;
      await utimes(folder, new Date(), new Date());
      return this.#keep(key, { folder, manifest });
    }
    return undefined;
  }

  /** Folders of this key, newest first: an older one may have been replaced for damage that an earlier daemon found. */
  async #namesOf(key: string): Promise<string[]> {
    const { paths } = this.#options;
    const names = (await readdir(paths.bases)).filter((name) => isOfKey(name, key));
    const changedMs = (name: string) =>
      stat(paths.base(name)).then(
        (found) => found.mtimeMs,
        () => 0,
      );
    const dated = await Promise.all(names.map(async (name) => ({ name, ms: await changedMs(name) })));
    return dated.sort((a, b) => b.ms - a.ms).map(({ name }) => name);
  }

  #keep(key: string, base: Parent): Parent {
    this.#ready.set(key, base);
    this.#growing.set(base.manifest.image.hash, base.manifest.agent.grows === true);
    return base;
  }

  async #make(key: string, image: Image, machine: Machine, owner: string): Promise<Parent> {
    const { paths, space, vmm, connect, bootMs, onSilentBoot } = this.#options;
    const nonce = newNonce();
    const folder = paths.scratch(`base-${nonce}`);
    await this.trim().catch(() => {}); // the reconciler tries again, and reports it
    const what = `booting ${image.name} for ${machine.memoryMb} MiB`;
    using room = await space.orReclaim(() => space.reserve(baseBytes, what, () => writtenIn(folder)));
    let vm: Vm | undefined;
    try {
      const name = `base-${key}`;
      const boot = { vmm, connect, image, machine, folder, name, nonce, deadlineMs: bootMs, onSilence: onSilentBoot };
      const booted = await bootUntilAnswered(boot);
      vm = booted.vm;
      const { agent } = booted;
      await withDeadline(bootMs, `warming up the base of ${image.name}`, prepare(agent));
      const diff = join(folder, "diff");
      await saveVm(vm, { state: join(folder, fileNames.state), memory: diff });
      agent.close();
      await vm.kill();
      const zero = join(folder, zeroName);
      await flattenMemory(zero, diff, join(folder, fileNames.memory));
      await Promise.all([rm(zero), rm(diff), removeVm(folder)]);
      const layers = [imageLayer(image.name, image.hash, image.manifest.files["root.ext4"].sha256)];
      const about = {
        machine,
        layers,
        agent: { protocol: agent.protocol, grows: agent.canGrow },
        revision: null,
        diskLayer: null,
      };
      const saved = { ...about, kind: "base", frozen: true } as const;
      const manifest = await writeManifest(folder, saved, [fileNames.state, fileNames.memory, fileNames.disk], {
        hashAll: true,
      });
      const published = `${key}-${await contentOf(folder)}`;
      using _use = this.#trimmer.use(published, owner);
      this.#trimmer.noteMade(published);
      room[Symbol.dispose]();
      await publish(folder, paths.base(published));
      return this.#keep(key, { folder: paths.base(published), manifest });
    } catch (error) {
      await vm?.kill();
      await rm(folder, { recursive: true, force: true }).catch(() => {});
      throw error;
    }
  }
}

/** Prepares a booted guest for its checkpoint: warmed up, its page cache written out, frozen. */
async function prepare(agent: Agent): Promise<void> {
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

/** The end of a base's name: other content has another, on whichever host it was made. */
async function contentOf(folder: string): Promise<string> {
  return hash("sha256", await readFile(join(folder, fileNames.manifest))).slice(0, 8);
}

/** Earlier releases named a base by its key alone, and further ones of the key by a random number. */
function isOfKey(name: string, key: string): boolean {
  return name === key || (name.startsWith(key) && /^-(again-.*|[0-9a-f]{8})$/.test(name.slice(key.length)));
}

/** The beginning of the names of its folders. */
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
