/** Section "Events", exec stream: every message, the close, and the end of the process when the socket closes. */
import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { after, before, describe } from "node:test";
import type { TestCapsule } from "../../client.ts";
import { waitFor } from "../../wait-for.ts";
import { conforms, section, test } from "../conforms.ts";
import { Random } from "../random.ts";
import { client } from "../service.ts";
import { TestSocket } from "../socket.ts";

export const execStream = section(import.meta, "exec stream", () => {
  let capsule: TestCapsule;
  /** A socket that never sends a message. */
  let silent: { socket: TestSocket; askedMs: number; closedMs: Promise<number> };
  before(async () => {
    capsule = await client.capsule();
    const askedMs = performance.now(); // before the service's time begins, however late this process hears of it
    const socket = await open();
    silent = { socket, askedMs, closedMs: socket.closed.then(() => performance.now()) };
  });
  after(() => capsule?.[Symbol.asyncDispose]());

  function open(query = ""): Promise<TestSocket> {
    return TestSocket.open(capsule, `exec/stream${query}`);
  }

  async function stream(cmd: string, args: string[], query = "", more: Record<string, unknown> = {}) {
    await using socket = await open(query);
    socket.say({ type: "start", cmd, args, ...more });
    const { pid } = await socket.next("start");
    assert.ok(Number.isInteger(pid) && pid > 1);
    return { pid, ...(await socket.output()) };
  }

  async function isAlive(commandLine: string): Promise<boolean> {
    return (await capsule.run("pgrep", ["-xf", commandLine])).exit_code === 0;
  }

  describe("exec stream", () => {
    conforms(
      "GET /v1/capsules/{id}/exec/stream 101",
      "`start`, `stdout`, `stderr`, `exit`; the server then closes the connection",
      async () => {
        const { pid: _, ...output } = await stream("bash", ["-c", "echo out; echo err >&2; exit 7"]);
        assert.deepEqual(output, { stdout: "out\n", stderr: "err\n", exitCode: 7, closeCode: 1000 });
      },
    );

    test("a chunk arrives when it is printed, not at the end", async () => {
      await using socket = await open();
      socket.say({
        type: "start",
        cmd: "bash",
        args: ["-c", "echo first; until [ -e /tmp/go ]; do sleep 0.02; done; echo second"],
      });
      await socket.next("start");
      assert.equal((await socket.next("stdout")).data, "first\n");
      await capsule.run("touch", ["/tmp/go"]);
      assert.equal((await socket.output()).stdout, "second\n");
    });

    test("`args` may be left out; `envs` and `cwd` are honoured", async () => {
      await using socket = await open();
      socket.say({ type: "start", cmd: "pwd" });
      await socket.next("start");
      assert.equal((await socket.output()).stdout, "/root\n");
      const { stdout } = await stream("bash", ["-c", "echo $WORD $PWD"], "", { envs: { WORD: "x" }, cwd: "/usr" });
      assert.equal(stdout, "x /usr\n");
    });

    test("`stop` terminates the running process early: the whole tree, then `exit`", async () => {
      await using socket = await open();
      socket.say({ type: "start", cmd: "bash", args: ["-c", "trap '' TERM; setsid sleep 6001 & sleep 6001"] });
      await socket.next("start");
      await waitFor("it runs", () => isAlive("sleep 6001"));
      socket.say({ type: "stop" });
      assert.deepEqual(await socket.output(), { stdout: "", stderr: "", exitCode: 137, closeCode: 1000 });
      assert.equal(await isAlive("sleep 6001"), false);
    });

    test("`error`: for example the command was not found; then the server closes", async () => {
      await using socket = await open();
      socket.say({ type: "start", cmd: "no-such-command", args: [] });
      const { data } = await socket.next("error");
      assert.match(data, /no-such-command/);
      assert.deepEqual(await socket.rest(), []);
    });

    test("client gone: the tree is killed", async () => {
      for (const leave of ["close", "terminate"] as const) {
        const socket = await open();
        socket.say({ type: "start", cmd: "bash", args: ["-c", "setsid sleep 6002 & sleep 6002"] });
        await socket.next("start");
        await waitFor("it runs", () => isAlive("sleep 6002"));
        socket.socket[leave]();
        await waitFor("it is gone", async () => !(await isAlive("sleep 6002")));
      }
    });

    test("it counts as activity at its start and its end", async () => {
      const before = (await capsule.view()).last_active_at;
      const sent = Date.now();
      await stream("sleep", ["0.3"]);
      const after = (await capsule.view()).last_active_at;
      assert.ok(after > before && Date.parse(after) >= sent + 250);
    });
  });

  describe("output", () => {
    test("random sizes, byte for byte, whole characters only", async (t) => {
      const random = new Random(t);
      const text = await capsule.sh(
        "head -c 900000 /dev/urandom | base64 -w0 | sed 's/[A-F]/€/g; s/[a-f]/𝄞/g' | tee /tmp/text",
      );
      const characters = [...text];
      for (let run = 0; run < 12; run++) {
        const length = random.size(600_000);
        const script = "import sys\nsys.stdout.write(open('/tmp/text').read()[:int(sys.argv[1])])";
        const { stdout, exitCode } = await stream("python3", ["-c", script, String(length)]);
        assert.equal(exitCode, 0);
        assert.ok(stdout === characters.slice(0, length).join(""), `run ${run}: ${length} characters`);
      }
    });

    test("a hundred outputs of random sizes, several at a time, byte for byte", async (t) => {
      const random = new Random(t);
      const letters = await capsule.sh("head -c 90000 /dev/urandom | base64 -w0 | tee /tmp/letters");
      for (let round = 0; round < 20; round++) {
        const sizes = Array.from({ length: 5 }, () => random.size(letters.length));
        const outputs = await Promise.all(sizes.map((size) => stream("head", ["-c", String(size), "/tmp/letters"])));
        outputs.forEach(({ stdout, exitCode }, i) => {
          assert.ok(exitCode === 0 && stdout === letters.slice(0, sizes[i]), `${stdout.length} of ${sizes[i]}`);
        });
      }
    });

    test("invalid UTF-8 arrives as U+FFFD, or unchanged with ?encoding=base64", async () => {
      const script = "printf 'a\\377b\\342\\202'";
      assert.equal((await stream("bash", ["-c", script])).stdout, "a\ufffdb\ufffd");
      const { stdout } = await stream("bash", ["-c", script], "?encoding=base64");
      assert.deepEqual([...Buffer.from(stdout, "base64")], [0x61, 0xff, 0x62, 0xe2, 0x82]);
    });

    test("twenty streams at once, with 1 MB each", async () => {
      const expected = Array.from({ length: 20 }, (_, i) => `${i}\n`.repeat(Math.floor(1e6 / `${i}\n`.length)));
      const outputs = await Promise.all(
        expected.map((text, i) => stream("bash", ["-c", `yes ${i} | head -c ${text.length}`])),
      );
      for (const [i, { stdout, exitCode }] of outputs.entries()) {
        assert.equal(exitCode, 0);
        assert.ok(stdout === expected[i], `stream ${i}: ${stdout.length} bytes`);
      }
    });

    test("a reader that stops reading blocks the process; nothing is lost when it continues", async () => {
      await using socket = await open();
      const lines = 1_000; // of 64 KiB, more than all buffers together
      const script = `
for i in range(1, ${lines + 1}):
    print(f"{i:065535d}", flush=True)
    open("/tmp/count", "w").write(str(i))`;
      socket.say({ type: "start", cmd: "python3", args: ["-c", script] });
      await socket.next("start");
      socket.socket.pause();
      let last = "";
      await waitFor(
        "the process is blocked",
        async () => {
          const now = await capsule.sh("sleep 0.3; cat /tmp/count 2>/dev/null || true");
          const waits = now === last && Number(now) > 0;
          last = now;
          return waits;
        },
        { deadlineMs: 120_000 },
      );
      assert.ok(Number(last) < lines, "it was not let run to its end");
      socket.socket.resume();
      const { stdout, exitCode } = await socket.output();
      assert.equal(exitCode, 0);
      const numbers = stdout.trimEnd().split("\n").map(Number);
      assert.deepEqual([numbers.length, numbers.findIndex((number, i) => number !== i + 1)], [lines, -1]);
    });
  });

  describe("standard input", () => {
    async function reading(cmd: string, args: string[] = [], query = ""): Promise<TestSocket> {
      const socket = await open(query);
      socket.say({ type: "start", cmd, args, stdin: true });
      return socket;
    }

    test("`stdin`, as text or base64, and `stdin_end`, also before `start` is answered", async () => {
      await using socket = await reading("cat", [], "?encoding=base64");
      socket.say({ type: "stdin", data: "grüße\n" });
      socket.say({ type: "stdin", data: "/wA=", encoding: "base64" });
      socket.say({ type: "stdin_end" });
      await socket.next("start");
      const messages = await socket.rest();
      const bytes = messages.filter(({ type }) => type === "stdout").map(({ data }) => Buffer.from(data, "base64"));
      assert.deepEqual(Buffer.concat(bytes), Buffer.concat([Buffer.from("grüße\n"), Buffer.from([0xff, 0])]));
      assert.deepEqual(messages.at(-1), { type: "exit", exit_code: 0 });
    });

    test("an answer comes while standard input is open", async () => {
      await using socket = await reading("python3", ["-c", "while True: print(int(input()) * 7, flush=True)"]);
      await socket.next("start");
      for (const number of [6, 60]) {
        socket.say({ type: "stdin", data: `${number}\n` });
        assert.equal((await socket.next("stdout")).data, `${number * 7}\n`);
      }
    });

    test("a message that cannot be used is answered, and the command runs on", async () => {
      await using socket = await reading("cat");
      await socket.next("start");
      const bad = [
        { type: "stdin" },
        { type: "stdin", data: 1 },
        { type: "stdin", data: "YQ", encoding: "base64" },
        { type: "stdin", data: "x", encoding: "hex" },
      ];
      for (const message of bad) socket.say(message);
      for (const _ of bad) await socket.next("error");
      socket.say({ type: "stdin", data: "good" });
      socket.say({ type: "stdin_end" });
      const messages = await socket.rest();
      assert.deepEqual(messages, [
        { type: "stdout", data: "good" },
        { type: "exit", exit_code: 0 },
      ]);
    });

    test("`stdin` after `stdin_end`, or of a command without it, is an error", async () => {
      await using ended = await reading("sh", ["-c", "cat; sleep 900"]);
      await using without = await open();
      without.say({ type: "start", cmd: "sleep", args: ["900"] });
      for (const socket of [ended, without]) {
        await socket.next("start");
        if (socket === ended) socket.say({ type: "stdin_end" });
        socket.say({ type: "stdin", data: "x" });
        await socket.next("error");
        socket.say({ type: "stop" });
        assert.equal((await socket.output()).exitCode, 137);
      }
    });

    test("some MiB in random pieces, byte for byte, while the program reads when it likes", async (t) => {
      const random = new Random(t);
      const script = "import sys, time, hashlib\nh = hashlib.sha256()\n";
      const loop = "while b := sys.stdin.buffer.read1(300000):\n  h.update(b); time.sleep(len(b) % 7 / 1000)\n";
      await using socket = await reading("python3", ["-c", `${script}${loop}print(h.hexdigest())`]);
      const bytes = randomBytes(4 * 1024 * 1024);
      for (let at = 0; at < bytes.length; ) {
        const part = bytes.subarray(at, at + 1 + random.size(300_000));
        socket.say({ type: "stdin", data: part.toString("base64"), encoding: "base64" });
        at += part.length;
      }
      socket.say({ type: "stdin_end" });
      await socket.next("start");
      assert.equal((await socket.output()).stdout, `${createHash("sha256").update(bytes).digest("hex")}\n`);
    });

    test("what is sent to a program that closed its input is thrown away", async () => {
      await using socket = await reading("sh", [
        "-c",
        "exec <&-; echo closed; until [ -e /tmp/go7 ]; do sleep 0.05; done",
      ]);
      await socket.next("start");
      await socket.next("stdout");
      const data = "x".repeat(1_000_000);
      for (let i = 0; i < 6; i++) socket.say({ type: "stdin", data });
      socket.say({ type: "stdin_end" });
      socket.say({ type: "stdin", data: "late" });
      await socket.next("error"); // all of it was read
      await capsule.run("touch", ["/tmp/go7"]);
      assert.equal((await socket.output()).exitCode, 0);
    });

    test("a program that does not read stops its client; it misses nothing later", async () => {
      await using socket = await reading("sh", ["-c", "until [ -e /tmp/go8 ]; do sleep 0.05; done; sha256sum"]);
      await socket.next("start");
      const part = randomBytes(1_000_000);
      const hash = createHash("sha256");
      const data = part.toString("base64");
      for (let i = 0; i < 24; i++) {
        socket.say({ type: "stdin", data, encoding: "base64" });
        hash.update(part);
      }
      socket.say({ type: "stdin_end" });
      await capsule.run("true"); // the service is not held up
      assert.ok(socket.socket.bufferedAmount > 0, "it is not read");
      await capsule.run("touch", ["/tmp/go8"]);
      assert.equal((await socket.output()).stdout, `${hash.digest("hex")}  -\n`);
      assert.equal(socket.socket.bufferedAmount, 0);
    });
  });

  describe("bad messages", () => {
    const first: [string, string | Buffer][] = [
      ["no JSON", "hello"],
      ["an empty message", ""],
      ["null", "null"],
      ["a list", "[]"],
      ["no type", "{}"],
      ["an unknown type", '{"type":"run","cmd":"true"}'],
      ["no cmd", '{"type":"start"}'],
      ["a cmd that is no text", '{"type":"start","cmd":1}'],
      ["an empty cmd", '{"type":"start","cmd":""}'],
      ["a NUL in cmd", '{"type":"start","cmd":"a\\u0000"}'],
      ["args that are no list", '{"type":"start","cmd":"true","args":"x"}'],
      ["a cwd that is too long", JSON.stringify({ type: "start", cmd: "true", cwd: `/${"a".repeat(4_096)}` })],
      ["stop before start", '{"type":"stop"}'],
      ["a binary frame", Buffer.from('{"type":"start","cmd":"true"}')],
    ];
    for (const [what, message] of first) {
      test(`${what} as the first: an error message and a close frame`, async () => {
        await using socket = await open();
        socket.socket.send(message);
        assert.ok((await socket.next("error")).data.length > 5);
        assert.deepEqual(await socket.rest(), []);
        const { code } = await socket.closed;
        assert.ok(code !== 1005 && code !== 1006, String(code));
      });
    }

    test("a message of 10 MiB is refused with a close frame, and the service keeps running", async () => {
      await using socket = await open();
      socket.socket.send(JSON.stringify({ type: "start", cmd: "true", args: ["x".repeat(10 * 1024 * 1024)] }));
      assert.equal((await socket.closed).code, 1009);
      assert.equal(await capsule.sh("echo fine"), "fine");
    });

    test("none within 30 s: an error message and a close frame", async () => {
      const { socket, askedMs, closedMs } = silent;
      const lastedMs = (await closedMs) - askedMs;
      assert.ok(lastedMs > 29_000, `closed after ${lastedMs} ms`);
      assert.match((await socket.next("error")).data, /no command was given in time/);
      assert.equal((await socket.closed).code, 4408);
    });

    test("an invalid message after the start does not end the command", async () => {
      await using socket = await open();
      socket.say({
        type: "start",
        cmd: "bash",
        args: ["-c", "until [ -e /tmp/go3 ]; do sleep 0.02; done; echo whole"],
      });
      await socket.next("start");
      socket.say("nonsense");
      await socket.next("error");
      await capsule.run("touch", ["/tmp/go3"]);
      const { stdout, exitCode } = await socket.output();
      assert.deepEqual([stdout, exitCode], ["whole\n", 0]);
    });

    test("an ordinary GET, without an upgrade, is 400", async () => {
      for (const path of ["exec/stream", "pty", "processes/1/stream"]) {
        const { json } = await client.expect(400, "GET", `${capsule.path}/${path}`);
        assert.equal(json.error.code, "invalid_request");
      }
    });
  });
});
