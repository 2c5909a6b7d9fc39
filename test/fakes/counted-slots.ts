/** Slots that tell whose work has asked for one. */
import { FairSlots } from "../../src/host/capacity/fair-slots.ts";
import { waitFor } from "../wait-for.ts";

export class CountedSlots extends FairSlots {
  readonly asked: string[] = [];

  override run<T>(owner: string, work: (hasWaited: boolean) => Promise<T>, signal?: AbortSignal): Promise<T> {
    this.asked.push(owner);
    return super.run(owner, work, signal);
  }

  /** Resolves when the last that has asked is `owner`. */
  async lastAsked(owner: string): Promise<void> {
    await waitFor(`${owner} asks for a slot`, () => this.asked.at(-1) === owner);
  }
}
