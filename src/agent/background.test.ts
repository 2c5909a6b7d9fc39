/** Background processes of the real agent outlive their clients and do not block others. */
import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { after, before, describe, it } from "node:test";
import { AgentProcess } from "../../test/agent-process.ts";
import { processesOf } from "../../test/collected.ts";
import { Transcript } from "../../test/fakes/transcript.ts";
import { waitFor } from "../../test/wait-for.ts";
import type { Agent, Command, Selector } from "./agent.ts";
import { AgentFailure } from "./failure.ts";

let guest: AgentProcess;
let agent: Agent;

before(async () => {
  guest = await AgentProcess.start();
  agent = await guest.connect();
  await guest.wake(agent);
});
after(() => guest[Symbol.asyncDispose]());

function shell(script: string): Command {
  return { cmd: "/bin/sh", args: ["-c", script] };
}

function attach(to: Agent, selector: Selector): Transcript {
  const transcript = new Transcript();
  transcript.of(to.attach(selector, transcript));
  return transcript;
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

function failsWith(failure: AgentFailure["failure"]): (error: unknown) => boolean {
  return (error) => error instanceof AgentFailure && error.failure === failure;
}

describe("a background process", () => {
  it("is listed with its tag and arguments, and gone after SIGKILL is answered", async () => {
    const { pid, tag } = await agent.start({ cmd: "sleep", args: ["300"] });
    assert.match(tag, /^proc-[0-9a-f]{8}$/);
    const listed = (await processesOf(agent)).find((one) => one.pid === pid);
    assert.deepEqual([listed?.tag, listed?.args], [tag, ["300"]]);
    assert.match(listed?.cmd ?? "", /sleep$/);
    await agent.signal({ tag }, "SIGKILL");
    assert.equal(isAlive(pid), false);
    await assert.rejects(agent.signal({ tag }, "SIGKILL"), failsWith("not_found"));
    await assert.rejects(agent.signal({ pid }, "SIGTERM"), failsWith("not_found"));
  });

  it("is killed with its tree, whatever it ignores", async () => {
    const file = guest.file("pids");
    const { pid } = await agent.start(
      shell(`trap '' TERM; sleep 300 & setsid sleep 300 & echo $$ $! > ${file}.new; mv ${file}.new ${file}; wait`),
    );
    const pids = (await waitFor("their pids", () => readFile(file, "utf8").catch(() => undefined)))
      .trim()
      .split(" ")
      .map(Number);
    await agent.signal({ pid }, "SIGTERM");
    assert.ok(isAlive(pid));
    await agent.signal({ pid }, "SIGKILL");
    for (const one of [pid, ...pids]) assert.equal(isAlive(one), false);
  });

  it("has its tag to itself while it runs", async () => {
    const sleeper = { cmd: "sleep", args: ["300"], tag: "mine" };
    assert.equal((await agent.start(sleeper)).tag, "mine");
    await assert.rejects(agent.start(sleeper), failsWith("conflict"));
    await agent.signal({ tag: "mine" }, "SIGTERM");
    const again = await waitFor("the tag is free", () =>
      agent.start(sleeper).catch((error) => {
        if (!failsWith("conflict")(error)) throw error;
        return undefined;
      }),
    );
    await agent.signal({ pid: again.pid }, "SIGKILL");
  });

  it("delivers its output since attaching, and its exit, to every attached client", async () => {
    const go = guest.file("go");
    const { tag, pid } = await agent.start(
      shell(`echo early; while ! [ -e ${go} ]; do sleep 0.01; done; echo late; echo oops >&2; exit 3`),
    );
    const twins = [attach(agent, { tag }), attach(agent, { pid })];
    for (const twin of twins) assert.equal((await twin.process.promise).pid, pid);
    await writeFile(go, "");
    for (const twin of twins) {
      assert.equal((await twin.exit()).exitCode, 3);
      assert.match(twin.text("stdout"), /late\n$/);
      assert.equal(twin.text("stderr"), "oops\n");
    }
    await assert.rejects(attach(agent, { tag: "no-such-tag" }).exit(), failsWith("not_found"));
  });

  it("can be awaited without its output, also after its end", async () => {
    const go = guest.file("awaited");
    const { tag, pid } = await agent.start(shell(`while ! [ -e ${go} ]; do sleep 0.01; done; echo much; exit 7`));
    const waiting = [agent.exit({ tag }), agent.exit({ pid })];
    const left = new AbortController();
    const leaving = agent.exit({ tag }, left.signal);
    left.abort(new Error("enough"));
    await assert.rejects(leaving, /enough/);
    await writeFile(go, "");
    for (const exit of await Promise.all(waiting)) assert.equal(exit.exitCode, 7);
    agent.close();
    agent = await guest.connect();
    for (const selector of [{ tag }, { pid }]) assert.equal((await agent.exit(selector)).exitCode, 7);
    await assert.rejects(attach(agent, { tag }).exit(), failsWith("not_found")); // output there is none any more
    await assert.rejects(agent.exit({ tag: "no-such-tag" }), failsWith("not_found"));
  });

  it("keeps its exit until a limited number of others have ended, and frees its tag", async () => {
    const first = await agent.start({ cmd: "sh", args: ["-c", "exit 9"], tag: "early" });
    assert.equal((await agent.exit({ pid: first.pid })).exitCode, 9);
    const next = await agent.start({ cmd: "sh", args: ["-c", "exit 8"], tag: "early" });
    assert.equal((await agent.exit({ tag: "early" })).exitCode, 8);
    const unheard: string[] = [];
    for (let i = 0; i < 70; i++) unheard.push((await agent.start({ cmd: "true", args: [] })).tag);
    // The last one that was started may be the first one that ends.
    await waitFor("all have ended", async () => !(await processesOf(agent)).some(({ tag }) => unheard.includes(tag)));
    assert.equal((await agent.exit({ tag: unheard.at(-1)! })).exitCode, 0);
    for (const pid of [first.pid, next.pid]) await assert.rejects(agent.exit({ pid }), failsWith("not_found"));
  });

  it("outlives the connection and a client that detaches", async () => {
    const first = await guest.connect();
    const { tag, pid } = await first.start(shell("while sleep 0.01; do echo tick; done"));
    const left = new Transcript();
    left.of(first.attach({ tag }, left));
    await left.until((it) => it.text("stdout").includes("tick"));
    first.close();
    agent = await guest.connect();
    const again = new Transcript();
    const stream = again.of(agent.attach({ tag }, again));
    await again.until((it) => it.text("stdout").includes("tick"));
    stream.cancel();
    assert.ok((await processesOf(agent)).some((one) => one.pid === pid && one.tag === tag));
    await agent.signal({ tag }, "SIGKILL");
  });

  it("is not blocked by a client that does not read; that client is dropped", async () => {
    const { tag } = await agent.start(shell("while sleep 0.002; do head -c 65536 /dev/zero; done"));
    const slow = new Transcript({ keepsCredit: true });
    slow.of(agent.attach({ tag }, slow));
    await assert.rejects(slow.exit(), failsWith("slow_reader"));
    const quick = attach(agent, { tag });
    await quick.until((it) => it.chunks.stdout.length > 10);
    await agent.signal({ tag }, "SIGKILL");
    assert.equal((await quick.exit()).exitCode, 137);
  });

  it("that cannot start is an error, and so is a signal to protected processes", async () => {
    await assert.rejects(agent.start({ cmd: "no-such-command-here", args: [] }), failsWith("command_not_found"));
    // Outside a VM, pid 1 is this machine's; conformance tests the guest's.
    for (const pid of [4_194_304, guest.process.pid!]) {
      await assert.rejects(agent.signal({ pid }, "SIGTERM"), failsWith("not_found"), `pid ${pid}`);
    }
  });
});
