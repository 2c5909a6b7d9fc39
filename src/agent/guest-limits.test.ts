import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { guestLimits } from "./guest-limits.ts";

const sources = join(import.meta.dirname, "../../guest/agent/src");

/** The product in `const NAME: type = 4 * 1_024;` of an agent's source file. */
function constant(file: string, name: string): number {
  const found = new RegExp(`const ${name}: \\w+ = ([\\d_* ]+);`).exec(readFileSync(join(sources, file), "utf8"))?.[1];
  assert.ok(found, `${file} has no ${name}`);
  return found.split("*").reduce((product, factor) => product * Number(factor.replaceAll("_", "")), 1);
}

test("are those of the agent's source", () => {
  assert.deepEqual(guestLimits, {
    liveMax: constant("sessions.rs", "MAX_LIVE"),
    tasksMax: constant("tasks.rs", "MAX_TASKS"),
    keptExitsMax: constant("kept.rs", "MAX_KEPT"),
    keptExitsMs: constant("supervisor.rs", "KEPT_MS"),
    keptOutputBytes: constant("output_log.rs", "KEPT_BYTES"),
    replayBytes: constant("terminal.rs", "RING_BYTES"),
    lagBytes: constant("listeners.rs", "LISTENER_QUEUE_BYTES"),
    terminalInputBytes: constant("input.rs", "MAX_INPUT_BYTES"),
    processesMax: constant("processes.rs", "MAX_PROCESSES"),
    processListingBytes: constant("processes.rs", "MAX_LISTING_BYTES"),
  });
});
