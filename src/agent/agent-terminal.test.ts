/** Ended terminals in the real agent. */
import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { AgentProcess } from "../../test/agent-process.ts";
import { processesOf } from "../../test/collected.ts";
import { Transcript } from "../../test/fakes/transcript.ts";
import { waitFor } from "../../test/wait-for.ts";
import type { Agent } from "./agent.ts";

const keptExits = 64;

let guest: AgentProcess;
let agent: Agent;

before(async () => {
  guest = await AgentProcess.start();
  agent = await guest.connect();
  await guest.wake(agent);
});
after(() => guest[Symbol.asyncDispose]());

function open(script: string): { transcript: Transcript; leave: () => void } {
  const transcript = new Transcript();
  const command = { cmd: "/bin/sh", args: ["-c", script] };
  const stream = transcript.of(agent.pty(command, { cols: 80, rows: 24 }, transcript));
  return { transcript, leave: () => stream.cancel() };
}

async function isAlive(pid: number): Promise<boolean> {
  return (await processesOf(agent)).some((process) => process.pid === pid);
}

describe("an ended terminal", () => {
  it("whose exit was not delivered is kept; delivered ones do not displace it", async () => {
    const { transcript, leave } = open("read line; echo last words; exit 5");
    const { tag, pid } = await transcript.process.promise;
    const ender = new Transcript();
    const end = ender.of(agent.connect(tag, ender));
    await ender.process.promise;
    leave();
    end.write(Buffer.from("\n"));
    end.cancel();
    await waitFor("its process has ended", async () => !(await isAlive(pid)));
    for (let ended = 0; ended <= keptExits; ended++) await open("exit 0").transcript.exit();
    const late = new Transcript();
    late.of(agent.connect(tag, late));
    assert.equal((await late.exit()).exitCode, 5);
    assert.match(late.text("pty"), /last words/);
  });
});
