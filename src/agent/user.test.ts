/** Commands of other users than root, run by the real agent. */
import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { AgentProcess } from "../../test/agent-process.ts";
import { FakeGuest } from "../../test/fakes/fake-guest.ts";
import { Transcript } from "../../test/fakes/transcript.ts";
import { waitFor, within } from "../../test/wait-for.ts";
import type { Agent, Command } from "./agent.ts";
import { connectAgent } from "./connection.ts";
import { AgentFailure } from "./failure.ts";
import { FrameType } from "./frames.ts";
import { unlistedVerbs, Verb } from "./protocol.ts";

let guest: AgentProcess;
let agent: Agent;

before(async () => {
  guest = await AgentProcess.start();
  agent = await guest.connect();
  await guest.wake(agent);
});
after(() => guest[Symbol.asyncDispose]());

const size = { cols: 80, rows: 24 };
const script = "echo $(id -u):$(id -g):$(id -G):$HOME:$USER:$PWD";

function shell(rest: Partial<Command> = {}): Command {
  return { cmd: "/bin/sh", args: ["-c", script], ...rest };
}

function run(command: Command, from = agent): Transcript {
  const transcript = new Transcript();
  transcript.of(from.run(command, transcript));
  return transcript;
}

async function textOf(transcript: Transcript): Promise<string> {
  await within("the command ends", transcript.exit());
  return (transcript.text("stdout") + transcript.text("pty")).trim();
}

function failsWith(failure: string) {
  return (error: unknown) => error instanceof AgentFailure && error.failure === failure;
}

const root = process.getuid?.() === 0 ? false : "only root becomes another user";
const nameless = "4321:0:0:/:4321:/";

describe("a user", { skip: root }, () => {
  it("is the same in the foreground, with standard input and in a terminal", async () => {
    const user = "4321";
    assert.equal(await textOf(run(shell({ user }))), nameless);
    const transcript = new Transcript();
    const withInput = transcript.of(agent.run(shell({ user, stdin: true }), transcript));
    withInput.endInput();
    assert.equal(await textOf(transcript), nameless);
    const terminal = new Transcript();
    terminal.of(agent.pty(shell({ user }), size, terminal));
    assert.equal(await textOf(terminal), nameless);
  });

  it("is the same in the background", async () => {
    const { pid } = await agent.start({ cmd: "sleep", args: ["300"], user: "4321", tag: "as-4321" });
    const status = await textOf(run({ cmd: "grep", args: ["-E", "^(Uid|Gid|Groups):", `/proc/${pid}/status`] }));
    assert.deepEqual(
      status.split("\n").map((line) => line.trim().split(/\s+/)),
      [
        ["Uid:", "4321", "4321", "4321", "4321"],
        ["Gid:", "0", "0", "0", "0"],
        ["Groups:", "0"],
      ],
    );
    const again = agent.start({ cmd: "true", args: [], user: "daemon", tag: "as-4321" });
    await assert.rejects(again, failsWith("conflict"));
    await agent.signal({ tag: "as-4321" }, "SIGKILL");
  });

  it("is root by name and by number", async () => {
    const text = await textOf(run(shell()));
    assert.match(text, /^0:0:[0-9 ]+:\/root:root:\/root$/);
    for (const user of ["root", "0"])
      assert.match(await textOf(run(shell({ user }))), /^0:0:0[0-9 ]*:\/root:root:\/root$/);
  });

  it("has its account's group and home directory", async () => {
    const passwd = await textOf(run({ cmd: "grep", args: ["^daemon:", "/etc/passwd"] }));
    const [name, , uid, gid, , home] = passwd.split(":");
    for (const user of ["daemon", uid])
      assert.match(
        await textOf(run(shell({ user, cwd: "/tmp" }))),
        new RegExp(`^${uid}:${gid}:.*:${home}:${name}:/tmp$`),
      );
  });

  it("that is unknown starts nothing", async () => {
    for (const user of ["no-such-user", "2147483648", "18446744073709551617", "-1", "0x1", "root:x", "root\n"]) {
      await assert.rejects(run(shell({ user })).exit(), failsWith("invalid"), user);
      await assert.rejects(agent.start(shell({ user })), failsWith("invalid"), user);
      const terminal = new Transcript();
      terminal.of(agent.pty(shell({ user }), size, terminal));
      await assert.rejects(terminal.exit(), failsWith("invalid"), user);
    }
  });
});

it("a user or survival makes the request an EXEC_AS, and nothing else does", async () => {
  await using fake = await FakeGuest.listen();
  const host = await connectAgent(fake.socketPath, { deadlineMs: 60_000 });
  const commands: Partial<Command>[] = [
    {},
    { stdin: true },
    { user: "a" },
    { user: "a", stdin: true },
    { survive: true },
  ];
  for (const command of commands) run(shell(command), host);
  host.start(shell({ user: "a" })).catch(() => {});
  await waitFor("six frames", () => fake.frames.length === 6);
  const verbs = fake.frames.map(({ type, payload }) => (type === FrameType.OPEN ? payload.readUInt16LE() : -type));
  const { EXEC, EXEC_STDIN, EXEC_AS } = Verb;
  assert.deepEqual(verbs, [EXEC, EXEC_STDIN, EXEC_AS, EXEC_AS, EXEC_AS, EXEC_AS]);
  host.close();
});

it("an agent of an earlier release refuses a user with what to do, and nothing is sent", async () => {
  for (const verbs of [null, [...unlistedVerbs, Verb.EXEC_STDIN, Verb.INPUT]]) {
    await using fake = await FakeGuest.listen({ verbs });
    const host = await connectAgent(fake.socketPath, { deadlineMs: 60_000 });
    const conflict = { code: "conflict", message: /earlier release, which has no verb EXEC_AS.*stop and start it/ };
    await assert.rejects(run(shell({ user: "a" }), host).exit(), conflict);
    await assert.rejects(host.start(shell({ user: "a" })), conflict);
    assert.equal(fake.frames.length, 0);
    host.close();
  }
});
