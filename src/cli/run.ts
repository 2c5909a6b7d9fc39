/** `capsule run`: creates a capsule and runs a command in it. */
import { createOptions } from "./capsules.ts";
import { type Call, UsageError } from "./command.ts";
import { checkOptions, commandOptions, execIn } from "./exec.ts";
import { exitCodes } from "./failures.ts";
import { note } from "./screen.ts";
import { startingSlowly, Waiting } from "./waiting.ts";

export async function run(call: Call): Promise<number> {
  const [cmd, ...args] = call.rest;
  if (cmd === undefined) throw new UsageError("the command is missing: run [TEMPLATE] -- CMD");
  checkOptions(call);
  const [options, isRemoved] = [createOptions(call), call.isSet("rm")];
  const stop = new AbortController();
  const own = { ...commandOptions(call), envs: {} }; // the capsule has the variables
  const asked = { name: "run", cmd, args, options: own, timeoutSec: 0, signal: stop.signal } as const;
  // A write to a closed output rejects besides.
  for (const output of [process.stdout, process.stderr]) output.on("error", () => {});
  // To the end of this process, so that nothing but a kill leaves the capsule behind.
  for (const signal of signals) process.on(signal, () => interruptUnlessRelayed(signal, stop));
  const client = await call.client({ streams: true });
  const waiting = new Waiting(!call.isJson);
  waiting.begins(startingSlowly);
  const capsule = await client.create({ ...options, signal: stop.signal }).finally(() => waiting.ends());
  if (!isRemoved) note(`capsule run: ${capsule.id}`);
  try {
    return await execIn(call, capsule, asked);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EPIPE") return exitCodes.done; // as in `capsule run … | head -1`
    throw error;
  } finally {
    if (isRemoved) await capsule.destroy();
  }
}

const signals = ["SIGINT", "SIGTERM", "SIGHUP"] as const;

/** A command that runs has listeners of its own, which pass signals on to it. */
function interruptUnlessRelayed(signal: NodeJS.Signals, stop: AbortController): void {
  if (process.listenerCount(signal) === 1) stop.abort(new Error("interrupted"));
}
