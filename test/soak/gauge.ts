/** Preloaded into the server under test: on SIGUSR2 it collects garbage and writes the memory in use to a file. */
import { renameSync, writeFileSync } from "node:fs";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

const file = process.env.CAPSULE_SOAK_GAUGE;
if (file !== undefined) {
  setFlagsFromString("--expose-gc");
  const collect: () => void = runInNewContext("gc");
  process.on("SIGUSR2", () => {
    collect();
    collect();
    writeFileSync(`${file}.half`, JSON.stringify(process.memoryUsage()));
    renameSync(`${file}.half`, file);
  });
}
