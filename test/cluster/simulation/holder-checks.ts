/** Checks of who holds a capsule, and of what is in it wherever it is: on a host, on its way, or in the bucket. */
import type { OwnRow, SharedCapsule, Snapshot } from "./checks.ts";
import type { SimulatedHost } from "./host.ts";
import { violated } from "./violation.ts";
import type { World } from "./world.ts";

/** A release leaves the epoch as it is, and an acquire raises it by one. */
export function isChangeOfHolder(old: SharedCapsule, now: SharedCapsule): boolean {
  if (now.host === old.host && now.epoch === old.epoch) return true;
  if (now.host === null) return now.epoch === old.epoch || now.epoch === old.epoch + 1; // both between two looks
  return now.epoch === old.epoch + 1 && (old.host === null || old.host === now.host);
}

export class HolderChecks {
  readonly #world: World;
  readonly #rowsOf: (host: SimulatedHost) => OwnRow[];

  constructor(world: World, rowsOf: (host: SimulatedHost) => OwnRow[]) {
    this.#world = world;
    this.#rowsOf = rowsOf;
  }

  afterStep(now: Snapshot): void {
    const { hosts, bucket } = this.#world;
    if (!bucket.isThere) return;
    const running = new Map<string, string>();
    for (const host of hosts) {
      const rows = new Map(this.#rowsOf(host).map((row) => [row.id, row]));
      for (const row of rows.values()) this.#held(row, host, now);
      for (const [id, { isHeld, isStopped }] of host.machine.guests) {
        if (isHeld || isStopped) continue;
        const other = running.get(id);
        if (other !== undefined) violated(`I2: ${id} runs on ${other} and on ${host.name}`);
        running.set(id, host.name);
        if (rows.get(id)?.releasing != null) violated(`I2: ${id} runs on ${host.name}, which may have released it`);
        this.#complete(id, host.machine.writes.get(id), `the guest on ${host.name}`);
      }
    }
    for (const row of now.capsules.values()) if (row.host === null) this.#released(row, now);
  }

  /** Objects that no row names are known as garbage, or will be. */
  atEnd(now: Snapshot): void {
    const { bucket, hosts, putBack } = this.#world;
    if (!bucket.isThere) return;
    const noted = hosts.flatMap(
      ({ database }) => database.prepare("SELECT prefix FROM uploads").all() as { prefix: string }[],
    );
    const known = new Set([...[...noted, ...now.garbage].map(({ prefix }) => prefix), ...putBack.forgotten]);
    for (const { checkpoint } of now.capsules.values()) if (checkpoint !== null) known.add(checkpoint);
    for (const prefix of bucket.prefixes())
      if (!known.has(prefix) && !bucket.strays.has(prefix)) violated(`${prefix} is in the bucket for ever`);
    for (const host of hosts)
      for (const { id, moving, status, intent } of this.#rowsOf(host))
        if (moving !== null && status === "paused" && intent === null) this.#onItsWay(id);
    for (const { id, host, moving } of now.capsules.values()) if (host === null && moving === true) this.#onItsWay(id);
    for (const { machine, name } of hosts) {
      const lost = machine.kept.find((folder) => this.#world.model.capsules.get(folder.split("/")[1]!)?.isSure);
      if (lost !== undefined) violated(`${lost} of ${name} is in lost+found`);
    }
  }

  #onItsWay(id: string): void {
    if (this.#world.checks.hasRoom) violated(`${id} is moved for ever`);
  }

  /** One host has the row, and the database says so. */
  #held({ id, epoch, releasing, status, intent }: OwnRow, { name, machine }: SimulatedHost, now: Snapshot): void {
    const shared = now.capsules.get(id);
    if (releasing !== null || shared === undefined || intent === "destroy") return;
    if (now.isOwnPlace && (shared.host !== name || shared.epoch !== epoch))
      violated(`I1: ${id} is of ${name}.${epoch} there, and of ${shared.host}.${shared.epoch} in the database`);
    const checkpoint = machine.checkpoints.get(id);
    if (status === "paused" && intent === null && checkpoint !== undefined)
      this.#complete(id, checkpoint.writes, `its checkpoint on ${name}`);
  }

  #released({ id, checkpoint }: SharedCapsule, { isOwnPlace }: Snapshot): void {
    const saved = checkpoint === null ? undefined : this.#world.bucket.whole(checkpoint);
    if (saved === undefined) violated(`I5: ${id} is released, and ${checkpoint} is not whole in the bucket`);
    if (isOwnPlace) this.#complete(id, saved.writes, checkpoint!);
  }

  #complete(id: string, writes: readonly number[] = [], where: string): void {
    const capsule = this.#world.model.capsules.get(id);
    const lacking = capsule?.written.find((number) => !writes.includes(number));
    if (lacking !== undefined) violated(`I8: write ${lacking} in ${id} was acknowledged, and is not in ${where}`);
  }
}
