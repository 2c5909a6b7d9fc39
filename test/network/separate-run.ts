/** Runs tests in a process of their own, which may be in other namespaces. */
import { spawn } from "node:child_process";
import { once } from "node:events";

/** The exit code, and everything that was printed. */
export async function run(command: readonly string[]): Promise<[code: number, output: string]> {
  const [program = "", ...args] = command;
  // Without the variables of the runner, the tests inside are a run of their own.
  const { NODE_TEST_CONTEXT: _, ...env } = process.env;
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"], env });
  let output = "";
  for (const stream of [child.stdout, child.stderr])
    stream.on("data", (chunk: Buffer) => {
      output += chunk;
    });
  const [code] = (await once(child, "close")) as [number];
  return [code, output];
}
