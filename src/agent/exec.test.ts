/** Foreground commands, run by the real agent. */
import assert from "node:assert/strict";
import { randomBytes, randomInt } from "node:crypto";
import { readdir, readFile, writeFile } from "node:fs/promises";
import { after, before, describe, it } from "node:test";
import { AgentProcess } from "../../test/agent-process.ts";
import { processesOf } from "../../test/collected.ts";
import { Transcript } from "../../test/fakes/transcript.ts";
import { waitFor } from "../../test/wait-for.ts";
import type { Agent, Command, Exit } from "./agent.ts";
import { AgentFailure } from "./failure.ts";
import { limits } from "./protocol.ts";

/** The guest returns credit in steps of this size. */
const smallChunkBytes = 4_096;

let guest: AgentProcess;
let agent: Agent;

before(async () => {
  guest = await AgentProcess.start();
  agent = await guest.connect();
  await guest.wake(agent);
});
after(() => guest[Symbol.asyncDispose]());

function run(cmd: string, args: string[] = [], more: Partial<Command> = {}, on = agent): Transcript {
  const transcript = new Transcript();
  transcript.of(on.run({ cmd, args, ...more }, transcript));
  return transcript;
}

function shell(script: string, more: Partial<Command> = {}, on = agent): Transcript {
  return run("/bin/sh", ["-c", script], more, on);
}

