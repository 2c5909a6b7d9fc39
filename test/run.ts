/**
 * The program behind `./dev test`; test/README.md is its page.
 *
 *   node test/run.ts [--needs] [all | GROUP… | FILE… [-t TITLE]] [--limit SECONDS]
 *
 * `--needs` prints what must be installed and built, for `./dev`. Exits with 1 when a test failed, and 2 for a wrong word.
 */
import { parseArgs } from "node:util";
import { runAgentTests } from "./runner/agent-tests.ts";
import { root, shown, type Task } from "./runner/groups.ts";
import { boundedForms, limitOf, neededBy, type Plan, planOf, Refusal, whySkipped } from "./runner/plan.ts";
import { runSideBySide } from "./runner/pool.ts";
import { type Printing, Result } from "./runner/result.ts";
import { lineOf, summaryOf } from "./runner/summary.ts";
import { runFile } from "./runner/test-file.ts";

const print = (text: string) => void process.stdout.write(text);

async function runTask(task: Task, result: Result, plan: Plan, signal: AbortSignal): Promise<void> {
  const limitMs = limitOf(task, plan, process.env);
  if (task.file !== undefined) await runFile(task.file, result, { limitMs, title: plan.options.title, signal });
  else await runAgentTests(result, AbortSignal.any([signal, AbortSignal.timeout(limitMs)]));
}

async function runAll(plan: Plan, signal: AbortSignal): Promise<Result[]> {
  const isAlone = plan.stages.length === 1 && plan.stages[0]!.tasks.length === 1;
  const printing: Printing = { isVerbose: plan.isOfFiles || isAlone, ...(isAlone && { live: print }) };
  const results: Result[] = [];
  const beganMs = performance.now();
  const runOne = async (task: Task) => {
    if (signal.aborted) return;
    const result = new Result(task.file === undefined ? task.group : shown(task.file), task.group, printing);
    const reason = whySkipped(task, plan, result.beganMs - beganMs);
    if (reason === undefined) await runTask(task, result, plan, signal);
    else result.skip(task.group, reason);
    result.endedMs = performance.now();
    results.push(result);
    print(lineOf(result, printing.isVerbose));
  };
  for (const { tasks, atOnce } of plan.stages) await runSideBySide(tasks, atOnce, runOne);
  if (signal.aborted) results.at(-1)?.fail("all that follow", "the run was ended");
  if (results.every(({ count }) => count === 0)) results.at(-1)?.fail("all", "no test was run");
  print(`\n${summaryOf(results)}`);
  return results;
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    title: { type: "string", short: "t" },
    limit: { type: "string" },
    needs: { type: "boolean" },
    "no-machine": { type: "string" },
  },
});
const plan = ((): Plan => {
  try {
    return planOf(positionals, values);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    console.error(`dev: ${error.message}`);
    process.exit(2);
  }
})();

if (values.needs === true) {
  print(`${neededBy(plan).join("\n")}\n`);
} else {
  const forms = { ...(plan.isAll && boundedForms), CAPSULE_POOL_MIN: "1" }; // a larger pool would take from the tests
  for (const [name, value] of Object.entries(forms)) process.env[name] ??= value;
  const stop = new AbortController();
  for (const name of ["SIGINT", "SIGTERM"] as const) process.once(name, () => stop.abort());
  process.chdir(root);
  const results = await runAll(plan, stop.signal);
  process.exitCode = results.some(({ failed }) => failed.length > 0) ? 1 : 0;
}
