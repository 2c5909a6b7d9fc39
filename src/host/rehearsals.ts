/**
 * What a process that waits does meanwhile: the first steps of the capsules it waits for, in a guest that is nobody's and of
 * which nothing stays but the process's knowing how. Whether there is anything to know is the process's own business.
 */
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { emptyOverlay } from "../vmm/qcow2.ts";
import type { Blank, Vm } from "../vmm/vmm.ts";
import { overlayOn } from "./boot.ts";
import { parts } from "./checkpoints.ts";
import { within } from "./deadline.ts";
import { exerciseToRest, firstSteps } from "./exercise.ts";
import { type Connect, LiveGuest } from "./guest.ts";
import { identityOf } from "./identity.ts";
import { type CapsuleFile, diskName } from "./journal.ts";
import type { Paths } from "./paths.ts";
import type { Sources } from "./sources.ts";

export interface RehearsalsOptions {
  paths: Paths;
  sources: Pick<Sources, "image">;
  connect: Connect;
  /** Deadline of an agent's first answer after a restore. */
  wakeMs: number;
}

/** Loading, waking, exercising: each may take as long as waking. */
const shares = 3;
/** Whose host name and machine id the guest has for the while. */
const nobody = "nobody";

export class Rehearsals {
  readonly #o: RehearsalsOptions;

  constructor(options: RehearsalsOptions) {
    this.#o = options;
  }

  /** Rejects when it fails or is unwanted; the process is then ended, or is being ended. */
  async run(
    blank: Blank,
    { origin, image }: Pick<CapsuleFile, "origin" | "image">,
    unwanted: AbortSignal,
  ): Promise<void> {
    if (!blank.canRehearse) return;
    const { paths, sources, wakeMs } = this.#o;
    const { dir } = blank.spec.files;
    const source = join(paths.data, origin);
    const layer = join(dir, diskName);
    const overlay = overlayOn(dir, join(source, parts.disk), "qcow2", sources.image(image).diskBytes);
    const end = () => void blank.kill().catch(() => {}); // whoever is told of the failure ends it again
    unwanted.addEventListener("abort", end);
    try {
      unwanted.throwIfAborted();
      await writeFile(layer, emptyOverlay(overlay), { mode: 0o600 });
      const saved = { state: join(source, parts.state), memory: null };
      const rehearsal = blank.rehearse(saved, layer, (vm) => this.#play(vm));
      await within(shares * wakeMs, `the rehearsal for ${origin}`, rehearsal);
    } finally {
      unwanted.removeEventListener("abort", end);
      await rm(layer, { force: true });
    }
  }

  async #play(vm: Vm): Promise<void> {
    const { connect, wakeMs } = this.#o;
    await vm.resume();
    const agent = await connect(vm.agentSocket, wakeMs);
    const guest = new LiveGuest(nobody, vm, agent, connect, wakeMs);
    try {
      await agent.wake(identityOf(nobody));
      await exerciseToRest(guest, firstSteps);
    } finally {
      guest.hangUp();
    }
  }
}
