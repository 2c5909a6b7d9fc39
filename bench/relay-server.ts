/**
 * The baseline of commands over HTTP: Fastify in a process of its own, with one route that passes a command to the agent of a VM
 * and answers with its result. No keys, limits, records or audit.
 */
import fastify from "fastify";
import { output, withAgent } from "./booted-agent.ts";

interface Body {
  cmd: string;
  args: string[];
}

const strings = { type: "array", items: { type: "string" } };
const schema = {
  body: { type: "object", properties: { cmd: { type: "string" }, args: strings }, required: ["cmd", "args"] },
  response: {
    200: {
      type: "object",
      properties: { stdout: { type: "string" }, stderr: { type: "string" }, exit_code: { type: "integer" } },
    },
  },
};

process.stdin.on("end", () => process.exit()).resume();
const folder = process.argv[2];
if (folder === undefined) throw new Error("usage: relay-server.ts FOLDER");
await withAgent(folder, async (agent) => {
  const app = fastify();
  app.post<{ Body: Body }>("/v1/capsules/:id/exec", { schema }, async ({ body: { cmd, args } }) => {
    return { stdout: await output(agent, cmd, ...args), stderr: "", exit_code: 0 };
  });
  console.log(await app.listen({ host: "127.0.0.1", port: 0 }));
  throw await agent.closed; // the VM has ended
});
