/** Loaded into the server under soak, and nothing of it: on SIGUSR2 it collects its garbage and writes what it still needs. */
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
