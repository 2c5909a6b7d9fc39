/** Changes under way that a destroy, or the end of a VM, aborts: one of each capsule at most, since it holds the capsule's lock. */
import type { GuestEnd } from "../host/host.ts";
import { justEnded } from "./failures.ts";

export class Abortables {
  readonly #underWay = new Map<string, AbortController>();

  /** Runs `work` with a signal that fires when it is aborted or the guest ends. */
  async run<T>(id: string, work: (signal: AbortSignal) => Promise<T>, ended?: Promise<GuestEnd>): Promise<T> {
    const controller = new AbortController();
    this.#underWay.set(id, controller);
    void ended?.then(() => controller.abort(justEnded(id)));
    try {
      return await work(controller.signal);
    } finally {
      this.#underWay.delete(id);
    }
  }

  /** False: nothing of the capsule is under way that can be aborted. */
  abort(id: string, reason: Error): boolean {
    const controller = this.#underWay.get(id);
    controller?.abort(reason);
    return controller !== undefined;
  }
}
