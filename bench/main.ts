/**
 * `./dev bench [--check] [--long] [--json FILE] [NAME…]`: runs the benchmarks against a server of their own and prints one
 * table. `--check` fails when a target is missed; `--long` measures also what takes minutes.
 */
import { writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { boot } from "./boot.ts";
import { exec } from "./exec.ts";
import { type Figure, isMet, table } from "./figure.ts";
import { files } from "./files.ts";
import { freeze } from "./freeze.ts";
import { reads } from "./reads.ts";
import { Rig } from "./rig.ts";
import { streams } from "./streams.ts";
import { templates } from "./templates.ts";
import { terminal } from "./terminal.ts";

const benchmarks: Record<string, (rig: Rig) => Promise<Figure[]>> = {
  boot,
  exec,
  streams,
  terminal,
  files,
  reads,
  freeze,
  templates,
};

const { values, positionals } = parseArgs({
  options: {
    check: { type: "boolean", default: false },
    long: { type: "boolean", default: false },
    json: { type: "string" },
  },
  allowPositionals: true,
});

const unknown = positionals.filter((name) => !Object.hasOwn(benchmarks, name));
if (unknown.length > 0) {
  console.error(`no benchmark ${unknown.join(", ")}; there are ${Object.keys(benchmarks).join(", ")}`);
  process.exit(2);
}

const figures: Figure[] = [];
await using rig = await Rig.start({ isLong: values.long });
for (const [name, run] of Object.entries(benchmarks)) {
  if (positionals.length > 0 && !positionals.includes(name)) continue;
  console.error(`bench: ${name} …`);
  figures.push(...(await run(rig)));
}
console.log(table(figures));
if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify(figures, null, 2)}\n`);
if (values.check && !figures.every(isMet)) process.exitCode = 1;
