/** Section "Execution": commands in the background, the list of processes, signals, attach. */
import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { after, before, describe } from "node:test";
import type { Reply, TestCapsule } from "../../client.ts";
import { waitFor } from "../../wait-for.ts";
import { conforms, section, test } from "../conforms.ts";
import { Random } from "../random.ts";
import { client } from "../service.ts";
import { TestSocket } from "../socket.ts";

export const processes = section(import.meta, "processes", () => {
  let capsule: TestCapsule;
  before(async () => {
    capsule = await client.capsule();
  });
  after(() => capsule?.[Symbol.asyncDispose]());

  interface Started {
    pid: number;
    tag: string;
  }

  interface Process extends Started {
    cmd: string;
    args: string[];
  }

  async function start(cmd: string, args: string[] = [], more: Record<string, unknown> = {}): Promise<Started> {
    const reply = await capsule.exec({ cmd, args, background: true, ...more });
    assert.equal(reply.status, 202, reply.text);
    return reply.json;
  }

  async function processes(): Promise<Process[]> {
    return (await client.expect(200, "GET", `${capsule.path}/processes`)).json.processes;
  }

  function signal(selector: string | number, query = ""): Promise<Reply> {
    return client.call("DELETE", `${capsule.path}/processes/${selector}${query}`);
  }

  async function isAlive(commandLine: string): Promise<boolean> {
    return (await capsule.run("pgrep", ["-xf", commandLine])).exit_code === 0;
  }

  describe("background exec", () => {
    conforms(
      "POST /v1/capsules/{id}/exec 202",
      "Background exec result: pid and auto-generated tag, at once",
      async () => {
        const reply = await capsule.exec({ cmd: "sleep", args: ["4001"], background: true });
        assert.equal(reply.status, 202);
        assert.deepEqual(Object.keys(reply.json).toSorted(), ["pid", "tag"]);
        assert.match(reply.json.tag, /^proc-[0-9a-f]{8}$/);
        assert.equal((await capsule.run("pgrep", ["-xf", "sleep 4001"])).stdout, `${reply.json.pid}\n`);
        assert.equal((await signal(reply.json.tag)).status, 204);
      },
    );

    test("`envs` and `cwd` are honoured; `timeout` is foreground only", async () => {
      const script = 'sleep 2; echo "$WORD $PWD" > /tmp/said';
      await start("bash", ["-c", script], { envs: { WORD: "ünd" }, cwd: "/usr/lib", timeout: 1 });
      const said = await waitFor("it spoke", async () => {
        const { stdout } = await capsule.run("cat", ["/tmp/said"]);
        return stdout !== "" && stdout;
      });
      assert.equal(said, "ünd /usr/lib\n");
    });

    test("it counts as activity", async () => {
      const before = (await capsule.view()).last_active_at;
      await start("true");
      assert.ok((await capsule.view()).last_active_at > before);
    });

    test("a requested `tag` is taken while the process runs, and free afterwards", async () => {
      const { tag } = await start("sleep", ["4002"], { tag: "my.server" });
      assert.equal(tag, "my.server");
      const taken = await capsule.exec({ cmd: "true", background: true, tag });
      assert.deepEqual([taken.status, taken.json.error.code], [409, "conflict"]);
      await signal(tag);
      await waitFor("the tag is free", async () => {
        const { status } = await capsule.exec({ cmd: "true", background: true, tag });
        return status === 202;
      });
    });

    test("a missing command is 400", async () => {
      const { status, json } = await capsule.exec({ cmd: "no-such-command", background: true });
      assert.deepEqual([status, json.error.code], [400, "invalid_request"]);
    });

    test("a process without clients is not blocked by its output", async () => {
      const { tag } = await start("bash", [
        "-c",
        "head -c 30000000 /dev/zero; echo whole > /tmp/printed; exec sleep 4003",
      ]);
      const isWritten = async () => (await capsule.run("cat", ["/tmp/printed"])).stdout === "whole\n";
      await waitFor("all output is written", isWritten, { deadlineMs: 120_000 });
      assert.equal((await signal(tag)).status, 204);
    });
  });

  describe("processes", () => {
    conforms(
      "GET /v1/capsules/{id}/processes 200",
      "all processes in the capsule, including init/template processes",
      async () => {
        const { pid, tag } = await start("sleep", ["4004"]);
        const all = await processes();
        for (const each of all) {
          assert.deepEqual(Object.keys(each).toSorted(), ["args", "cmd", "kind", "pid", "started_at", "tag", "user"]);
          assert.ok(Number.isInteger(each.pid) && Array.isArray(each.args));
        }
        assert.equal(all.find((each) => each.pid === 1)?.tag, "", "empty string for processes started by init");
        const found = all.find((each) => each.pid === pid);
        const { started_at: _, ...rest } = found as Process & { started_at: number };
        assert.deepEqual(rest, { pid, tag, cmd: "sleep", args: ["4004"], user: "root", kind: "exec" });
        const pids = (await capsule.run("ps", ["-e", "-o", "pid="])).stdout.trim().split(/\s+/).map(Number);
        const again = (await processes()).map((each) => each.pid);
        const missing = all.filter((each) => !pids.includes(each.pid) && again.includes(each.pid));
        assert.deepEqual(missing, [], "others have ended meanwhile");
        assert.equal((await signal(pid)).status, 204);
      },
    );

    test("processes of a shell, after setsid, and of the foreground are listed too", async () => {
      const { tag } = await start("bash", ["-c", "setsid sleep 4005 & sleep 4006"]);
      const lines = await waitFor("they run", async () => {
        const found = (await processes()).map(({ cmd, args }) => [cmd, ...args].join(" "));
        return found.includes("sleep 4005") && found.includes("sleep 4006") && found;
      });
      assert.ok(lines.some((line) => line.startsWith("bash -c")));
      const all = await processes();
      const tagged = all.filter((each) => each.tag === tag).map(({ cmd }) => cmd);
      assert.deepEqual(tagged, ["bash"], "its children have no tag");
      assert.ok(!all.some(({ pid }) => pid === 2), "the kernel's threads are none");
      await signal(tag);
    });
  });

  describe("kill", () => {
    conforms(
      "DELETE /v1/capsules/{id}/processes/{selector} 204",
      "`selector` is a numeric PID or a string tag; SIGKILL by default",
      async () => {
        for (const by of ["pid", "tag"] as const) {
          const started = await start("bash", ["-c", "trap '' TERM; sleep 4010 & sleep 4010"]);
          await waitFor("it runs", () => isAlive("sleep 4010"));
          const reply = await signal(started[by]);
          assert.deepEqual([reply.status, reply.bytes.length], [204, 0], reply.text);
          assert.equal(await isAlive("sleep 4010"), false, "the whole group, gone before the answer");
          assert.ok(!(await processes()).some(({ pid }) => pid === started.pid));
        }
      },
    );

    test("`signal` SIGTERM is delivered to the whole group; a process that ignores it keeps running", async () => {
      const wait = "while true; do sleep 0.05; done";
      const polite = await start("bash", ["-c", `trap 'echo bye > /tmp/bye; exit' TERM; touch /tmp/polite; ${wait}`]);
      const stubborn = await start("bash", ["-c", `trap '' TERM; touch /tmp/stubborn; ${wait}`]);
      await capsule.sh("until [ -e /tmp/polite ] && [ -e /tmp/stubborn ]; do sleep 0.02; done");
      for (const { tag } of [polite, stubborn]) assert.equal((await signal(tag, "?signal=SIGTERM")).status, 204);
      await waitFor("it said bye", async () => (await capsule.run("cat", ["/tmp/bye"])).stdout === "bye\n");
      assert.ok((await processes()).some(({ tag }) => tag === stubborn.tag));
      assert.equal((await signal(stubborn.tag, "?signal=SIGKILL")).status, 204);
    });

    test("a fork tree that calls setsid is killed too", async () => {
      const { tag } = await start("bash", [
        "-c",
        "setsid bash -c 'setsid sleep 4011 & sleep 4011' & (sleep 4011 &) ; sleep 4011",
      ]);
      await waitFor("all four run", async () => (await capsule.run("pgrep", ["-cxf", "sleep 4011"])).stdout === "4\n");
      assert.equal((await signal(tag)).status, 204);
      assert.equal(await isAlive("sleep 4011"), false);
    });

    conforms(
      "DELETE /v1/capsules/{id}/processes/{selector} 404 process",
      "process for the selector does not exist",
      async () => {
        const ended = await start("true");
        await waitFor("it has ended", async () => !(await processes()).some(({ pid }) => pid === ended.pid));
        for (const selector of [
          ended.pid,
          ended.tag,
          "proc-00000000",
          "nope",
          1,
          0,
          "-1",
          "4194304",
          "9".repeat(30),
          "%00",
          "1.5",
          "a".repeat(5_000),
        ]) {
          const { status, json } = await signal(selector);
          assert.deepEqual([status, json?.error.code], [404, "not_found"], String(selector).slice(0, 40));
        }
        assert.equal(await capsule.sh("echo alive"), "alive");
      },
    );

    test("any other signal is 400", async () => {
      const { tag } = await start("sleep", ["4012"]);
      for (const name of ["SIGINT", "SIGSTOP", "9", "sigkill", "KILL", ""]) {
        const { status, json } = await signal(tag, `?signal=${name}`);
        assert.deepEqual([status, json.error.code], [400, "invalid_request"], name);
      }
      assert.ok(await isAlive("sleep 4012"));
      await signal(tag);
    });
  });

  describe("standard input", () => {
    async function attach(selector: string | number): Promise<TestSocket> {
      const socket = await TestSocket.open(capsule, `processes/${selector}/stream`);
      await socket.next("start");
      return socket;
    }

    test("`stdin: true`: clients that attach write, in turn, until one ends it", async () => {
      const { tag } = await start("cat", [], { stdin: true });
      await using reader = await attach(tag);
      for (const word of ["one ", "two "]) {
        await using writer = await attach(tag);
        writer.say({ type: "stdin", data: word });
        assert.equal((await reader.next("stdout")).data, word);
      }
      reader.say({ type: "stdin", data: "AP8=", encoding: "base64" });
      reader.say({ type: "stdin_end" });
      assert.deepEqual(await reader.output(), { stdout: "\0\ufffd", stderr: "", exitCode: 0, closeCode: 1000 });
    });

    test("a string, or a number: 400; false and none: /dev/null", async () => {
      for (const stdin of ["text", 1])
        assert.equal((await capsule.exec({ cmd: "cat", background: true, stdin })).status, 400);
      for (const more of [{}, { stdin: false }, { stdin: null }]) {
        const { pid } = await start("sleep", ["4050"], more);
        assert.equal((await capsule.run("readlink", [`/proc/${pid}/fd/0`])).stdout, "/dev/null\n");
        await signal(pid);
      }
    });

    test("a message where none is open, or that cannot be used, is an error, and the process lives on", async () => {
      const without = await start("sleep", ["4051"]);
      const ended = await start("sh", ["-c", "cat; exec sleep 4052"], { stdin: true });
      await using ender = await attach(ended.tag);
      ender.say({ type: "stdin_end" });
      await waitFor("its input has ended", () => isAlive("sleep 4052"));
      for (const { tag, pid } of [without, ended]) {
        await using socket = await attach(tag);
        const bad = [{ type: "stdin", data: "x" }, { type: "stdin" }, { type: "stop" }, "nonsense"];
        for (const message of bad) socket.say(message);
        for (const _ of bad) await socket.next("error");
        assert.equal((await signal(pid)).status, 204);
        assert.equal((await socket.output()).exitCode, 137);
      }
    });

    test("a pause with input half-way loses none of it, and leaves it open", async () => {
      const go = "/tmp/go-paused";
      const { tag } = await start("sh", ["-c", `until [ -e ${go} ]; do sleep 0.05; done; sha256sum`], { stdin: true });
      const bytes = randomBytes(300_000); // more than a pipe, less than a window and a pipe
      const early = await attach(tag);
      early.say({ type: "stdin", data: bytes.subarray(0, 250_000).toString("base64"), encoding: "base64" });
      early.say({ type: "nothing" });
      await early.next("error"); // the input before it was passed on
      await capsule.pause();
      assert.equal((await early.closed).code, 4409);
      await capsule.resume();
      await using late = await attach(tag);
      late.say({ type: "stdin", data: bytes.subarray(250_000).toString("base64"), encoding: "base64" });
      late.say({ type: "stdin_end" });
      await capsule.run("touch", [go]);
      const hash = createHash("sha256").update(bytes).digest("hex");
      assert.equal((await late.output()).stdout, `${hash}  -\n`);
    });
  });

  describe("attach", () => {
    conforms(
      "GET /v1/capsules/{id}/processes/{selector}/stream 101",
      "`start` on attaching, then output from the point of connection onward, `exit`",
      async () => {
        for (const by of ["pid", "tag"] as const) {
          const script = `echo early; touch /tmp/spoke-${by}; until [ -e /tmp/go-${by} ]; do sleep 0.02; done`;
          const started = await start("bash", ["-c", `${script}; echo late; echo err >&2; exit 5`]);
          await capsule.sh(`until [ -e /tmp/spoke-${by} ]; do sleep 0.02; done`);
          await using socket = await TestSocket.open(capsule, `processes/${started[by]}/stream`);
          assert.deepEqual(await socket.next("start"), { type: "start", pid: started.pid });
          await capsule.run("touch", [`/tmp/go-${by}`]);
          assert.deepEqual(await socket.output(), { stdout: "late\n", stderr: "err\n", exitCode: 5, closeCode: 1000 });
        }
      },
    );

    conforms(
      "GET /v1/capsules/{id}/processes/{selector}/stream 404 process",
      "process for the selector does not exist: an HTTP status",
      async () => {
        for (const selector of ["proc-00000000", "999999", "1", "%00"]) {
          const { status, json } = await client.upgrade(`${capsule.path}/processes/${selector}/stream`);
          assert.deepEqual([status, json?.error.code], [404, "not_found"], selector);
        }
      },
    );

    test("several clients see the same; neither their messages nor their disconnection affect the process", async () => {
      const { tag } = await start("bash", ["-c", "until [ -e /tmp/go-all ]; do sleep 0.02; done; seq 50000"]);
      const sockets = await Promise.all(
        Array.from({ length: 3 }, () => TestSocket.open(capsule, `processes/${tag}/stream`)),
      );
      for (const socket of sockets) await socket.next("start");
      const leaver = sockets.pop()!;
      leaver.say("nonsense");
      leaver.say({ type: "stop" });
      leaver.socket.terminate();
      sockets[0]!.say({ type: "stop" });
      await capsule.run("touch", ["/tmp/go-all"]);
      const expected = `${Array.from({ length: 50_000 }, (_, i) => i + 1).join("\n")}\n`;
      for (const { stdout, exitCode } of await Promise.all(sockets.map((socket) => socket.output()))) {
        assert.equal(exitCode, 0);
        assert.ok(stdout === expected, `${stdout.length} of ${expected.length} bytes`);
      }
    });

    test("a hundred outputs of random sizes, ten at a time, byte for byte", async (t) => {
      const random = new Random(t);
      const letters = await capsule.sh(`mkfifo /tmp/gate; sleep 4100 0<>/tmp/gate >/dev/null 2>&1 &
        head -c 90000 /dev/urandom | base64 -w0 | tee /tmp/letters`);
      for (let round = 0; round < 10; round++) {
        const sizes = Array.from({ length: 10 }, () => random.size(letters.length));
        const sockets = await Promise.all(
          sizes.map(async (size) => {
            const script = `read -r _ </tmp/gate; exec head -c ${size} /tmp/letters`;
            const { tag } = await start("bash", ["-c", script]);
            return TestSocket.open(capsule, `processes/${tag}/stream`);
          }),
        );
        for (const socket of sockets) await socket.next("start");
        await capsule.run("bash", ["-c", "printf 'go\\n%.0s' {1..10} >/tmp/gate"]);
        const outputs = await Promise.all(sockets.map((socket) => socket.output()));
        outputs.forEach(({ stdout, exitCode }, i) => {
          assert.ok(exitCode === 0 && stdout === letters.slice(0, sizes[i]), `${stdout.length} of ${sizes[i]}`);
        });
      }
    });

    test("a reader that falls more than 1 MiB behind is closed with an error; the process is not blocked", async () => {
      const { tag, pid } = await start("bash", ["-c", "until [ -e /tmp/go-slow ]; do sleep 0.02; done; exec yes"]);
      await using socket = await TestSocket.open(capsule, `processes/${tag}/stream`);
      await socket.next("start");
      socket.socket.pause();
      await capsule.run("touch", ["/tmp/go-slow"]);
      const written = () => capsule.sh(`sed -n 's/^wchar: //p' /proc/${pid}/io`);
      await waitFor("more than all buffers hold", async () => Number(await written()) > 64 * 1024 * 1024, {
        deadlineMs: 120_000,
      });
      socket.socket.resume();
      assert.equal((await socket.closed).code, 1008);
      assert.deepEqual((await socket.rest()).at(-1).type, "error");
      assert.ok(await isAlive("yes"));
      await signal(tag);
    });

    test("works on a process started before a pause; the pause closes the socket with 4409", async () => {
      await using own = await client.capsule();
      const reply = await own.exec({
        cmd: "bash",
        args: ["-c", "while true; do echo tick; sleep 0.1; done"],
        background: true,
      });
      await using socket = await TestSocket.open(own, `processes/${reply.json.tag}/stream`);
      await socket.next("start");
      await socket.next("stdout");
      await own.pause();
      assert.equal((await socket.closed).code, 4409);
      assert.equal((await socket.rest()).at(-1).type, "error");
      await own.resume();
      await using again = await TestSocket.open(own, `processes/${reply.json.pid}/stream`);
      assert.equal((await again.next("start")).pid, reply.json.pid);
      assert.match((await again.next("stdout")).data, /^(tick\n)+$/);
      await own.destroy();
      assert.equal((await again.closed).code, 4404);
    });
  });
});
