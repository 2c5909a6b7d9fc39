/**
 * Translation warm-up: a warm process runs the first steps of a capsule in a temporary guest, of which only QEMU's translated
 * code stays. vmm/warm/warm-qemu.ts has the mechanism and says which processes can do it.
 */
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { emptyOverlay } from "../../vmm/qcow2.ts";
import type { Vm, WarmProcess } from "../../vmm/vmm.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { type CapsuleFile, diskName } from "../disk/capsule-folder.ts";
import { fileNames, readManifest } from "../disk/checkpoint-folder.ts";
import type { Paths } from "../disk/paths.ts";
import { type Connect, identityOf, LiveGuest } from "../guest.ts";
import { overlayOn } from "../images/boot.ts";
import type { TemplateStore } from "../images/template-store.ts";
import { warmUpAndPark, warmUpCommands } from "../warm-up.ts";

export interface TranslationWarmupOptions {
  paths: Paths;
  templates: Pick<TemplateStore, "image">;
  connect: Connect;
  /** Deadline of an agent's first answer after a restore. */
  wakeMs: number;
}

/** A VM that claims the process starts with its cycle counter ahead by the duration of the warm-up. */
const deadlineMs = 5_000;
/** After a failure, processes for the same parent are not warmed up for this long. */
const suspensionMs = 600_000;
const maxSuspended = 64;
/** Host name of the temporary guest. */
const guestName = "warm-up";

export class TranslationWarmup {
  readonly #options: TranslationWarmupOptions;
  readonly #deadlineMs: number;
  /** Until when, by parent. */
  readonly #suspended = new Map<string, number>();

  constructor(options: TranslationWarmupOptions, deadline = deadlineMs) {
    this.#options = options;
    this.#deadlineMs = deadline;
  }

  /** Does nothing for a process that cannot be warmed up. On failure, and when `signal` fires, the process is ended. */
  async run(warm: WarmProcess, target: CapsuleFile, signal: AbortSignal): Promise<void> {
    const { parent } = target;
    signal.throwIfAborted();
    if (!warm.canWarmTranslations || performance.now() < (this.#suspended.get(parent) ?? 0)) return;
    const late = new AbortController();
    const why = `the translation warm-up for ${parent} took longer than ${this.#deadlineMs} ms`;
    const timer = setTimeout(() => late.abort(new CapsuleError("agent_error", why)), this.#deadlineMs);
    try {
      await this.#run(warm, target, AbortSignal.any([signal, late.signal]));
    } catch (error) {
      if (!signal.aborted) this.#suspend(parent);
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  async #run(warm: WarmProcess, target: CapsuleFile, signal: AbortSignal): Promise<void> {
    const { paths, templates } = this.#options;
    const { parent, image } = target;
    const { dir } = warm.spec.files;
    const source = join(paths.data, parent);
    const layer = join(dir, diskName);
    const overlay = overlayOn(dir, join(source, fileNames.disk), "qcow2", templates.image(image).diskBytes);
    try {
      await writeFile(layer, emptyOverlay(overlay), { mode: 0o600 });
      const saved = { state: join(source, fileNames.state), memory: null };
      const protocol = (await readManifest(source))?.agent.protocol;
      await warm.warmTranslations(saved, layer, (vm) => this.#warmUp(vm, target, protocol, signal), signal);
    } catch (error) {
      await warm.kill();
      throw error;
    } finally {
      await rm(layer, { force: true });
    }
  }

  /** Disconnects as soon as `signal` fires: afterwards the path of the socket may belong to another VM. */
  async #warmUp(vm: Vm, target: CapsuleFile, protocol: number | undefined, signal: AbortSignal): Promise<void> {
    const { connect, wakeMs } = this.#options;
    await vm.resume();
    signal.throwIfAborted();
    const agent = await connect(vm.agentSocket, wakeMs, signal, protocol);
    const guest = new LiveGuest(guestName, target, vm, agent, { connect, reconnectMs: wakeMs });
    const disconnect = () => guest.disconnect();
    signal.addEventListener("abort", disconnect);
    try {
      signal.throwIfAborted();
      await agent.wake(identityOf(guestName));
      await warmUpAndPark(guest, warmUpCommands.minimal);
    } finally {
      signal.removeEventListener("abort", disconnect);
      guest.disconnect();
    }
  }

  #suspend(parent: string): void {
    this.#suspended.delete(parent);
    this.#suspended.set(parent, performance.now() + suspensionMs);
    for (const oldest of this.#suspended.keys()) {
      if (this.#suspended.size > maxSuspended) this.#suspended.delete(oldest);
    }
  }
}
