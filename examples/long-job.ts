/** A long job in the background: its output is followed, and the capsule is paused and resumed while it runs. */
import { Capsule } from "../src/sdk/sdk.ts";

const steps = 4;
const script = `for i in $(seq ${steps}); do sleep 0.5; echo step $i | tee -a /root/log; done`;

await using capsule = await Capsule.create();
const job = await capsule.spawn("sh", ["-c", script], { tag: "job" });

const output = await job.attach({ from: "start" });
for await (const { text } of output) {
  console.log("output:", text.split("\n", 1)[0]); // of several lines where the job was faster than this program
  break; // leaving the loop closes the stream; the job goes on
}

await capsule.pause(); // the job is saved to disk, and uses no CPU or memory
await capsule.resume();

const exitCode = await capsule.process("job").wait();
const log = await capsule.files.readText("/root/log");
console.log("ended with", exitCode, "after", log.trim().split("\n").length, "steps");
