/**
 * The bucket of a schedule: objects without bytes. A request may be refused, be slow, be executed although its answer is lost, or late;
 * an object that was just put may not be found yet.
 */
import type { Bucket } from "../../../src/bucket/bucket.ts";
import type { ReleasedFiles } from "../../../src/cluster/acquiring.ts";
import type { Released } from "../../../src/cluster/released.ts";
import type { ReleasedFolder, ReleasedFolders } from "../../../src/cluster/released-cache.ts";
import type { CheckpointUploads, Described } from "../../../src/cluster/releases.ts";
import { CapsuleError } from "../../../src/wire/errors.ts";
import type { FakeCheckpoint } from "../../fakes/fake-host.ts";
import { Life } from "./life.ts";
import { SimulatedMachine } from "./machine.ts";
import type { World } from "./world.ts";

const parts = ["0", "1", "manifest"];
const slowMs = 10_000;
/** Steps until a late request is executed at the latest, and in which an object may not be found. */
const [lateSteps, unseenSteps] = [60, 6];
const triesMax = 3;

interface StoredObject {
  saved: FakeCheckpoint;
  /** Steps until it is found. */
  unseen: number;
}

export class SimulatedBucket {
  readonly objects = new Map<string, StoredObject>();
  /** Prefixes of objects that came when their upload had ended: nobody knows of them. */
  readonly strays = new Set<string>();
  isAway = false;
  /** Clusters without one release nothing. */
  readonly isThere: boolean;
  readonly #world: World;
  #late: { steps: number; run: () => void }[] = [];

  constructor(world: World, isThere: boolean) {
    this.#world = world;
    this.isThere = isThere;
  }

  /** The contents that a restore from this prefix finds; undefined: not all of it is there. */
  whole(prefix: string): FakeCheckpoint | undefined {
    const found = parts.map((part) => this.objects.get(`${prefix}/${part}`)?.saved);
    return found.every((saved) => saved?.revision === found[0]?.revision) ? found[0] : undefined;
  }

  prefixes(): Set<string> {
    return new Set([...this.objects.keys()].map((name) => name.slice(0, name.lastIndexOf("/"))));
  }

  countDown(isOver = false): void {
    for (const stored of this.objects.values()) stored.unseen = isOver ? 0 : Math.max(0, stored.unseen - 1);
    for (const each of this.#late) each.steps -= 1;
    const due = this.#late.filter(({ steps }) => isOver || steps <= 0);
    this.#late = this.#late.filter((each) => !due.includes(each));
    for (const { run } of due) run();
  }

  async put(name: string, saved: FakeCheckpoint): Promise<void> {
    const { scheduler } = this.#world;
    const run = () => {
      const isLost = scheduler.chance(0.5);
      this.objects.set(name, { saved, unseen: isLost ? scheduler.random.below(unseenSteps) : 0 });
    };
    const stray = () => {
      this.strays.add(name.slice(0, name.lastIndexOf("/")));
      run();
    };
    await this.#request(`PUT ${name}`, run, stray);
  }

  /** Asks again where it is not there yet. Rejects with "agent_error" where it does not come. */
  async get(name: string): Promise<FakeCheckpoint> {
    for (let tries = 1; ; tries++) {
      let stored: StoredObject | undefined;
      await this.#request(`GET ${name}`, () => {
        stored = this.objects.get(name);
      });
      if (stored !== undefined && stored.unseen === 0) return stored.saved;
      if (tries > unseenSteps) throw new CapsuleError("agent_error", `${name} is not whole in the bucket`);
      this.#world.scheduler.note("  is not there yet");
    }
  }

  /** For the collector. */
  get listed(): Pick<Bucket, "list" | "delete"> {
    const bucket = this;
    return {
      async *list(prefix) {
        const found: string[] = [];
        await bucket.#request(`LIST ${prefix}`, () => {
          found.push(...[...bucket.objects.keys()].filter((name) => name.startsWith(prefix)));
        });
        yield* found;
      },
      async delete(name) {
        const run = () => void bucket.objects.delete(name);
        await bucket.#request(`DELETE ${name}`, run, run);
      },
    };
  }

  /** Some attempts, as the client makes them. Rejects with "unavailable". */
  async #request(what: string, run: () => void, late = run): Promise<void> {
    for (let tries = 1; ; tries++) {
      if (await this.#attempt(what, run, late)) return;
      if (tries === triesMax) throw new CapsuleError("unavailable", `the bucket does not answer: ${what}`);
    }
  }

  async #attempt(what: string, run: () => void, late: () => void): Promise<boolean> {
    const { scheduler, faults } = this.#world;
    await scheduler.turn(what);
    if (this.isAway || scheduler.chance(faults.bucket)) {
      const how = this.isAway ? 0 : scheduler.random.below(4);
      scheduler.note(`  ${["is refused", "has no answer", "comes late", "is slow"][how]}`);
      Life.current?.advance(how === 0 ? 100 : slowMs);
      if (how === 2) this.#late.push({ steps: 1 + scheduler.random.below(lateSteps), run: late });
      if (how === 1 || how === 3) run();
      return how === 3;
    }
    run();
    return true;
  }
}

