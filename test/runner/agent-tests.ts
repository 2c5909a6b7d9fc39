/** Runs the tests of the agent, by cargo, and reads what they print. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { root } from "./groups.ts";
import type { Result } from "./result.ts";

export async function runAgentTests(result: Result, signal: AbortSignal): Promise<void> {
  const child = spawn(join(root, "guest/agent/build"), ["test"], {
    stdio: ["ignore", "pipe", "pipe"],
    signal,
    killSignal: "SIGKILL",
  });
  let text = "";
  child.stdout.setEncoding("utf8").on("data", (chunk: string) => {
    text += chunk;
    result.write(chunk);
  });
  child.stderr.setEncoding("utf8").on("data", (chunk: string) => result.write(chunk));
  const [status] = await once(child, "close").catch((error: Error) => [error.message]);
  readCargo(text, result);
  if (result.passed + result.failed.length === 0) result.fail("agent", "it ran no test");
  else if (status !== 0 && result.failed.length === 0) result.fail("agent", `it ended with ${status}`);
}

/** Adds what the programs of `cargo test` say of their tests, and of all of them at their end. */
export function readCargo(text: string, result: Result): void {
  for (const [, title = "", reason = ""] of text.matchAll(/^test (.*) \.\.\. ignored(?:, (.*))?$/gm))
    result.skip(title, reason);
  for (const [, title = ""] of text.matchAll(/^test (.*) \.\.\. FAILED$/gm)) result.failed.push(title);
  for (const [, passed, failed] of text.matchAll(/^test result: \S+ (\d+) passed; (\d+) failed;/gm)) {
    result.passed += Number(passed);
    if (Number(failed) > 0 && result.failed.length === 0) result.failed.push("agent");
  }
}
