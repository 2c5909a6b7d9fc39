/** The list of processes, of the real agent and of agents of earlier releases. */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { AgentProcess } from "../../test/agent-process.ts";
import { processesOf } from "../../test/collected.ts";
import { FakeGuest } from "../../test/fakes/fake-guest.ts";
import { Transcript } from "../../test/fakes/transcript.ts";
import { waitFor, within } from "../../test/wait-for.ts";
import type { GuestProcess } from "./agent.ts";
import { connectAgent } from "./connection.ts";
import { unlistedVerbs, Verb } from "./protocol.ts";

const sleep = { cmd: "sleep", args: ["300"] };
const asRoot = process.getuid?.() === 0;

describe("a listing", () => {
  it("has each process's user, start and kind", async () => {
    await using guest = await AgentProcess.start();
    const agent = await guest.connect();
    await guest.wake(agent);
    const before = Date.now();
    const background = await agent.start({ ...sleep, tag: "behind", ...(asRoot ? { user: "4321" } : {}) });
    const foreground = new Transcript();
    foreground.of(agent.run(sleep, foreground));
    const terminal = new Transcript();
    const shell = { cmd: "sh", args: ["-c", "sleep 301; exit"] };
    terminal.of(agent.pty(shell, { cols: 80, rows: 24 }, terminal));
    const [{ pid: front }, { pid: pty }] = await within(
      "both run",
      Promise.all([foreground.process.promise, terminal.process.promise]),
    );
    const children = async () => {
      const listed = await processesOf(agent);
      return listed.some(({ cmd, args }) => cmd === "sleep" && args[0] === "301") && listed;
    };
    const listed = await waitFor("the terminal's child runs", children);
    const after = Date.now();
    const entry = (pid: number) => listed.find((each) => each.pid === pid) as Required<GuestProcess>;
    const self = asRoot ? "root" : entry(front).user;
    assert.deepEqual([entry(background.pid).kind, entry(background.pid).user], ["exec", asRoot ? "4321" : self]);
    assert.deepEqual([entry(front).kind, entry(front).user], ["exec", self]);
    assert.deepEqual([entry(pty).kind, entry(pty).user], ["pty", self]);
    const child = listed.find(({ cmd, args }) => cmd === "sleep" && args[0] === "301") as Required<GuestProcess>;
    assert.deepEqual([child.kind, child.tag], ["other", ""]);
    // The kernel counts the child's start in hundredths of a second; both clocks are read one after the other.
    for (const { startedAtMs } of [entry(background.pid), entry(front), entry(pty), child])
      assert.ok(
        startedAtMs >= before - 1_000 && startedAtMs <= after + 1_000,
        `${startedAtMs} of ${before} to ${after}`,
      );
    const again = await processesOf(agent);
    for (const pid of [background.pid, front, pty, child.pid])
      assert.ok(Math.abs(again.find((each) => each.pid === pid)!.startedAtMs! - entry(pid).startedAtMs) <= 5);
  });

  it("of an agent of an earlier release lacks these three", async () => {
    await using fake = await FakeGuest.listen({ verbs: [...unlistedVerbs, Verb.EXEC_STDIN, Verb.INPUT, Verb.EXEC_AS] });
    const host = await connectAgent(fake.socketPath, { deadlineMs: 60_000 });
    processesOf(host).catch(() => {});
    await waitFor("the request", () => fake.frames.length === 1);
    assert.equal(fake.frames[0]!.payload.readUInt16LE(), Verb.PROCESSES);
    host.close();
  });
});
