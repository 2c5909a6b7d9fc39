/**
 * What a process that waits does meanwhile: the first steps of the capsules it waits for, in a guest that is nobody's and of
 * which nothing stays but the process's knowing how. Whether there is anything to know is the process's own business.
 */
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { emptyOverlay } from "../../vmm/qcow2.ts";
import type { Vm, WarmProcess } from "../../vmm/vmm.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { type CapsuleFile, diskName } from "../disk/capsule-folder.ts";
import { fileNames } from "../disk/checkpoint-folder.ts";
import type { Paths } from "../disk/paths.ts";
import { type Connect, LiveGuest } from "../guest.ts";
import { identityOf } from "../identity.ts";
import { overlayOn } from "../images/boot.ts";
import type { TemplateStore } from "../images/template-store.ts";
import { minimalWarmUp, warmUpAndPark } from "./warm-up.ts";

export interface TranslationWarmupOptions {
  paths: Paths;
  sources: Pick<TemplateStore, "image">;
  connect: Connect;
  /** Deadline of an agent's first answer after a restore. */
  wakeMs: number;
}

/**
 * Longest rehearsal. What becomes of the process begins with its cycle counter ahead by the time this took, and one that takes
 * this long saves nobody anything.
 */
const longestMs = 5_000;
/** After one that failed, the next processes for the same do without for so long. */
const restMs = 600_000;
const mostResting = 64;
/** Whose host name and machine id the guest has for the while. */
const nobody = "nobody";

export class TranslationWarmup {
  readonly #options: TranslationWarmupOptions;
  readonly #longestMs: number;
  /** By origin, until when. */
  readonly #suspended = new Map<string, number>();

  constructor(options: TranslationWarmupOptions, longest = longestMs) {
    this.#options = options;
    this.#longestMs = longest;
  }

  /** Rejects when it fails or is unwanted; the process is ended then, and the next for the same will not be asked to. */
  async run(
    warm: WarmProcess,
    { origin, image }: Pick<CapsuleFile, "origin" | "image">,
    signal: AbortSignal,
  ): Promise<void> {
    signal.throwIfAborted();
    if (!warm.canWarmTranslations || performance.now() < (this.#suspended.get(origin) ?? 0)) return;
    const late = new AbortController();
    const why = `the rehearsal for ${origin} took longer than ${this.#longestMs} ms`;
    const timer = setTimeout(() => late.abort(new CapsuleError("agent_error", why)), this.#longestMs);
    const over = AbortSignal.any([signal, late.signal]);
    try {
      await this.#rehearse(warm, { origin, image }, over);
    } catch (error) {
      if (!signal.aborted) this.#suspend(origin);
      throw over.aborted ? over.reason : error;
    } finally {
      clearTimeout(timer);
    }
  }

  async #rehearse(
    warm: WarmProcess,
    { origin, image }: Pick<CapsuleFile, "origin" | "image">,
    over: AbortSignal,
  ): Promise<void> {
    const { paths, sources } = this.#options;
    const { dir } = warm.spec.files;
    const source = join(paths.data, origin);
    const layer = join(dir, diskName);
    const overlay = overlayOn(dir, join(source, fileNames.disk), "qcow2", sources.image(image).diskBytes);
    let ending: Promise<void> | undefined;
    const end = () => {
      ending = warm.kill();
      ending.catch(() => {}); // seen below
    };
    try {
      await writeFile(layer, emptyOverlay(overlay), { mode: 0o600 });
      over.throwIfAborted();
      const saved = { state: join(source, fileNames.state), memory: null };
      const rehearsal = warm.warmTranslations(saved, layer, (vm) => this.#play(vm, over));
      over.addEventListener("abort", end);
      await rehearsal;
    } catch (error) {
      await (ending ?? warm.kill());
      throw error;
    } finally {
      over.removeEventListener("abort", end);
      await rm(layer, { force: true });
    }
  }

  /** Lets go of the guest as soon as it is over, before its VM is ended. */
  async #play(vm: Vm, over: AbortSignal): Promise<void> {
    const { connect, wakeMs } = this.#options;
    await vm.resume();
    over.throwIfAborted();
    const agent = await connect(vm.agentSocket, wakeMs, over);
    const guest = new LiveGuest(nobody, null, vm, agent, { connect, reconnectMs: wakeMs });
    const leave = () => guest.disconnect();
    over.addEventListener("abort", leave);
    try {
      over.throwIfAborted();
      await agent.wake(identityOf(nobody));
      await warmUpAndPark(guest, minimalWarmUp);
    } finally {
      over.removeEventListener("abort", leave);
      guest.disconnect();
    }
  }

  #suspend(origin: string): void {
    this.#suspended.delete(origin);
    this.#suspended.set(origin, performance.now() + restMs);
    for (const oldest of this.#suspended.keys()) if (this.#suspended.size > mostResting) this.#suspended.delete(oldest);
  }
}
