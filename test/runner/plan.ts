/** The plan of a run: the words of the command line, checked, and the limits that follow from them. */
import { existsSync } from "node:fs";
import { agentGroup, groupNames, type Task, type TaskStage, tasksOf, tasksOfFiles, usualGroups } from "./groups.ts";
import { type Need, needsOf } from "./needs.ts";

const minuteMs = 60_000;
/** The whole of `all` takes so long; its share of `kvm` takes the last part, or is skipped when less is left. */
const allMs = 25 * minuteMs;
const machineShareMs = 8 * minuteMs;
/** Longest run of a file. The last two are for forms that are asked for by name. */
const fileLimitMs = 30 * minuteMs;
const longLimitsMs: Record<string, number> = { soak: 180 * minuteMs, kvm: 180 * minuteMs };
const longMachineMs = 24 * 60 * minuteMs;

/** Environment of the bounded form of everything, unless another one is asked for. */
export const boundedForms = { CAPSULE_SOAK: "smoke", CAPSULE_KVM: "smoke" };

export interface Options {
  /** Part of the titles of the tests that run. */
  title?: string;
  /** Seconds that each file may take. */
  limit?: string;
  /** Why no machine can be built here. */
  "no-machine"?: string;
}

export interface Plan {
  stages: TaskStage[];
  isAll: boolean;
  /** Files were named, not groups. */
  isOfFiles: boolean;
  options: Options;
}

/** The command line cannot be followed. */
export class Refusal extends Error {}

export function planOf(words: readonly string[], options: Options): Plan {
  const files = words.filter((word) => word.includes("/") || word.endsWith(".ts"));
  const groups = words.filter((word) => !files.includes(word));
  for (const file of files) if (!existsSync(file)) throw new Refusal(`there is no file ${file}`);
  const unknown = groups.find((group) => group !== "all" && !groupNames.includes(group));
  if (unknown !== undefined)
    throw new Refusal(`there are no tests in ${unknown}; there are: all, ${groupNames.join(", ")}`);
  if (files.length > 0 && groups.length > 0) throw new Refusal("test takes groups or files, not both");
  if (options.title !== undefined && files.length === 0)
    throw new Refusal("-t takes files, whose tests it chooses from");
  if (options.limit !== undefined && !(Number(options.limit) > 0)) throw new Refusal("--limit is a number of seconds");
  const isAll = groups.includes("all");
  const named = groups.length > 0 ? groups : usualGroups;
  const stages = files.length > 0 ? [tasksOfFiles(files)] : tasksOf(isAll ? groupNames : named);
  return { stages, isAll, isOfFiles: files.length > 0, options };
}

export function neededBy({ stages }: Plan): Need[] {
  const tasks = stages.flatMap((stage) => stage.tasks);
  const needs = needsOf(tasks.flatMap(({ file }) => file ?? []));
  return tasks.some(({ group }) => group === agentGroup) ? [...needs, "rust"] : needs;
}

export function limitOf({ group }: Task, { isAll, options }: Plan, env: NodeJS.ProcessEnv): number {
  if (options.limit !== undefined) return Number(options.limit) * 1_000;
  if (isAll) return fileLimitMs;
  if (group === "kvm" && env.CAPSULE_KVM === "long") return longMachineMs;
  return longLimitsMs[group] ?? fileLimitMs;
}

/** Why a run of everything leaves a task out, which begins so long after the run; undefined when it does not. */
export function whySkipped({ group }: Task, { isAll, options }: Plan, elapsedMs: number): string | undefined {
  if (!isAll || group !== "kvm") return;
  if (options["no-machine"] !== undefined) return options["no-machine"];
  const before = (allMs - machineShareMs) / minuteMs;
  if (elapsedMs > before * minuteMs) return `the other tests took more than ${before} minutes: ./dev test kvm`;
}
