/**
 * Folders that the database does not explain (docs/adr/0036): kept in `lost+found/` for a week, or until the disk is short. The
 * layout below it is that of the data folder, so `mv` puts a folder back. Other files are left alone: a file system's check
 * writes into a folder of that name.
 *
 * The week is counted while the server runs, in `ages.json`, and never read from the wall clock: a step of that clock would remove
 * every folder at once.
 */
import { existsSync } from "node:fs";
import { mkdir, utimes } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { SavedKind } from "../host.ts";
import { checkpointName, stoppedName } from "./capsule-folder.ts";
import { fileNames } from "./checkpoint-folder.ts";
import { allocatedInAll, publish, readJson, syncFolder, writeJson } from "./files.ts";
import { type Paths, savedKinds } from "./paths.ts";

const keptMs = 7 * 86_400_000;

interface Clock {
  /** Epoch milliseconds. */
  now(): number;
  /** Monotonic milliseconds. */
  ticks(): number;
}

interface Lost {
  /** `capsules/<id>` or `templates/<storage>`. */
  name: string;
  path: string;
}

/** How long a folder had been here at `atTicks`. */
interface Age {
  ms: number;
  atTicks: number;
}

export class LostFound {
  readonly #paths: Paths;
  readonly #clock: Clock;
  readonly #openedTicks: number;
  /** Undefined until the record is read. */
  #ages: Map<string, Age> | undefined;
  #removing: Promise<unknown> = Promise.resolve();

  constructor(paths: Paths, clock: Clock = { now: Date.now, ticks: () => performance.now() }) {
    this.#paths = paths;
    this.#clock = clock;
    this.#openedTicks = clock.ticks();
  }

  /** The number of folders. */
  get size(): number {
    return this.#all().length;
  }

  /** Whether the folder is complete: a paused or stopped capsule, or a template. */
  isSaved(kind: SavedKind, name: string): boolean {
    if (existsSync(join(this.checkpointOf(kind, name), fileNames.manifest))) return true;
    return kind === "capsules" && existsSync(join(this.#paths.saved(kind, name), stoppedName));
  }

  checkpointOf(kind: SavedKind, name: string): string {
    const folder = this.#paths.saved(kind, name);
    return kind === "capsules" ? join(folder, checkpointName) : folder;
  }

  /** Moves a folder here, durably. Nothing may use it. An earlier one of its name goes. */
  keep(kind: SavedKind, name: string): Promise<void> {
    return this.#oneByOne(async () => {
      const [folder, kept] = [this.#paths.saved(kind, name), this.#paths.lost(kind, name)];
      const ages = await this.#readAges();
      if (existsSync(kept)) await this.#paths.discard(kept);
      ages.set(`${kind}/${name}`, { ms: 0, atTicks: this.#clock.ticks() });
      await this.#writeAges().catch(() => {}); // the disk may be full, and the next pass writes them
      await mkdir(dirname(kept), { recursive: true, mode: 0o700 });
      const now = this.#clock.now() / 1_000;
      await utimes(folder, now, now); // for the operator
      await publish(folder, kept);
      await syncFolder(dirname(folder));
    });
  }

  /** Bytes on disk of all folders. */
  bytes(): Promise<number> {
    return allocatedInAll(this.#all().flatMap(({ path }) => [path, join(path, checkpointName)]));
  }

  /** Removes the folders that have been here for a week. Call it periodically. */
  removeExpired(): Promise<void> {
    return this.#oneByOne(async () => {
      for (const lost of await this.#aged()) if (lost.ageMs >= keptMs) await this.#discard(lost);
      await this.#writeAges();
    });
  }

  /** Removes the folder that has been here longest; false when there is none. A call meanwhile waits, then removes the next. */
  removeOldest(): Promise<boolean> {
    return this.#oneByOne(async () => {
      const [oldest] = (await this.#aged()).sort((a, b) => b.ageMs - a.ageMs);
      if (oldest !== undefined) await this.#discard(oldest);
      return oldest !== undefined;
    });
  }

  async #discard({ name, path }: Lost): Promise<void> {
    await this.#paths.discard(path);
    this.#ages?.delete(name);
  }

  #oneByOne<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#removing.then(work);
    this.#removing = result.catch(() => {});
    return result;
  }

  /** All folders with their ages as of now. */
  async #aged(): Promise<(Lost & { ageMs: number })[]> {
    const known = await this.#readAges();
    const ticks = this.#clock.ticks();
    const aged = this.#all().map((lost) => {
      const { ms, atTicks } = known.get(lost.name) ?? { ms: 0, atTicks: this.#openedTicks };
      return { ...lost, ageMs: ms + ticks - atTicks };
    });
    this.#ages = new Map(aged.map(({ name, ageMs }) => [name, { ms: ageMs, atTicks: ticks }]));
    return aged;
  }

  /** A folder without an age here has been found at the start of the server. */
  async #readAges(): Promise<Map<string, Age>> {
    if (this.#ages === undefined) {
      const read = await readJson<unknown>(this.#agesPath()).catch(() => undefined);
      const valid = Object.entries(read ?? {}).filter(([, ms]) => typeof ms === "number" && ms >= 0);
      this.#ages = new Map(valid.map(([name, ms]) => [name, { ms: ms as number, atTicks: this.#openedTicks }]));
    }
    return this.#ages;
  }

  async #writeAges(): Promise<void> {
    const path = this.#agesPath();
    const ages = [...(this.#ages ?? [])];
    if (ages.length === 0 && !existsSync(path)) return;
    await mkdir(dirname(path), { recursive: true, mode: 0o700 });
    const passed = ages.map(([name, { ms }]) => [name, Math.round(ms)]);
    await writeJson(path, Object.fromEntries(passed), { durable: false });
  }

  #agesPath(): string {
    return join(this.#paths.data, "lost+found", "ages.json");
  }

  #all(): Lost[] {
    return savedKinds.flatMap((kind) =>
      this.#paths.lostNames(kind).map((name) => ({ name: `${kind}/${name}`, path: this.#paths.lost(kind, name) })),
    );
  }
}
