/** HALT, on the real agent, and the stop of an agent without it. On a socket the agent's own end stands for the power-off. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { describe, it } from "node:test";
import { AgentProcess } from "../../test/agent-process.ts";
import { FakeGuest } from "../../test/fakes/fake-guest.ts";
import { Transcript } from "../../test/fakes/transcript.ts";
import { within } from "../../test/wait-for.ts";
import { connectAgent } from "./connection.ts";
import { FrameType } from "./frames.ts";
import { execRequest, Verb } from "./protocol.ts";
import { RecordWriter } from "./records.ts";

const deadlineMs = 60_000;
const sh = (script: string) => ({ cmd: "/bin/sh", args: ["-c", script] });

describe("HALT", () => {
  it("sends SIGTERM, passes output and exits on meanwhile, and ends the agent when no program is left", async () => {
    await using guest = await AgentProcess.start();
    const agent = await guest.connect();
    await guest.wake(agent);
    const transcript = new Transcript();
    const script = "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    transcript.of(agent.run(sh(script), transcript));
    await transcript.until((each) => each.text("stdout").includes("ready"));
    const ended = once(guest.process, "exit");
    await agent.halt(deadlineMs);
    assert.equal((await transcript.exit()).exitCode, 7);
    assert.equal(transcript.text("stdout"), "ready\nbye\n");
    await within("the agent ends", ended, { deadlineMs });
  });

  it("sends SIGHUP to an interactive shell, which ignores SIGTERM", async () => {
    await using guest = await AgentProcess.start();
    const agent = await guest.connect();
    await guest.wake(agent);
    const transcript = new Transcript();
    transcript.of(agent.pty({ cmd: "/bin/bash", args: ["--norc", "-i"] }, { cols: 80, rows: 24 }, transcript));
    const ended = once(guest.process, "exit");
    await agent.halt(10 * deadlineMs);
    await within("the agent ends", ended, { deadlineMs });
  });

  it("does not wait longer than it is told", async () => {
    await using guest = await AgentProcess.start();
    const agent = await guest.connect();
    await guest.wake(agent);
    const transcript = new Transcript();
    transcript.of(agent.run(sh("trap '' TERM; echo ready; while :; do sleep 0.05; done"), transcript));
    await transcript.until((each) => each.text("stdout").includes("ready"));
    const ended = once(guest.process, "exit");
    await agent.halt(100);
    await within("the agent ends", ended, { deadlineMs });
  });
});

it("an agent of an earlier release is powered off by its own image's program", async () => {
  const started = new RecordWriter().u32(7).str("proc-0011aabb").finish();
  await using guest = await FakeGuest.listen({
    awake: true,
    verbs: null,
    onFrame: ({ type, stream }, guest) => type === FrameType.OPEN && guest.frame(FrameType.RESULT, stream, started),
  });
  const agent = await connectAgent(guest.socketPath, { deadlineMs });
  await agent.halt(9_500);
  const { payload } = await guest.heard(({ type }) => type === FrameType.OPEN);
  assert.equal(payload.readUInt16LE(), Verb.EXEC);
  assert.equal(
    payload.toString("hex"),
    execRequest(sh("sync; poweroff"), "background").finish().subarray(12).toString("hex"),
  );
  agent.close();
});
