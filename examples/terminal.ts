/** A terminal session that is detached in the middle of a command and joined again. */
import { Capsule } from "../src/sdk/sdk.ts";

await using capsule = await Capsule.create();
const decoder = new TextDecoder();

const pty = await capsule.pty({ cmd: "/bin/sh", cols: 100, rows: 30, envs: { PS1: "$ " } });
await pty.write("sleep 1; echo result $((6 * 7))\n");
pty.detach();

const back = await capsule.rejoin(pty.tag);
await back.write("exit 5\n");
let seen = "";
for await (const bytes of back) seen += decoder.decode(bytes, { stream: true });
console.log(/result 42/.test(seen) ? "the output was kept" : "the output is lost");
console.log("the shell ended with", back.exitCode);
