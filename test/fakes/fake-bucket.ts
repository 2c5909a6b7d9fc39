/** A bucket without bytes: the checkpoints of capsules on fake machines, and what a host does with them when it acquires one. */
import type { ReleasedFiles } from "../../src/cluster/acquiring.ts";
import { type Checkpoint, type Released, releaseColumns } from "../../src/cluster/released.ts";
import { HoldingRows } from "../../src/db/holding-rows.ts";
import { CapsuleError } from "../../src/wire/errors.ts";
import type { FakeHostOfCluster } from "../cluster/fake-hosts.ts";
import { about } from "../cluster/statements.ts";
import type { FakeCheckpoint, FakeHost } from "./fake-host.ts";

export class FakeBucket {
  /** By prefix. */
  readonly checkpoints = new Map<string, FakeCheckpoint>();
  isAway = false;
  /** Nothing in it verifies. */
  isChanged = false;

  /** The files of released capsules on this machine. */
  filesOf(machine: FakeHost): FakeFiles {
    return new FakeFiles(this, machine);
  }

  /** Releases a paused capsule as its holder does. Resolves with the prefix. `keepsCopy`: its folder stays as a cached one. */
  async release(
    host: FakeHostOfCluster,
    id: string,
    { files, machine = {} }: { files?: FakeFiles; machine?: Checkpoint["machine"] } = {},
  ): Promise<string> {
    const { service, database, sql, machine: from } = host;
    await host.copied();
    const holding = new HoldingRows(database);
    const row = service.store.get(id)!;
    const epoch = holding.epoch(id);
    const prefix = `capsules/${id}/${epoch}.${row.revision}.0000000a`;
    const checkpoint: Checkpoint = {
      ...{ prefix, manifestSha256: "0".repeat(64), bytes: 1_000, at: 1, revision: row.revision, machine },
      ...{ savedRevision: row.revision - 1, record: { revision: row.revision - 1 }, qemuBuild: null, format: 2 },
    };
    const saved = from.checkpoints.get(id)!;
    this.checkpoints.set(prefix, saved);
    files?.cached.set(prefix, saved);
    const columns = releaseColumns({ row, kept: holding.kept(id)!, checkpoint });
    await sql.call("release_capsule", [id, epoch, host.name, JSON.stringify(columns)], about);
    service.store.remove(id);
    await from.remove(id);
    return prefix;
  }
}

export class FakeFiles implements ReleasedFiles {
  readonly cached = new Map<string, FakeCheckpoint>();
  /** Prefixes that were fetched from the bucket. */
  readonly fetched: string[] = [];
  /** Another machine saves what this one cannot restore. */
  isOther = false;
  isFull = false;
  /** It has other bytes of what capsules stand on. */
  isDamaged = false;
  /** Folders that have come and wait for their rows, by id. */
  readonly waiting = new Map<string, FakeCheckpoint>();
  /** A folder cannot be renamed. */
  isStuck = false;
  /** Awaited by each fetch. */
  moment: () => Promise<void> = () => Promise.resolve();
  readonly #bucket: FakeBucket;
  readonly #machine: FakeHost;

  constructor(bucket: FakeBucket, machine: FakeHost) {
    this.#bucket = bucket;
    this.#machine = machine;
  }

  async admit({ row, checkpoint }: Released): Promise<Disposable> {
    if (this.isOther) throw new CapsuleError("conflict", `capsule ${row.id} was saved on another machine`);
    if (this.isFull && !this.cached.has(checkpoint.prefix)) throw new CapsuleError("no_space", "the disk is full");
    return { [Symbol.dispose]() {} };
  }

  async bring({ row, checkpoint: { prefix } }: Released): Promise<void> {
    const cached = this.cached.get(prefix);
    if (cached === undefined) {
      await this.moment();
      if (this.#bucket.isAway) throw new CapsuleError("unavailable", "the bucket does not answer");
      const saved = this.#bucket.checkpoints.get(prefix);
      if (saved === undefined || this.#bucket.isChanged || this.isDamaged)
        throw new CapsuleError("agent_error", `the checkpoint of capsule ${row.id} does not verify`);
      this.fetched.push(prefix);
      this.waiting.set(row.id, saved);
      return;
    }
    this.cached.delete(prefix);
    this.waiting.set(row.id, cached);
  }

  take({ row: { id } }: Released): void {
    const saved = this.waiting.get(id);
    if (saved === undefined || this.isStuck) throw new Error(`the folder of capsule ${id} cannot be renamed`);
    this.waiting.delete(id);
    this.#machine.folders.add(id);
    this.#machine.checkpoints.set(id, { ...saved });
  }

  async putBack({ row, checkpoint: { prefix } }: Released): Promise<void> {
    const saved = this.waiting.get(row.id);
    if (saved !== undefined) this.cached.set(prefix, saved);
    this.waiting.delete(row.id);
  }
}