interface Files extends Described {
  id: string;
  saved: FakeCheckpoint;
}

/** Uploads of one life of a daemon. */
export class SimulatedUploads implements CheckpointUploads<Files> {
  readonly #world: World;
  readonly #machine: SimulatedMachine;

  constructor(world: World, machine: SimulatedMachine) {
    this.#world = world;
    this.#machine = machine;
  }

  async describe(id: string): Promise<Files> {
    await this.#world.scheduler.turn(`describe ${id}`);
    const saved = this.#machine.checkpoints.get(id);
    if (saved === undefined || this.#world.scheduler.chance(0.1))
      throw new CapsuleError("invalid_state", `${id} has no hashes yet`);
    const { revision: savedRevision } = saved;
    const record = { revision: savedRevision };
    return {
      id,
      saved: { ...saved },
      ...{ savedRevision, record, machine: {}, qemuBuild: null, format: 2, bytes: 1_000 },
    };
  }

  async upload({ id, saved }: Files, prefix: string, signal: AbortSignal): Promise<string> {
    for (const part of parts) {
      signal.throwIfAborted();
      const now = this.#machine.checkpoints.get(id);
      if (now === undefined || now.revision !== saved.revision || now.isStale) throw new Error(`${id} has changed`);
      await this.#world.bucket.put(`${prefix}/${part}`, { ...now });
    }
    return "ab".repeat(32);
  }
}

/** The folders of a machine that go and come, for one life of its daemon: as FetchedFiles on MovedFolders. */
export class SimulatedFiles implements ReleasedFiles, ReleasedFolders {
  readonly #world: World;
  readonly #machine: SimulatedMachine;
  readonly #kept = new Map<string, number>();

  constructor(world: World, machine: SimulatedMachine) {
    this.#world = world;
    this.#machine = machine;
  }

  /** The folder that was set aside here when the checkpoint of the row was released. */
  cachedFor({ row, checkpoint: { prefix, savedRevision: revision } }: Released): string {
    return SimulatedMachine.aside(row.id, { epoch: Number(/\/(\d+)\.[^/]*$/.exec(prefix)?.[1]), revision });
  }

  /** The first folder of the capsule that was set aside. */
  ofCapsule(id: string): string | undefined {
    return [...this.#machine.aside.keys()].find((name) => name.startsWith(`${id}.`));
  }

  async admit({ row }: Released): Promise<Disposable> {
    await this.#world.scheduler.turn(`admit ${row.id}`);
    this.#kept.set(row.id, (this.#kept.get(row.id) ?? 0) + 1);
    return { [Symbol.dispose]: () => void this.#kept.set(row.id, this.#kept.get(row.id)! - 1) };
  }

  async bring(acquired: Released): Promise<void> {
    const { scheduler, bucket } = this.#world;
    const { row, checkpoint } = acquired;
    await scheduler.turn(`bring ${row.id}`);
    const { aside } = this.#machine;
    const cached = aside.get(this.cachedFor(acquired));
    if (cached !== undefined) {
      aside.delete(this.cachedFor(acquired));
      aside.set(waitingAs(acquired), cached);
      return;
    }
    const found: FakeCheckpoint[] = [];
    for (const part of parts.toReversed()) found.push(await bucket.get(`${checkpoint.prefix}/${part}`));
    if (found.some(({ revision }) => revision !== checkpoint.savedRevision))
      throw new CapsuleError("agent_error", `the checkpoint of capsule ${row.id} does not verify`);
    aside.set(waitingAs(acquired), { ...found[0]! });
  }

  take(acquired: Released): void {
    this.#machine.take(acquired.row.id, waitingAs(acquired));
  }

  async putBack(acquired: Released): Promise<void> {
    await this.#world.scheduler.turn(`put ${acquired.row.id} back`);
    const { aside } = this.#machine;
    const waiting = aside.get(waitingAs(acquired));
    if (waiting === undefined) return;
    aside.delete(waitingAs(acquired));
    aside.set(this.cachedFor(acquired), waiting);
  }

  async cached(): Promise<ReleasedFolder[]> {
    await this.#world.scheduler.turn("list folders that were set aside");
    const folders = [...this.#machine.aside.keys()].map((name) => {
      const [, id, epoch, revision] = /^(.*)\.(\d+)\.(\d+)$/.exec(name)!;
      return { name, id: id!, epoch: Number(epoch), revision: Number(revision), bytes: 1_000 };
    });
    return folders.filter(({ id }) => (this.#kept.get(id) ?? 0) === 0);
  }

  async drop(name: string): Promise<void> {
    await this.#world.scheduler.turn(`drop ${name}`);
    this.#machine.aside.delete(name);
  }
}

function waitingAs({ row, epoch, checkpoint: { savedRevision: revision } }: Released): string {
  return SimulatedMachine.aside(row.id, { epoch, revision });
}
