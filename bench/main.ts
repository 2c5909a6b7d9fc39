/** `./dev bench`: runs the benchmarks against servers of their own and prints one table. */
import { writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { parseArgs } from "node:util";
import { boot } from "./boot.ts";
import { burst } from "./burst.ts";
import { create } from "./create.ts";
import { exec } from "./exec.ts";
import { files } from "./files.ts";
import { Fixture } from "./fixture.ts";
import { freeze } from "./freeze.ts";
import { memory } from "./memory.ts";
import { neighbours } from "./neighbours.ts";
import { network } from "./network.ts";
import { publicDocument } from "./public-format.ts";
import { reads } from "./reads.ts";
import { records } from "./records.ts";
import { isAllMet, Report } from "./report.ts";
import { resultsPage } from "./results-page.ts";
import { abandonAll } from "./service.ts";
import { streams } from "./streams.ts";
import { textTable, textTrace } from "./table.ts";
import { templates } from "./templates.ts";
import { terminal } from "./terminal.ts";
import { trace } from "./trace.ts";

const groups: Record<string, (fixture: Fixture) => Promise<void>> = {
  boot,
  create,
  exec,
  streams,
  terminal,
  files,
  network,
  freeze,
  templates,
  burst,
  memory,
  neighbours,
  reads,
  records,
  trace,
};

const page = resolve(import.meta.dirname, "RESULTS.md");

const usage = `./dev bench [OPTION…] [GROUP…]     all groups without GROUP: ${Object.keys(groups).join(", ")}

  --check       exit with 1 unless every target of the groups that ran is met; a target that could not be measured is not
  --long        more samples, and the figures that take minutes
  --json FILE   write everything as JSON; "public" in it is the format of the public sandbox benchmarks
  --markdown    write bench/RESULTS.md; for a whole run
  --help        print this text
`;

for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.once(signal, () => {
    abandonAll();
    process.exit(1);
  });
}
process.exitCode = await main();

async function main(): Promise<number> {
  const { values, positionals } = parseArgs({
    options: {
      check: { type: "boolean", default: false },
      long: { type: "boolean", default: false },
      markdown: { type: "boolean", default: false },
      help: { type: "boolean", default: false },
      json: { type: "string" },
    },
    allowPositionals: true,
  });
  if (values.help) {
    console.log(usage);
    return 0;
  }
  const unknown = positionals.filter((name) => !Object.hasOwn(groups, name));
  if (unknown.length > 0 || (values.markdown && positionals.length > 0)) {
    console.error(unknown.length > 0 ? `there is no group ${unknown.join(", ")}\n\n${usage}` : usage);
    return 2;
  }
  const wanted = positionals.length > 0 ? positionals : Object.keys(groups);
  const report = new Report();
  await using fixture = await Fixture.start({ isLong: values.long, report });
  const failed = await runGroups(fixture, wanted);

  const rows = report.rows(wanted, values.long);
  if (rows.length > 0) console.log(textTable(rows));
  for (const each of report.traces) console.log(`\n${textTrace(each)}`);
  const timestamp = new Date().toISOString();
  if (values.json !== undefined) {
    const document = {
      timestamp,
      figures: rows,
      traces: report.traces,
      public: publicDocument(fixture.runs, timestamp),
    };
    writeFileSync(values.json, `${JSON.stringify(document, null, 2)}\n`);
  }
  if (values.markdown) {
    const accelerator = fixture.machine.accelerator.kind;
    writeFileSync(page, resultsPage({ rows, traces: report.traces, timestamp, accelerator }));
  }
  return failed > 0 || (values.check && !isAllMet(rows)) ? 1 : 0;
}

/** Runs the groups one after the other, even after a failure. Resolves with the number of groups that failed. */
async function runGroups(fixture: Fixture, wanted: readonly string[]): Promise<number> {
  let failed = 0;
  for (const [name, run] of Object.entries(groups)) {
    if (!wanted.includes(name)) continue;
    const began = performance.now();
    try {
      await run(fixture);
    } catch (error) {
      failed++;
      console.error(`bench: ${name} failed:`, error);
    }
    console.error(`bench: ${name}: ${((performance.now() - began) / 1_000).toFixed(1)} s`);
  }
  return failed;
}
