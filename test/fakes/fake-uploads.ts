/** A bucket without bytes, into which a fake machine uploads its paused capsules. */
import type { CheckpointUploads, Described } from "../../src/cluster/releases.ts";
import { CapsuleError } from "../../src/wire/errors.ts";
import type { FakeCheckpoint, FakeHost } from "./fake-host.ts";

interface Files extends Described {
  id: string;
}

export class FakeUploads implements CheckpointUploads<Files> {
  /** Checkpoints that are there whole, by prefix. */
  readonly checkpoints: Map<string, FakeCheckpoint>;
  /** Ids of the uploads that have begun, in order, and of those under way. */
  readonly begun: string[] = [];
  readonly underWay = new Set<string>();
  /** Awaited by each upload. */
  moment: (id: string, signal: AbortSignal) => Promise<void> = () => Promise.resolve();
  isAway = false;
  hasHashes = true;
  readonly #machine: FakeHost;

  /** `checkpoints`: those of a bucket from which other machines fetch them. */
  constructor(machine: FakeHost, checkpoints = new Map<string, FakeCheckpoint>()) {
    this.#machine = machine;
    this.checkpoints = checkpoints;
  }

  async describe(id: string): Promise<Files> {
    const saved = this.#machine.checkpoints.get(id);
    if (saved === undefined || !this.hasHashes) throw new CapsuleError("invalid_state", `${id} has no hashes yet`);
    const { revision: savedRevision } = saved;
    const record = { revision: savedRevision };
    return { id, savedRevision, record, machine: {}, qemuBuild: null, format: 2, bytes: 1_000 };
  }

  async upload({ id }: Files, prefix: string, signal: AbortSignal): Promise<string> {
    this.begun.push(id);
    this.underWay.add(id);
    try {
      await this.moment(id, signal);
      if (this.isAway) throw new CapsuleError("unavailable", "the bucket does not answer");
      const saved = this.#machine.checkpoints.get(id);
      if (saved === undefined) throw new Error(`${id} is gone`);
      this.checkpoints.set(prefix, { ...saved });
      return "ab".repeat(32);
    } finally {
      this.underWay.delete(id);
    }
  }
}
