/** Prepares a capsule once, turns it into a template, and starts other capsules from it. */
import { Client } from "../src/sdk/sdk.ts";

const client = new Client();
const name = `example-${process.pid}`;

const prepared = await client.create();
await prepared.exec("sh", ["-c", "mkdir -p /opt/tools && echo ready > /opt/tools/state"]);
const template = await prepared.snapshot(name);
console.log("template:", template.type, template.vcpus, template.memoryMb);

try {
  const capsules = await Promise.all([1, 2].map(() => client.create({ template: name })));
  for (const capsule of capsules) {
    console.log("started with:", (await capsule.files.readText("/opt/tools/state")).trim());
    await capsule.destroy();
  }
} finally {
  await client.templates.remove(name);
}
