/** A long job in the background: followed while it runs, frozen in the middle, and gone on with. */
import { Capsule } from "../src/sdk/sdk.ts";

const steps = 4;
const script = `for i in $(seq ${steps}); do sleep 0.5; echo step $i | tee -a /root/log; done`;

await using capsule = await Capsule.create();
const job = await capsule.spawn("sh", ["-c", script], { tag: "job" });

const output = await job.attach();
for await (const { text } of output) {
  console.log("heard:", text.trim());
  break; // leaving the loop lets go of the output, not of the job
}

await capsule.pause(); // the job stands still on disk; the machine is free
await capsule.resume();

const exitCode = await capsule.process("job").wait();
const log = await capsule.files.readText("/root/log");
console.log("ended with", exitCode, "after", log.trim().split("\n").length, "steps");
