/** The groups of tests: which files each has, which run side by side, and what a whole run consists of. */
import { globSync } from "node:fs";
import { availableParallelism } from "node:os";
import { relative, resolve } from "node:path";

export const root = resolve(import.meta.dirname, "../..");
const cores = availableParallelism();

/** Tests of the agent, which cargo builds and runs; they have no files here. */
export const agentGroup = "agent";

/** Folders with the files of a group, where these are not test/GROUP. */
const folders: Record<string, string[]> = {
  [agentGroup]: [],
  unit: ["{src,web,guest,bench}/**", "test", "test/runner"],
};

/** Groups that run side by side: `atOnce` files, of which the file of a heavy group counts as two. */
interface Stage {
  groups: string[];
  atOnce: number;
}

/**
 * One after the other. Files of a stage begin in the order of its groups, those that take longest first. A unit test is
 * done as soon as it has started; one with VMs waits for its guest much of its time, so one more of them runs than there
 * are cores. `neighbours` measures what others take away, and a file of `kvm` is a machine.
 */
const stages: Stage[] = [
  { groups: [agentGroup], atOnce: 1 },
  { groups: ["unit"], atOnce: 2 * cores },
  {
    groups: [
      ...[
        "conformance",
        "faults",
        "browser",
        "clients",
        "sdk",
        "operations",
        "cli",
        "jail",
        "network",
        "terminal",
        "cluster",
        "fuzz",
      ],
      ...["teams", "soak", "guides"],
    ],
    atOnce: cores + 1,
  },
  { groups: ["neighbours"], atOnce: 1 },
  { groups: ["kvm"], atOnce: 1 },
];
/** The conformance suite is one file, and runs three of its sections at once. */
const heavy = "conformance";

/** The groups that `./dev test` leaves to `./dev test all`. */
const onlyInAll = ["faults", "operations", "fuzz", "soak", "guides", "neighbours", "kvm"];

export const groupNames: string[] = stages.flatMap(({ groups }) => groups);
export const usualGroups: string[] = groupNames.filter((name) => !onlyInAll.includes(name));

export interface Task {
  group: string;
  /** Path of a test file, or undefined for the agent's tests. */
  file: string | undefined;
  /** How many of the stage's files it counts for. */
  weight: number;
}

export interface TaskStage {
  atOnce: number;
  tasks: Task[];
}

/** Test files of a group, by their paths from the root. */
export function filesOf(group: string): string[] {
  const patterns = (folders[group] ?? [`test/${group}/**`]).map((folder) => `${folder}/*.test.ts`);
  return globSync(patterns, { cwd: root })
    .filter((path) => !/(^|\/)(node_modules|target)\//.test(path))
    .sort();
}

/** The tasks of these groups, stage by stage. */
export function tasksOf(names: readonly string[]): TaskStage[] {
  return stages
    .map(({ groups, atOnce }) => ({
      atOnce,
      tasks: groups
        .filter((group) => names.includes(group))
        .flatMap((group): Task[] => {
          if (group === agentGroup) return [{ group, file: undefined, weight: 1 }];
          return filesOf(group).map((path) => ({ group, file: resolve(root, path), weight: group === heavy ? 2 : 1 }));
        }),
    }))
    .filter(({ tasks }) => tasks.length > 0);
}

/** Files that were named one by one, as one stage. */
export function tasksOfFiles(files: readonly string[]): TaskStage {
  const tasks = files.map((file) => ({ group: "files", file: resolve(file), weight: 1 }));
  return { atOnce: cores + 1, tasks };
}

export function shown(file: string): string {
  const path = relative(root, file);
  return path.startsWith("..") ? file : path;
}