async function textOf(transcript: Transcript): Promise<string> {
  const { exitCode } = await transcript.exit();
  assert.equal(exitCode, 0, transcript.text("stderr"));
  return transcript.text("stdout");
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

async function gone(pid: number): Promise<void> {
  await waitFor(`process ${pid} is gone`, async () => !isAlive(pid));
}

function failsWith(failure: AgentFailure["failure"]): (error: unknown) => boolean {
  return (error) => error instanceof AgentFailure && error.failure === failure;
}

describe("a foreground command", () => {
  it("sends no start message unless it is requested", async () => {
    const heard: string[] = [];
    const { exitCode } = await new Promise<Exit>((resolve, reject) => {
      const stream = agent.run(
        { cmd: "/bin/sh", args: ["-c", "echo out; exit 3"] },
        {
          output(channel, chunk) {
            heard.push(`${channel} ${Buffer.from(chunk)}`);
            stream.consumed(chunk.length);
          },
          exited: resolve,
          failed: reject,
        },
      );
    });
    assert.deepEqual([heard, exitCode], [["stdout out\n"], 3]);
  });

  it("delivers output of any size unchanged", async () => {
    const content = randomBytes(1024 * 1024);
    await writeFile(guest.file("content"), content);
    const borders = [0, 1, 4_095, 4_096, 4_097, 65_535, 65_536, 65_537, 262_143, 262_144, 262_145, 1024 * 1024];
    const sizes = [...borders, ...Array.from({ length: 200 }, () => randomInt(1024 * 1024 + 1))];
    const next = sizes[Symbol.iterator]();
    const worker = async () => {
      for (const size of next) {
        const errors = size % 70_000;
        const script = `head -c ${size} content; head -c ${errors} content >&2`;
        const transcript = shell(script, { cwd: guest.dir });
        assert.deepEqual((await transcript.exit()).exitCode, 0, `size ${size}`);
        assert.ok(transcript.bytes("stdout").equals(content.subarray(0, size)), `stdout of ${size} bytes`);
        assert.ok(transcript.bytes("stderr").equals(content.subarray(0, errors)), `stderr of ${errors} bytes`);
      }
    };
    await Promise.all([worker(), worker(), worker()]);
  });

  it("ends with its exit code, or 128 and its signal", async () => {
    for (const code of [0, 1, 2, 127, 255]) assert.equal((await shell(`exit ${code}`).exit()).exitCode, code);
    for (const signal of [1, 9, 11, 15]) {
      assert.equal((await shell(`kill -${signal} $$`).exit()).exitCode, 128 + signal);
    }
  });

  it("reports its process id first, and its duration", async () => {
    const transcript = shell("echo $$; sleep 0.05");
    const { pid } = await transcript.process.promise;
    const exit = await transcript.exit();
    assert.equal(transcript.text("stdout"), `${pid}\n`);
    assert.ok(exit.guestDurationUs >= 50_000);
  });

  it("is not found by name or path", async () => {
    for (const cmd of ["no-such-command-here", "/no/such/command", guest.dir]) {
      await assert.rejects(run(cmd).exit(), (error) => error instanceof AgentFailure, cmd);
    }
    await assert.rejects(run("no-such-command-here").exit(), failsWith("command_not_found"));
    await assert.rejects(run("/no/such/command").exit(), failsWith("command_not_found"));
  });

  it("gets its arguments as they are", async () => {
    const args = ["", " ", "$HOME", "a'b\"c", "-n", "ü\n", "*"];
    assert.equal(await textOf(run("printf", ["%s|", ...args])), `${args.join("|")}|`);
  });

  it("has the default environment and directory of root, and nothing on its input", async () => {
    const environment = Object.fromEntries(
      (await textOf(run("env")))
        .trimEnd()
        .split("\n")
        .map((line) => line.split("=", 2)),
    );
    assert.equal(environment.HOME, "/root");
    assert.equal(environment.USER, "root");
    assert.equal(environment.LOGNAME, "root");
    assert.equal(environment.LANG, "C.UTF-8");
    assert.match(environment.PATH, /\/usr\/bin/);
    assert.equal(environment.TERM, undefined);
    assert.equal(await textOf(run("pwd")), "/root\n");
    assert.equal(await textOf(run("cat")), "");
  });

  it("honours environment, directory and user", async () => {
    assert.equal(await textOf(shell('echo "$A,$HOME"', { envs: { A: "b c", HOME: "/x" } })), "b c,/x\n");
    assert.equal(await textOf(run("pwd", [], { cwd: guest.dir })), `${guest.dir}\n`);
    assert.equal(await textOf(shell("id -un; echo $USER", { user: "nobody", cwd: "/" })), "nobody\nnobody\n");
    await assert.rejects(run("true", [], { cwd: "/no/such/folder" }).exit(), failsWith("invalid"));
    const nameless = shell("id -u; id -g; id -G; pwd; echo $HOME $USER", { user: "2147483647" });
    assert.equal(await textOf(nameless), "2147483647\n0\n0\n/\n/ 2147483647\n");
    for (const user of ["no-such-user", "2147483648", "-1"])
      await assert.rejects(run("true", [], { user }).exit(), failsWith("invalid"));
  });

  it("has a session and a process group of its own", async () => {
    const [pid, pgid, sid] = (await textOf(shell("echo $$ $(ps -o pgid=,sid= -p $$)"))).trim().split(/\s+/);
    assert.deepEqual([pgid, sid], [pid, pid]);
  });

  it("is refused with more arguments than the kernel takes", async () => {
    const args = Array.from({ length: 10 }, () => "x".repeat(140_000));
    await assert.rejects(run("true", args).exit(), failsWith("too_large"));
  });

  it("runs beside many others", async () => {
    const runs = Array.from({ length: 60 }, (_, i) => textOf(shell(`sleep 0.0$((${i} % 10)); echo ${i}`)));
    assert.deepEqual(
      await Promise.all(runs),
      Array.from({ length: 60 }, (_, i) => `${i}\n`),
    );
  });

  it("ends with its leader, even if a grandchild holds the pipe", async () => {
    const transcript = shell("sleep 3000 & echo $!");
    await transcript.exit();
    const grandchild = Number(transcript.text("stdout"));
    if (isAlive(grandchild)) process.kill(grandchild, "SIGKILL");
  });

  it("blocks while its output is not consumed", async () => {
    const transcript = new Transcript({ keepsCredit: true });
    const stream = agent.run({ cmd: "yes", args: [] }, transcript);
    const takesNoMoreThan = async (creditBytes: number) => {
      await transcript.until((it) => it.bytes("stdout").length > creditBytes - smallChunkBytes);
      await agent.probe();
      assert.ok(transcript.bytes("stdout").length <= creditBytes);
    };
    await takesNoMoreThan(limits.windowBytes);
    stream.consumed(100_000);
    await takesNoMoreThan(limits.windowBytes + 100_000);
    stream.cancel();
    const { pid } = await transcript.process.promise;
    await gone(pid);
    assert.equal(transcript.ends, 0);
  });
});

describe("the end of a foreground tree", () => {
  const tree = "trap '' TERM; sleep 300 & a=$!; setsid sleep 300 & b=$!; echo $a $b; wait";

  async function pidsOf(transcript: Transcript): Promise<number[]> {
    await transcript.until((it) => it.text("stdout").includes("\n"));
    const { pid } = await transcript.process.promise;
    return [pid, ...transcript.text("stdout").trim().split(" ").map(Number)];
  }

  it("is STOP: the tree is killed, then the exit comes", async () => {
    const transcript = new Transcript();
    const stream = transcript.of(agent.run({ cmd: "/bin/sh", args: ["-c", tree] }, transcript));
    const pids = await pidsOf(transcript);
    stream.stop();
    assert.equal((await transcript.exit()).exitCode, 137);
    for (const pid of pids) await gone(pid);
  });

  it("is CANCEL: the tree is killed without another message", async () => {
    const transcript = new Transcript();
    const stream = transcript.of(agent.run({ cmd: "/bin/sh", args: ["-c", tree] }, transcript));
    const pids = await pidsOf(transcript);
    stream.cancel();
    for (const pid of pids) await gone(pid);
    await agent.probe();
    assert.equal(transcript.ends, 0);
  });

  it("is the next HELLO: foreground commands of the last connection are killed", async () => {
    const first = await guest.connect();
    const transcript = new Transcript();
    transcript.of(first.run({ cmd: "/bin/sh", args: ["-c", tree] }, transcript));
    const pids = await pidsOf(transcript);
    first.close(new Error("cut by the test"));
    await assert.rejects(transcript.exit(), /cut by the test/);
    agent = await guest.connect();
    for (const pid of pids) await gone(pid);
    assert.equal(await textOf(run("echo", ["still here"])), "still here\n");
  });

  it("leaks no descriptor of the agent, however a command ends", async () => {
    await using fresh = await AgentProcess.start(); // no command of another test still has pipes in it
    const on = await fresh.connect();
    await fresh.wake(on);
    const open = async () => (await readdir(`/proc/${fresh.process.pid}/fd`)).length;
    await textOf(run("true", [], {}, on));
    await processesOf(on); // an exit is sent before the command's pipes are closed, the next answer after
    const before = await open();
    const deaf = shell("exec >&- 2>&-; exec sleep 0.1", {}, on);
    const outlived = shell("sleep 0.3 & exit 0", {}, on);
    const stopped = new Transcript();
    const stream = stopped.of(on.run({ cmd: "sleep", args: ["300"] }, stopped));
    await stopped.process.promise;
    assert.ok((await open()) >= before + 4, "four ends for the one that sleeps");
    stream.stop();
    await Promise.all([deaf.exit(), outlived.exit(), stopped.exit()]);
    await assert.rejects(run("no-such-program", [], {}, on).exit(), failsWith("command_not_found"));
    for (let command = 0; command < 20; command++) await textOf(run("true", [], {}, on));
    await waitFor(`${before} are open again`, async () => (await open()) === before);
  });

  it("leaves no zombies", async () => {
    const { pid } = guest.process;
    await waitFor("every child that has ended is reaped", async () => {
      const children = (await readFile(`/proc/${pid}/task/${pid}/children`, "utf8")).trim().split(" ").filter(Boolean);
      const states = await Promise.all(children.map((each) => readFile(`/proc/${each}/stat`, "utf8").catch(() => "")));
      return !states.some((state) => / Z /.test(state));
    });
  });
});
