/**
 * Every figure that the benchmarks measure, with its targets. The printed table, `--check` and RESULTS.md are made from this
 * list. A target bounds a value of one run. Nearly all values are ratios to a baseline measured in the same run, because an
 * absolute time on a shared machine means little.
 */

export type Unit = "ns" | "ms" | "requests/s" | "MB/s" | "MiB" | "bytes" | "%";

/** The value must lie within the bounds, both included. `said` names the unit unless the value is a ratio. */
export interface Target {
  said: string;
  most?: number;
  least?: number;
}

export interface Entry {
  group: string;
  name: string;
  unit: Unit;
  /** Measured only in a long run. */
  isLong?: true;
  targets: Record<string, Target>;
}

export const catalog = {
  coldBoot: { group: "boot", name: "cold boot, kernel to agent", unit: "ms", targets: {} },
  createToRunning: {
    group: "boot",
    name: "create → running, nothing prepared",
    unit: "ms",
    targets: { boot: { said: "≤ 1/10 × cold boot", most: 1 / 10 } },
  },

  createWarmPool: {
    group: "create",
    name: "create → first exec, warm pool",
    unit: "ms",
    targets: {
      gvisor: { said: "≤ 1/5 × runsc run", most: 1 / 5 },
      tail: { said: "p95 ≤ 2 × p50", most: 2 },
    },
  },
  createWarmProcess: {
    group: "create",
    name: "create → first exec, warm process",
    unit: "ms",
    targets: {
      gvisor: { said: "≤ 1/2 × runsc run", most: 1 / 2 },
      boot: { said: "≤ 1/25 × cold boot to exec", most: 1 / 25 },
    },
  },
  createUnprepared: { group: "create", name: "create → first exec, nothing prepared", unit: "ms", targets: {} },

  exec: {
    group: "exec",
    name: "exec /bin/true over HTTP",
    unit: "ms",
    targets: {
      inside: { said: "ms above the spawn inside ≤ 2", most: 2 },
      gvisor: { said: "≤ 1/3 × runsc exec", most: 1 / 3 },
      relay: { said: "≤ 1.1 × a Fastify that only relays", most: 1.1 },
    },
  },
  execByRelay: { group: "exec", name: "exec /bin/true through a Fastify that only relays", unit: "ms", targets: {} },
  aboveByRelay: { group: "exec", name: "a Fastify that only relays, above the spawn inside", unit: "ms", targets: {} },
  relayOfGvisor: { group: "exec", name: "a Fastify that only relays, of runsc exec", unit: "%", targets: {} },
  execAtPort: { group: "exec", name: "/bin/true at an agent's port, without a server", unit: "ms", targets: {} },
  aboveAtPort: { group: "exec", name: "at an agent's port, above the spawn inside", unit: "ms", targets: {} },
  getAfterExec: { group: "exec", name: "GET right after a command", unit: "ms", targets: {} },

  firstByte: {
    group: "streams",
    name: "exec/stream, start to first byte of echo",
    unit: "ms",
    targets: { foreground: { said: "ms above the foreground ≤ 2", most: 2 } },
  },
  streamsAtOnce: {
    group: "streams",
    name: "50 exec streams at once, 1 MB of random bytes each",
    unit: "MB/s",
    targets: { exact: { said: "byte-exact streams = 50", least: 50 } },
  },

  besideFlood: {
    group: "neighbours",
    name: "exec beside a guest that floods output",
    unit: "ms",
    targets: { quiet: { said: "p95 ≤ 3 × p95 in quiet", most: 3 } },
  },
  besideDisk: {
    group: "neighbours",
    name: "exec beside a guest that fills its disk",
    unit: "ms",
    targets: { quiet: { said: "p95 ≤ 3 × p95 in quiet", most: 3 } },
  },
  besideForks: {
    group: "neighbours",
    name: "exec beside a guest that forks bombs",
    unit: "ms",
    targets: { quiet: { said: "p95 ≤ 3 × p95 in quiet", most: 3 } },
  },
  besideMemory: {
    group: "neighbours",
    name: "exec beside a guest that eats memory",
    unit: "ms",
    targets: { quiet: { said: "p95 ≤ 3 × p95 in quiet", most: 3 } },
  },
  besideSpin: {
    group: "neighbours",
    name: "exec beside a guest that spins",
    unit: "ms",
    targets: { quiet: { said: "p95 ≤ 3 × p95 in quiet", most: 3 } },
  },

  keystroke: {
    group: "terminal",
    name: "a keystroke's echo in a PTY session",
    unit: "ms",
    targets: { inside: { said: "ms above the echo inside ≤ 2", most: 2 } },
  },

  streamWrite: {
    group: "files",
    name: "stream/write, 256 MiB",
    unit: "MB/s",
    targets: { dumb: { said: "≥ 1/2 × dumb pipe", least: 1 / 2 } },
  },
  streamRead: {
    group: "files",
    name: "stream/read, 256 MiB",
    unit: "MB/s",
    targets: { dumb: { said: "≥ 1/2 × dumb pipe", least: 1 / 2 } },
  },
  streamMemory: {
    group: "files",
    name: "server's memory grows, 256 MiB each way",
    unit: "MiB",
    targets: { most: { said: "most MiB ≤ 16", most: 16 } },
  },
  longStreamMemory: {
    group: "files",
    name: "server's memory grows, 3 GiB each way",
    unit: "MiB",
    isLong: true,
    targets: { most: { said: "MiB ≤ 16", most: 16 } },
  },
  listing: {
    group: "files",
    name: "files/list of 10 000 entries",
    unit: "ms",
    targets: { bound: { said: "p50 in ms ≤ 750", most: 750 } },
  },

  networkDownload: {
    group: "network",
    name: "HTTPS download of 64 MiB by a capsule",
    unit: "MB/s",
    targets: { passt: { said: "≥ 1/2 × by a VM with passt", least: 1 / 2 } },
  },
  networkConnect: {
    group: "network",
    name: "connect() of a capsule",
    unit: "ms",
    targets: { bound: { said: "p50 in ms ≤ 10", most: 10 } },
  },
  portDownload: {
    group: "network",
    name: "64 MiB by a port's URL",
    unit: "MB/s",
    targets: { read: { said: "≥ 0.3 × stream/read", least: 0.3 } },
  },
  relayMemory: {
    group: "network",
    name: "memory of the relay, 1 000 idle connections",
    unit: "MiB",
    targets: { most: { said: "MiB ≤ 150", most: 150 } },
  },

  pauseIdle: {
    group: "freeze",
    name: "pause, idle, durable",
    unit: "ms",
    targets: {
      migrate: { said: "≤ 1/40 × QEMU's migrate + fsync", most: 1 / 40 },
      gvisor: { said: "≤ 1/3 × runsc checkpoint + fsync", most: 1 / 3 },
      floor: { said: "≤ 3 × dd of 2 MiB + the end of a QEMU", most: 3 },
    },
  },
  pauseUnprepared: { group: "freeze", name: "pause, idle, durable, nothing prepared", unit: "ms", targets: {} },
  pauseDirty: {
    group: "freeze",
    name: "pause, 50 MiB dirty, durable",
    unit: "ms",
    targets: { dd: { said: "ms above 3 × dd of 50 MiB ≤ 20", most: 20 } },
  },
  resume: {
    group: "freeze",
    name: "resume → first exec",
    unit: "ms",
    targets: { boot: { said: "≤ 1/25 × cold boot to exec", most: 1 / 25 } },
  },
  resumeUnprepared: { group: "freeze", name: "resume → first exec, nothing prepared", unit: "ms", targets: {} },
  pauseWrites: {
    group: "freeze",
    name: "a pause's writes beyond dirty pages",
    unit: "bytes",
    targets: { most: { said: "p99 in bytes ≤ 65536", most: 64 * 1024 } },
  },

  capture: { group: "templates", name: "capture into a template", unit: "ms", targets: {} },
  fromTemplateUnprepared: {
    group: "templates",
    name: "create from a template → first exec, nothing prepared",
    unit: "ms",
    targets: {},
  },
  fromTemplate: {
    group: "templates",
    name: "create from a template → first exec, warm process",
    unit: "ms",
    targets: { boot: { said: "≤ 1/25 × cold boot to exec", most: 1 / 25 } },
  },

  cores: { group: "burst", name: "all cores at once, as a share of one core alone", unit: "%", targets: {} },
  burst20: {
    group: "burst",
    name: "burst of 20 creates → first exec",
    unit: "ms",
    targets: {
      wall: { said: "wall ≤ 20 × single, warm process / cores", most: 1 },
      unprepared: { said: "wall ≤ 1/2 × 20 × single, nothing prepared / cores", most: 1 / 2 },
      success: { said: "% that succeed = 100", least: 100 },
    },
  },
  burst100: {
    group: "burst",
    name: "burst of 100 creates → first exec",
    unit: "ms",
    targets: {
      success: { said: "% that succeed = 100", least: 100 },
      swap: { said: "pages swapped out = 0", most: 0 },
    },
  },
  getDuringBurst: {
    group: "burst",
    name: "GET /v1/capsules/{id} during the burst of 100",
    unit: "ms",
    targets: { tail: { said: "p99 in ms ≤ 100", most: 100 } },
  },
  staggered: {
    group: "burst",
    name: "creates 200 ms apart → first exec",
    unit: "ms",
    targets: { success: { said: "% that succeed = 100", least: 100 } },
  },

  idleMemory: {
    group: "memory",
    name: "idle capsule of a shared template, PSS",
    unit: "MiB",
    targets: { most: { said: "p50 in MiB ≤ 40", most: 40 } },
  },
  idleMemoryWarmProcess: {
    group: "memory",
    name: "idle capsule in a warm process, PSS",
    unit: "MiB",
    targets: { most: { said: "p50 in MiB ≤ 40", most: 40 } },
  },
  idleProcessor: {
    group: "memory",
    name: "idle capsule, processor time of each second",
    unit: "ms",
    targets: { most: { said: "p50 in ms ≤ 3", most: 3 } },
  },

  get: {
    group: "reads",
    name: "GET /v1/capsules/{id}, 16 connections",
    unit: "ms",
    targets: { tail: { said: "p99 in ms ≤ 2", most: 2 } },
  },
  getRate: { group: "reads", name: "GET /v1/capsules/{id}, 16 connections, rate", unit: "requests/s", targets: {} },

  serverStart: { group: "records", name: "start of the server, no capsules", unit: "ms", targets: {} },
  serverMemory: { group: "records", name: "memory of the server, no capsules", unit: "MiB", targets: {} },
  list: {
    group: "records",
    name: "GET /v1/capsules with 1 000 capsules",
    unit: "ms",
    targets: { tail: { said: "p99 in ms ≤ 50", most: 50 } },
  },
  startWithRecords: {
    group: "records",
    name: "start of the server, 10 000 paused capsules",
    unit: "ms",
    targets: { bound: { said: "ms ≤ 2000", most: 2_000 } },
  },
  memoryWithRecords: {
    group: "records",
    name: "memory of the server, 10 000 paused capsules",
    unit: "MiB",
    targets: { bound: { said: "MiB ≤ 150", most: 150 } },
  },
  memoryPerThousand: {
    group: "records",
    name: "memory of the server, each 1 000 paused capsules",
    unit: "MiB",
    targets: { bound: { said: "p50 in MiB ≤ 5", most: 5 } },
  },
} as const satisfies Record<string, Entry>;

export type Catalog = typeof catalog;
export type FigureId = keyof Catalog;
export const figureIds = Object.keys(catalog) as FigureId[];

/** Without the types of a single entry. */
export function entryOf(id: FigureId): Entry {
  return catalog[id];
}

export function isWithin(value: number, { most = Number.POSITIVE_INFINITY, least = Number.NEGATIVE_INFINITY }: Target) {
  return value <= most && value >= least;
}
