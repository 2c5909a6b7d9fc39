/**
 * What a process that waits does meanwhile: the first steps of the capsules it waits for, in a guest that is nobody's and of
 * which nothing stays but the process's knowing how. Whether there is anything to know is the process's own business.
 */
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { emptyOverlay } from "../../vmm/qcow2.ts";
import type { Blank, Vm } from "../../vmm/vmm.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { type CapsuleFile, diskName } from "../disk/capsule-folder.ts";
import { parts } from "../disk/checkpoint-folder.ts";
import type { Paths } from "../disk/paths.ts";
import { type Connect, LiveGuest } from "../guest.ts";
import { identityOf } from "../identity.ts";
import { overlayOn } from "../images/boot.ts";
import type { Sources } from "../images/template-store.ts";
import { exerciseToRest, firstSteps } from "./warm-up.ts";

export interface RehearsalsOptions {
  paths: Paths;
  sources: Pick<Sources, "image">;
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

export class Rehearsals {
  readonly #o: RehearsalsOptions;
  readonly #longestMs: number;
  /** By origin, until when. */
  readonly #resting = new Map<string, number>();

  constructor(options: RehearsalsOptions, longest = longestMs) {
    this.#o = options;
    this.#longestMs = longest;
  }

  /** Rejects when it fails or is unwanted; the process is ended then, and the next for the same will not be asked to. */
  async run(
    blank: Blank,
    { origin, image }: Pick<CapsuleFile, "origin" | "image">,
    unwanted: AbortSignal,
  ): Promise<void> {
    unwanted.throwIfAborted();
    if (!blank.canRehearse || performance.now() < (this.#resting.get(origin) ?? 0)) return;
    const late = new AbortController();
    const why = `the rehearsal for ${origin} took longer than ${this.#longestMs} ms`;
    const timer = setTimeout(() => late.abort(new CapsuleError("agent_error", why)), this.#longestMs);
    const over = AbortSignal.any([unwanted, late.signal]);
    try {
      await this.#rehearse(blank, { origin, image }, over);
    } catch (error) {
      if (!unwanted.aborted) this.#rest(origin);
      throw over.aborted ? over.reason : error;
    } finally {
      clearTimeout(timer);
    }
  }

  async #rehearse(
    blank: Blank,
    { origin, image }: Pick<CapsuleFile, "origin" | "image">,
    over: AbortSignal,
  ): Promise<void> {
    const { paths, sources } = this.#o;
    const { dir } = blank.spec.files;
    const source = join(paths.data, origin);
    const layer = join(dir, diskName);
    const overlay = overlayOn(dir, join(source, parts.disk), "qcow2", sources.image(image).diskBytes);
    let ending: Promise<void> | undefined;
    const end = () => {
      ending = blank.kill();
      ending.catch(() => {}); // seen below
    };
    try {
      await writeFile(layer, emptyOverlay(overlay), { mode: 0o600 });
      over.throwIfAborted();
      const saved = { state: join(source, parts.state), memory: null };
      const rehearsal = blank.rehearse(saved, layer, (vm) => this.#play(vm, over));
      over.addEventListener("abort", end);
      await rehearsal;
    } catch (error) {
      await (ending ?? blank.kill());
      throw error;
    } finally {
      over.removeEventListener("abort", end);
      await rm(layer, { force: true });
    }
  }

  /** Lets go of the guest as soon as it is over, before its VM is ended. */
  async #play(vm: Vm, over: AbortSignal): Promise<void> {
    const { connect, wakeMs } = this.#o;
    await vm.resume();
    over.throwIfAborted();
    const agent = await connect(vm.agentSocket, wakeMs, over);
    const guest = new LiveGuest(nobody, null, vm, agent, { connect, reconnectMs: wakeMs });
    const leave = () => guest.hangUp();
    over.addEventListener("abort", leave);
    try {
      over.throwIfAborted();
      await agent.wake(identityOf(nobody));
      await exerciseToRest(guest, firstSteps);
    } finally {
      over.removeEventListener("abort", leave);
      guest.hangUp();
    }
  }

  #rest(origin: string): void {
    this.#resting.delete(origin);
    this.#resting.set(origin, performance.now() + restMs);
    for (const oldest of this.#resting.keys()) if (this.#resting.size > mostResting) this.#resting.delete(oldest);
  }
}
