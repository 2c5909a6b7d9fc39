/**
 * The limits of a cluster, as a host of it uses them. They are read at its start, and followed with the catalog: quotas of teams hold at
 * once, since PostgreSQL decides by them; all others, which the API describes, from the host's next start on.
 */
import type { Log } from "../log.ts";
import type { Limits } from "../wire/limits.ts";

export interface SharedLimitsOptions {
  /** The values of this machine and its environment. */
  own: Readonly<Limits>;
  /** The cluster's as last read; of the largest shape that of its largest host. */
  shared: Readonly<Record<string, unknown>>;
  /** Names of limits that this host's environment sets. */
  set: ReadonlySet<string>;
  log: Log;
}

type Name = keyof Limits;

const quotas: readonly Name[] = [
  ...(["capsules_max", "starts_max", "running_vcpus_max", "running_memory_max_mb", "templates_max"] as const),
];
/** The largest shape of a capsule follows from a machine. */
const ofMachine: readonly string[] = ["vcpus_max", "memory_max_mb"];

export function isOfMachine(name: string): boolean {
  return ofMachine.includes(name);
}

export class SharedLimits {
  /** Changes with the cluster's. */
  readonly limits: Limits;
  readonly #log: Log;
  /** Changes that wait for the next start: each is told once. */
  readonly #told = new Map<Name, number>();

  constructor({ own, shared, set, log }: SharedLimitsOptions) {
    this.#log = log;
    this.limits = { ...own };
    for (const [name, value] of knownIn(own, shared)) {
      const isShape = isOfMachine(name);
      if (!isShape && value !== own[name] && set.has(name))
        log.warn({ limit: name, value }, "the cluster has another value of a limit than this host's environment");
      this.limits[name] = isShape ? Math.max(value, own[name]) : value;
    }
  }

  follow(shared: Readonly<Record<string, unknown>>): void {
    for (const [name, value] of knownIn(this.limits, shared)) {
      if (isOfMachine(name) || value === this.limits[name]) continue;
      if (quotas.includes(name)) this.limits[name] = value;
      else if (this.#told.get(name) !== value) {
        this.#told.set(name, value);
        this.#log.warn({ limit: name, value }, "a limit of the cluster was changed: start this server again to use it");
      }
    }
  }
}

function knownIn(limits: Readonly<Limits>, shared: Readonly<Record<string, unknown>>): [Name, number][] {
  return Object.entries(shared).filter(
    (each): each is [Name, number] => Object.hasOwn(limits, each[0]) && Number.isSafeInteger(each[1]),
  );
}

/** The largest shape that a host offers, by the heartbeats of all; nothing of a host that tells none. */
export function largestShape(loads: readonly Readonly<Record<string, unknown>>[]): Record<string, number> {
  const largest = ofMachine.map((name): [string, number] => {
    const values = loads.map((load) => load[name]).filter((value) => Number.isSafeInteger(value)) as number[];
    return [name, Math.max(0, ...values)];
  });
  return Object.fromEntries(largest);
}
