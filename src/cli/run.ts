/** `capsule run`: creates a capsule and runs a command in it. */
import type { Capsule } from "../sdk/sdk.ts";
import { createOptions } from "./capsules.ts";
import { type Call, UsageError } from "./command.ts";
import { checkOptions, commandOptions, execIn } from "./exec.ts";
import { exitCodes } from "./failures.ts";
import { note } from "./screen.ts";

export async function run(call: Call): Promise<number> {
  const [cmd, ...args] = call.rest;
  if (cmd === undefined) throw new UsageError("the command is missing: run [TEMPLATE] -- CMD");
  checkOptions(call);
  const asked = { cmd, args, options: commandOptions(call), timeoutSec: 0 };
  const options = createOptions(call);
  const client = await call.client({ streams: true });
  // A write to a closed output rejects besides.
  for (const output of [process.stdout, process.stderr]) output.on("error", () => {});
  const stop = new AbortController();
  const interrupt = () => stop.abort(new Error("interrupted; the capsule is destroyed"));
  for (const signal of signals) process.on(signal, interrupt);
  let capsule: Capsule;
  try {
    capsule = await client.create({ ...options, signal: stop.signal });
  } finally {
    for (const signal of signals) process.off(signal, interrupt);
  }
  if (!call.isSet("rm")) {
    note(`capsule run: ${capsule.id}`);
    return await execIn(call, capsule, asked);
  }
  try {
    return await execIn(call, capsule, asked);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EPIPE") return exitCodes.done; // as in `capsule run … | head -1`
    throw error;
  } finally {
    for (const signal of signals) process.on(signal, () => {}); // the capsule is being destroyed
    await capsule.destroy();
  }
}

const signals = ["SIGINT", "SIGTERM", "SIGHUP"] as const;
