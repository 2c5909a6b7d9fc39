/**
 * Runs code written by a language model: in its own capsule, with a time limit; the capsule is destroyed afterwards.
 */
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
  console.log("the time limit was exceeded");
}
