/** The guests of this host whose VMs run: which they are, how a restored one is let go on, and how one is ended. */
import { join } from "node:path";
import { CapsuleError } from "../wire/errors.ts";
import type { Admission } from "./capacity/admission.ts";
import type { Restorer } from "./checkpoint/restorer.ts";
import type { Verifier } from "./checkpoint/verifier.ts";
import { withDeadline } from "./deadline.ts";
import { checkpointName, markStopped, removeCheckpoint, removeVm } from "./disk/capsule-folder.ts";
import { dropAside } from "./disk/disk-layer.ts";
import type { DiskSpace } from "./disk/disk-space.ts";
import type { Paths } from "./disk/paths.ts";
import type { LiveGuest } from "./guest.ts";
import type { Guest } from "./host.ts";
import type { Step } from "./steps.ts";

export interface LiveGuestsOptions {
  paths: Pick<Paths, "capsule">;
  space: Pick<DiskSpace, "forgetPause">;
  admission: Pick<Admission, "trackRelease">;
  verifier: Pick<Verifier, "forget">;
  restorer: Pick<Restorer, "undo">;
  /** Deadline of an agent's first answer. */
  wakeMs: number;
  step: Step;
}

export class LiveGuests {
  readonly #options: LiveGuestsOptions;
  readonly #guests = new Map<string, LiveGuest>();
  /** Guests that were restored and not released yet. */
  readonly #restored = new WeakSet<LiveGuest>();

  constructor(options: LiveGuestsOptions) {
    this.#options = options;
  }

  all(): Iterable<LiveGuest> {
    return this.#guests.values();
  }

  hold(guest: LiveGuest): LiveGuest {
    this.#guests.set(guest.id, guest);
    return guest;
  }

  holdRestored(guest: LiveGuest): LiveGuest {
    this.#restored.add(guest);
    return this.hold(guest);
  }

  live(guest: Guest): LiveGuest {
    const live = this.#guests.get(guest.id);
    if (live !== guest) throw new Error(`guest ${guest.id} is not this host's`);
    return live;
  }

  async release(guest: Guest): Promise<void> {
    const { paths, space, verifier, wakeMs, step } = this.#options;
    const live = this.live(guest);
    const folder = paths.capsule(live.id);
    this.#restored.delete(live);
    const thawed = withDeadline(wakeMs, `releasing capsule ${live.id}`, live.thaw()); // sent before any command of a client
    thawed.catch(() => {});
    await dropAside(folder); // without waiting for the answer, which a guest may delay
    try {
      await thawed;
      step("release.thawed");
    } finally {
      verifier.forget(join(folder, checkpointName));
      // The record says running, so this checkpoint is never resumed from again, whether the guest answered or not.
      await removeCheckpoint(folder);
      space.forgetPause(live.id);
    }
  }

  async end(guest: Guest): Promise<void> {
    const { paths, admission, restorer, step } = this.#options;
    const live = this.live(guest);
    const folder = paths.capsule(live.id);
    if (live.hasHalted) await live.settleDisk();
    live.disconnect(new CapsuleError("invalid_state", `capsule ${live.id} is no longer running`));
    await admission.trackRelease(live.vm.kill());
    step("end.killed");
    if (live.hasSettled) await markStopped(folder).catch(() => {}); // for a lost database only
    this.#guests.delete(live.id);
    if (this.#restored.has(live)) await restorer.undo(live.id);
    await removeVm(folder);
  }

  /** A guest whose VM could not be ended before. */
  async endLeft(id: string): Promise<void> {
    const left = this.#guests.get(id);
    if (left !== undefined) await this.end(left);
  }

  /** Ends a guest whose disk layer is removed, so nothing about it is recorded. */
  async discard(id: string): Promise<void> {
    const live = this.#guests.get(id);
    if (live === undefined) return;
    this.#restored.delete(live);
    await this.end(live);
  }

  close(): void {
    for (const guest of this.#guests.values()) guest.close();
    this.#guests.clear();
  }
}
