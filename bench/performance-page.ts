/** The generated part of docs/PERFORMANCE.md: the machine, the last table and the last traces, between two markers. */
import { execFileSync } from "node:child_process";
import { cpus, release, totalmem } from "node:os";
import type { Row } from "./report.ts";
import { markdownTable, markdownTrace } from "./table.ts";
import type { Trace } from "./trace-stages.ts";

const begin = "<!-- bench: from here on written by ./dev bench --markdown -->";
const end = "<!-- bench: up to here -->";

export interface Findings {
  rows: readonly Row[];
  traces: readonly Trace[];
  /** When, as ISO 8601. */
  timestamp: string;
  accelerator: string;
}

/** The page with its generated part replaced. Throws when the page has no place for it. */
export function withFindings(page: string, findings: Findings): string {
  const { rows, traces, timestamp, accelerator } = findings;
  const [before, rest] = page.split(begin);
  const after = rest?.split(end)[1];
  if (before === undefined || after === undefined) throw new Error(`the page has no place between ${begin} and ${end}`);
  const about = `${timestamp.slice(0, 10)}, on ${machine(accelerator)}. Times and sizes are of this run; the targets' values decide.`;
  const parts = [begin, about, markdownTable(rows), ...traces.map(markdownTrace), end];
  return `${before}${parts.join("\n\n")}${after}`;
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
