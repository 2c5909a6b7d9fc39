/** The page bench/RESULTS.md: the machine, the table and the traces of one run. */
import { execFileSync } from "node:child_process";
import { cpus, release, totalmem } from "node:os";
import type { Row } from "./report.ts";
import { markdownTable, markdownTrace } from "./table.ts";
import type { Trace } from "./trace-stages.ts";

const head = "# Results of the last run";
const explanation = [
  "Written by `./dev bench --markdown`. [README.md](README.md) describes the method.",
  "The value of each target decides. Absolute times and sizes are those of this run and this machine.",
];

export interface Findings {
  rows: readonly Row[];
  traces: readonly Trace[];
  /** When, as ISO 8601. */
  timestamp: string;
  accelerator: string;
}

export function resultsPage({ rows, traces, timestamp, accelerator }: Findings): string {
  const about = `${timestamp.slice(0, 10)}, on ${machine(accelerator)}.`;
  return `${[head, about, ...explanation, markdownTable(rows), ...traces.map(markdownTrace)].join("\n\n")}\n`;
}

function machine(accelerator: string): string {
  const cores = cpus();
  const model = (cores[0]?.model ?? "an unknown CPU").trim();
  const memoryGib = Math.round(totalmem() / 2 ** 30);
  const qemu = versionOf("qemu-system-x86_64");
  return `${cores.length} × ${model}, ${memoryGib} GiB, Linux ${release()}, ${qemu} with ${accelerator}, ${versionOf("runsc")}, Node ${process.version}`;
}

function versionOf(program: string): string {
  try {
    return execFileSync(program, ["--version"], { encoding: "utf8" }).split("\n")[0]!.trim();
  } catch {
    return `no ${program}`;
  }
}
