/** A fake machine whose capsules have contents: the numbers of what was written in them, which go where their disks and memories go. */
import type { Guest, GuestEnd, SavedKind, SaveTurn } from "../../../src/host/host.ts";
import { CapsuleError } from "../../../src/wire/errors.ts";
import { FakeHost } from "../../fakes/fake-host.ts";

export class SimulatedMachine extends FakeHost {
  /** By capsule. */
  readonly writes = new Map<string, readonly number[]>();

  /** Throws "agent_error" where no guest of it runs here. */
  write(id: string, number: number): void {
    const guest = this.guests.get(id);
    if (guest === undefined || guest.isHeld || guest.isStopped)
      throw new CapsuleError("agent_error", `no guest of ${id} runs`);
    this.writes.set(id, [...this.#of(id), number]);
  }

  override async save(guest: Guest, purpose: "pause" | "capture", turn: SaveTurn): Promise<void> {
    await super.save(guest, purpose, turn);
    this.checkpoints.get(guest.id)!.writes = this.#of(guest.id);
  }

  /** A guest whose daemon has died ends for the next one alone. */
  forgetWaiting(): void {
    for (const guest of this.guests.values()) {
      const { promise: ended, resolve: endWith } = Promise.withResolvers<GuestEnd>();
      Object.assign(guest, { ended, endWith });
    }
  }

  override async remove(id: string): Promise<void> {
    await super.remove(id);
    this.writes.delete(id);
  }

  override async keepLost(kind: SavedKind, name: string): Promise<void> {
    await super.keepLost(kind, name);
    if (kind === "capsules") this.writes.delete(name);
  }

  /** The name of a folder that was set aside, or waits for its row. */
  static aside(id: string, { epoch, revision }: { epoch: number; revision: number }): string {
    return `${id}.${epoch}.${revision}`;
  }

  /** The folder that waits → capsules/<id>. Throws where it is not there. */
  take(id: string, name: string): void {
    const saved = this.aside.get(name);
    if (saved === undefined || this.folders.has(id)) throw new Error(`the folder of capsule ${id} cannot be renamed`);
    this.aside.delete(name);
    this.folders.add(id);
    this.checkpoints.set(id, { ...saved });
    this.writes.set(id, saved.writes ?? []);
  }

  /** As MovedFolders.repair. */
  repair(held: Iterable<{ id: string; epoch: number; isReleasing: boolean }>): void {
    for (const { id, epoch, isReleasing } of held) {
      const waiting = [...this.aside.keys()].find((name) => name.startsWith(`${id}.${epoch}.`));
      if (waiting !== undefined && !isReleasing && !this.folders.has(id)) this.take(id, waiting);
    }
  }

  #of(id: string): readonly number[] {
    return this.writes.get(id) ?? [];
  }
}
