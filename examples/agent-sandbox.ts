/** Runs code that a language model wrote: in a capsule of its own, with a time limit, and nothing left behind. */
import { Capsule, hasCode } from "../src/sdk/sdk.ts";

const code = `
import json, platform
print(json.dumps({"answer": sum(range(10)), "system": platform.system()}))
`;

await using capsule = await Capsule.create({ template: "minimal", timeoutSec: 600 });
await capsule.files.write("/root/main.py", code);
try {
  const { stdout, stderr, exitCode } = await capsule.exec("python3", ["main.py"], { cwd: "/root", timeoutSec: 60 });
  console.log(exitCode === 0 ? JSON.parse(stdout) : stderr);
} catch (error) {
  if (!hasCode(error, "timeout")) throw error;
  console.log("it took too long");
}
