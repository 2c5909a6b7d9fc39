/** Terminals of the real agent outlive their clients, which get every byte exactly once. */
import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { existsSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { after, before, describe, it } from "node:test";
import { AgentProcess } from "../../test/agent-process.ts";
import { Transcript } from "../../test/fakes/transcript.ts";
import { waitFor } from "../../test/wait-for.ts";
import type { Agent, Command, PtyStream } from "./agent.ts";
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

describe("a terminal", () => {
  const size = { cols: 80, rows: 24 };

  function open(command: Command): { transcript: Transcript; stream: PtyStream } {
    const transcript = new Transcript();
    return { transcript, stream: transcript.of(agent.pty(command, size, transcript)) };
  }

  function rejoin(tag: string): { transcript: Transcript; stream: PtyStream } {
    const transcript = new Transcript();
    return { transcript, stream: transcript.of(agent.connect(tag, transcript)) };
  }

  it("shows its last output to a client that asks, whoever has received it", async () => {
    const { transcript } = open({
      cmd: "/bin/sh",
      args: ["-c", "echo first; head -c 300000 /dev/zero | tr '\\0' x; echo last; cat"],
    });
    const { tag } = await transcript.process.promise;
    await transcript.until((it) => it.text("pty").endsWith("last\r\n"));
    for (let round = 0; round < 2; round++) {
      const again = new Transcript();
      const stream = again.of(agent.connect(tag, again, true));
      await again.until((it) => it.bytes("pty").length >= 262_144);
      assert.ok(again.bytes("pty").equals(transcript.bytes("pty").subarray(-262_144)));
      stream.write(Buffer.from("typed\n"));
      await again.until((it) => it.text("pty").endsWith("typed\r\ntyped\r\n"));
      stream.cancel();
      await transcript.until((it) => it.text("pty").endsWith("typed\r\ntyped\r\n".repeat(round + 1)));
    }
    const missing = new Transcript();
    missing.of(agent.connect("pty-none", missing, true));
    await assert.rejects(missing.exit(), (error: AgentFailure) => error.failure === "not_found");
    await agent.signal({ tag }, "SIGKILL");
  });

  it("echoes, has its size, is resized, and ends with its exit code", async () => {
    const { transcript, stream } = open({ cmd: "/bin/sh", args: [], envs: { PS1: "" } });
    assert.match((await transcript.process.promise).tag, /^pty-[0-9a-f]{8}$/);
    stream.write(Buffer.from("stty size; echo $TERM\n"));
    await transcript.until((it) => /24 80\r\nxterm-256color\r\n/.test(it.text("pty")));
    assert.match(transcript.text("pty"), /stty size/);
    stream.resize(100, 40);
    stream.write(Buffer.from("stty size\n"));
    await transcript.until((it) => it.text("pty").includes("40 100\r\n"));
    stream.write(Buffer.from("exit 7\n"));
    assert.equal((await transcript.exit()).exitCode, 7);
  });

  it("takes a paste of 1 MiB completely", async () => {
    const paste = Buffer.from(randomBytes(512 * 1024).toString("hex"));
    const { transcript, stream } = open(shell(`stty raw -echo; echo ready; head -c ${paste.length} | sha256sum`));
    await transcript.until((it) => it.text("pty").includes("ready"));
    stream.write(paste);
    await transcript.exit();
    assert.ok(transcript.text("pty").includes(createHash("sha256").update(paste).digest("hex")));
  });

  it("has its program draw for a client that rejoins at the same size, and keeps that size", async () => {
    // Node reports a resize only when it finds another size than before.
    const program = `const { stdout } = process;
      stdout.on("resize", () => stdout.write("page of " + stdout.rows + " " + stdout.columns + "\\n"));
      stdout.write("begun\\n"); process.stdin.resume();`;
    const first = open({ cmd: process.execPath, args: ["-e", program] });
    const { tag } = await first.transcript.process.promise;
    await first.transcript.until((it) => it.text("pty").includes("begun"));
    first.stream.cancel();
    for (const isResized of [true, false]) {
      // A program that does not run for three seconds finds its own size again, and does not draw.
      await waitFor("it draws for a rejoin", async () => {
        const { transcript, stream } = rejoin(tag);
        if (isResized) stream.resize(80, 24);
        const hasDrawn = () => transcript.text("pty").includes("page of 24 80");
        await waitFor("it draws", hasDrawn, { deadlineMs: 5_000 }).catch(() => {});
        stream.cancel();
        return hasDrawn();
      });
    }
    const last = rejoin(tag);
    last.stream.stop();
    await last.transcript.exit();
  });

  it("has its own size before anything typed after a rejoin is read", async () => {
    const first = open({ cmd: "/bin/sh", args: ["-c", "while read -r line; do echo $line: $(stty size); done"] });
    const { tag } = await first.transcript.process.promise;
    first.stream.cancel();
    const { transcript, stream } = rejoin(tag);
    stream.write(Buffer.from("now\n"));
    await transcript.until((it) => /now: \d+ \d+/.test(it.text("pty")));
    assert.match(transcript.text("pty"), /now: 24 80\r/);
    stream.resize(100, 30);
    stream.write(Buffer.from("then\n"));
    await transcript.until((it) => /then: \d+ \d+/.test(it.text("pty")));
    assert.match(transcript.text("pty"), /then: 30 100\r/);
    stream.stop();
    await transcript.exit();
  });

  it("gives a client that reconnects the same output as one that stays", async () => {
    const twin = open(
      shell("stty -opost -echo; read go; i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done"),
    );
    const { tag } = await twin.transcript.process.promise;
    const parts: Transcript[] = [];
    let visitor = rejoin(tag);
    await visitor.transcript.process.promise;
    twin.stream.write(Buffer.from("go\n"));
    for (let visits = 0; visits < 20; visits++) {
      await Promise.race([
        visitor.transcript.until((it) => it.chunks.pty.length > 0).catch(() => {}),
        visitor.transcript.ended.promise,
      ]);
      visitor.stream.cancel();
      parts.push(visitor.transcript);
      visitor = rejoin(tag);
    }
    parts.push(visitor.transcript);
    assert.equal((await twin.transcript.exit()).exitCode, 0);
    const expected = Array.from({ length: 3_000 }, (_, i) => `line ${i}\n`).join("");
    assert.equal(twin.transcript.text("pty").replace(/^.*?(?=line 0\n)/s, ""), expected);
  });

  it("replays output missed while detached and continues live, without gap or duplicate", async () => {
    const [gone, halfway, go] = ["gone", "halfway", "go-on"].map((name) => guest.file(name)) as [
      string,
      string,
      string,
    ];
    const until = (file: string) => `until [ -e ${file} ]; do sleep 0.01; done`;
    const steps = [`101) ${until(gone)};;`, `500) : > ${halfway};;`, `1000) ${until(go)};;`].join(" ");
    const script = `stty -opost -echo; i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i+1)); case $i in ${steps} esac; done; read end`;
    const first = open(shell(script));
    const { tag } = await first.transcript.process.promise;
    await first.transcript.until((it) => it.text("pty").includes("\n100\n"));
    first.stream.cancel();
    await agent.probe(); // answered after the frames sent before it were handled
    await writeFile(gone, "");
    await waitFor("400 lines are missed", async () => existsSync(halfway));
    const seen = [first.transcript];
    const second = rejoin(tag);
    seen.push(second.transcript);
    await second.transcript.process.promise;
    await second.transcript.until(() =>
      seen
        .map((one) => one.text("pty"))
        .join("")
        .includes("\n999\n"),
    );
    await writeFile(go, "");
    await second.transcript.until((it) => it.text("pty").includes("\n1999\n"));
    const whole = seen.map((one) => one.text("pty")).join("");
    assert.equal(whole, Array.from({ length: 2_000 }, (_, i) => `${i}\n`).join(""));
    second.stream.stop();
    assert.equal((await second.transcript.exit()).exitCode, 137);
  });

  it("gives its whole output to a client that reconnects repeatedly", async () => {
    const lines = Array.from({ length: 20_000 }, (_, i) => `${i}\n`).join("");
    const first = open(shell("stty -opost -echo; seq 0 19999 | while read -r i; do echo $i; done; echo the end"));
    const { tag } = await first.transcript.process.promise;
    let output = "";
    for (let visit = first; !output.endsWith("the end\n"); visit = rejoin(tag)) {
      await visit.transcript.until((it) => it.chunks.pty.length > 0);
      visit.stream.cancel();
      output += visit.transcript.text("pty");
    }
    assert.equal(output, `${lines}the end\n`);
  });

  it("keeps its exit for a late client, and is unknown under a wrong tag", async () => {
    const gone = guest.file("client-gone");
    const { transcript, stream } = open(shell(`until [ -e ${gone} ]; do sleep 0.01; done; echo last words; exit 5`));
    const { tag, pid } = await transcript.process.promise;
    stream.cancel();
    await agent.probe(); // answered after the frames sent before it were handled
    await writeFile(gone, "");
    await waitFor("its process has ended", async () => !isAlive(pid));
    const late = rejoin(tag);
    assert.equal((await late.transcript.exit()).exitCode, 5);
    assert.match(late.transcript.text("pty"), /last words/);
    await assert.rejects(rejoin("pty-00000000").transcript.exit(), failsWith("not_found"));
  });
});
