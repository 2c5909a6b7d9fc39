/**
 * The rows of settings.ts and limits.ts, read into one frozen Config. `--help` and docs/OPERATIONS.md are printed from the same
 * rows.
 */
import { existsSync, statfsSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { limitRows } from "./limits.ts";
import { type Environment, type Row, read, type Values } from "./setting.ts";
import { settings } from "./settings.ts";
import type { Limits } from "./wire/limits.ts";
import { nearest } from "./wire/nearest.ts";

const mib = 1024 * 1024;
export type Config = Values<typeof settings> & { readonly limits: Readonly<Limits> };

/** Names every value that could not be parsed, so that one edit of the environment is enough. */
export class ConfigError extends Error {
  readonly lines: readonly string[];

  constructor(problems: string[]) {
    const lines = ["the configuration cannot be used:", ...problems.map((problem) => `  ${problem}`)];
    super(lines.join("\n"));
    this.name = "ConfigError";
    this.lines = lines;
  }
}

/** Pairs of limits, of which the first is at most the second. */
const ordered = [
  ["memory_min_mb", "memory_max_mb"],
  ["exec_timeout_default_sec", "exec_timeout_max_sec"],
  ["timeout_default_sec", "timeout_max_sec"],
  ["lifetime_default_sec", "lifetime_max_sec"],
  ["retention_default_sec", "retention_max_sec"],
] as const;

/** Throws ConfigError. An empty variable counts as unset. */
export function loadConfig(environment: Environment = process.env): Config {
  const problems: string[] = [];
  const dataDir = environment[settings.dataDir.name] || settings.dataDir.fallback;
  const complete = { ...diskDefaults(dataDir), ...definedIn(environment) };
  const values = read(settings, complete, problems);
  const bounds = read(limitRows, complete, problems);
  for (const [least, most] of problems.length === 0 ? ordered : [])
    if (bounds[least] > bounds[most]) problems.push(`${limitRows[least].name} is greater than ${limitRows[most].name}`);
  if (problems.length > 0) throw new ConfigError(problems);
  return Object.freeze({ ...values, limits: Object.freeze(bounds) });
}

/** The defaults that depend on the size of the file system that the data folder is or will be on. */
function diskDefaults(dataDir: string): Environment {
  const { blocks, bsize } = statfsSync(nearestExisting(resolve(dataDir)));
  const diskBytes = Math.min(blocks * bsize, 2 ** 50);
  if (diskBytes === 0) return {}; // a file system that does not know its size
  return {
    [settings.diskReserveMb.name]: String(Math.min(8_192, Math.floor(diskBytes / 32 / mib))),
    [settings.cacheMb.name]: String(Math.floor(diskBytes / 10 / mib)),
    [limitRows.disk_max_bytes.name]: String(Math.max(1, Math.floor((diskBytes / 4) * 3))),
  };
}

function nearestExisting(path: string): string {
  return existsSync(path) ? path : nearestExisting(dirname(path));
}

/** An empty variable counts as unset. */
function definedIn(environment: Environment): Environment {
  return Object.fromEntries(Object.entries(environment).filter(([, text]) => text));
}

const groups: [head: string, keys: (keyof typeof settings)[]][] = [
  ["Where it listens", ["host", "port", "tlsCert", "tlsKey", "plainHttp", "trustProxy", "corsOrigins"]],
  ["URLs of ports", ["portDomain", "portTlsCert", "portTlsKey"]],
  ["What capsules reach", ["egress", "egressCeiling", "egressDeny", "egressGrant"]],
  ["Files", ["dataDir", "qemu", "web"]],
  [
    "Several hosts",
    ["cluster", "hostName", "peerPort", "peerUrl", "hostLostSec", "releaseAfterSec", "cacheMb", "keysStaleSec"],
  ],
  ["How VMs run", ["accelerator", "cpu", "jail", "jailUids"]],
  ["What it may take of the machine", ["memoryReserveMb", "memoryOvercommit", "diskReserveMb"]],
  [
    "What can be seen of it",
    ["logLevel", "metrics", "metricsToken", "tracesEndpoint", "auditEntriesMax", "auditKeepDays"],
  ],
];

/** The settings in groups, a line each, as `--help` and the operations page show them. Hooks of tests are left out. */
export function configHelp(): string {
  const { crashAt: _, ...shown } = settings;
  const placed = new Set(groups.flatMap(([, keys]) => keys));
  const keys = Object.keys(shown) as (keyof typeof shown)[];
  const parts: [string, Row<unknown>[]][] = [
    ...groups.map(([head, names]): [string, Row<unknown>[]] => [head, names.map((name) => settings[name])]),
    ["Tuning, mostly as it should be", keys.filter((key) => !placed.has(key)).map((key) => settings[key])],
    ["Limits of teams, capsules and requests", Object.values(limitRows)],
  ];
  const rows = parts.flatMap(([, each]) => each);
  const widths = [longest(rows.map((each) => each.name)), longest(rows.map((each) => each.fallbackSaid))] as const;
  const lineOf = ({ name, fallbackSaid, meaning }: Row<unknown>) =>
    `${name.padEnd(widths[0])}  ${fallbackSaid.padEnd(widths[1])}  ${meaning}`;
  return parts.map(([head, each]) => `${head}:\n${each.map(lineOf).join("\n")}`).join("\n\n");
}

/** Variables of the client, of builds and of tests. */
const others =
  /^CAPSULE_(URL|API_KEY|AGENT|IMAGES_FROM|DISK_MB|KVM|POWER_CUTS|(TEST|FUZZ|FAULTS|SOAK|CLIENTS|BENCH)(_\w+)?)$/;

/** A sentence for each variable that begins like a setting and is none. */
export function unknownSettings(environment: Environment = process.env): string[] {
  const names = [...Object.values(settings), ...Object.values(limitRows)].map(({ name }) => name);
  const unknown = Object.keys(environment).filter(
    (name) => name.startsWith("CAPSULE_") && environment[name] && !names.includes(name) && !others.test(name),
  );
  return unknown.map((name) => {
    const meant = nearest(
      name.slice("CAPSULE_".length),
      names.map((each) => each.replace(/^CAPSULE_/, "")),
    );
    return `${name} is no setting${meant === undefined ? "" : `; CAPSULE_${meant} is`}`;
  });
}

function longest(texts: string[]): number {
  return Math.max(...texts.map((text) => text.length));
}
