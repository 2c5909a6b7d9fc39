/** Output of background processes that a capsule keeps: logs, attach from an offset, offsets. */
import assert from "node:assert/strict";
import { after, before, describe } from "node:test";
import type { Reply, TestCapsule } from "../../client.ts";
import { waitFor } from "../../wait-for.ts";
import { section, test } from "../conforms.ts";
import { Random } from "../random.ts";
import { client } from "../service.ts";
import { type Message, TestSocket } from "../socket.ts";

const keptMax = 1_048_576;

export const keptOutput = section(import.meta, "kept output", () => {
  let capsule: TestCapsule;
  before(async () => {
    capsule = await client.capsule();
  });
  after(() => capsule?.[Symbol.asyncDispose]());

  interface Started {
    pid: number;
    tag: string;
  }

  async function start(script: string): Promise<Started> {
    const reply = await capsule.exec({ cmd: "bash", args: ["-c", script], background: true });
    assert.equal(reply.status, 202, reply.text);
    return reply.json;
  }

  /** A process that has printed and ended. */
  async function ended(script: string): Promise<Started> {
    const started = await start(script);
    await waitFor("it has ended", async () => {
      const { json } = await client.expect(200, "GET", `${capsule.path}/processes/${started.pid}/exit`);
      return json.exit_code !== null;
    });
    return started;
  }

  function logs(selector: string | number, query = ""): Promise<Reply> {
    return client.call("GET", `${capsule.path}/processes/${selector}/logs${query}`);
  }

  function signal(selector: string): Promise<Reply> {
    return client.call("DELETE", `${capsule.path}/processes/${selector}`);
  }

  function attach(selector: string | number, query: string): Promise<TestSocket> {
    return TestSocket.open(capsule, `processes/${selector}/stream?${query}`);
  }

  /** The output of `offsets=1`, whose offsets must follow each other. */
  class Bytes {
    next: number;
    readonly stdout: Buffer[] = [];
    readonly stderr: Buffer[] = [];

    constructor(from: number) {
      this.next = from;
    }

    add({ type, data, offset }: Message, max = Number.POSITIVE_INFINITY): void {
      assert.equal(offset, this.next);
      const bytes = Buffer.from(data, "base64").subarray(0, max);
      this[type as "stdout" | "stderr"].push(bytes);
      this.next += bytes.length;
    }

    get text(): [stdout: string, stderr: string] {
      return [Buffer.concat(this.stdout).toString("latin1"), Buffer.concat(this.stderr).toString("latin1")];
    }
  }

  describe("logs", () => {
    test("200: the kept bytes of both streams in order, or of one, or its last lines", async () => {
      const { tag, pid } = await ended("printf 'one\\ntwo\\n'; sleep 0.3; printf 'oops\\nlast\\xff' >&2");
      for (const [selector, query, text] of [
        [tag, "", "one\ntwo\noops\nlast\xff"],
        [pid, "?stream=both", "one\ntwo\noops\nlast\xff"],
        [tag, "?stream=stdout", "one\ntwo\n"],
        [tag, "?stream=stderr&tail=1", "last\xff"],
        [tag, "?tail=3", "two\noops\nlast\xff"],
        [tag, "?tail=0", ""],
        [tag, "?tail=1000000", "one\ntwo\noops\nlast\xff"],
      ] as const) {
        const { status, bytes, headers } = await logs(selector, query);
        assert.deepEqual([status, bytes.toString("latin1")], [200, text], query);
        assert.equal(headers["content-type"], "application/octet-stream");
        assert.equal(headers["x-dropped-bytes"], "0");
      }
    });

    test("the last 1 MiB is kept, and `X-Dropped-Bytes` counts the rest", async () => {
      const { tag } = await ended("seq 200000; seq 5 >&2");
      const all = `${Array.from({ length: 200_000 }, (_, i) => i + 1).join("\n")}\n1\n2\n3\n4\n5\n`;
      const { bytes, headers } = await logs(tag);
      assert.ok(bytes.equals(Buffer.from(all).subarray(-keptMax)), `${bytes.length} bytes`);
      assert.equal(headers["x-dropped-bytes"], `${all.length - keptMax}`);
      assert.equal((await logs(tag, "?stream=stderr")).headers["x-dropped-bytes"], `${all.length - keptMax}`);
      await using socket = await attach(tag, "from=start");
      await socket.next("start");
      assert.deepEqual(await socket.next("dropped"), { type: "dropped", bytes: all.length - keptMax });
      assert.equal((await socket.output()).exitCode, 0);
    });

    test("what is no background process, or no longer kept: 404; nonsense: 400", async () => {
      for (const selector of ["1", "999999", "proc-00000000", "%00"])
        assert.deepEqual([(await logs(selector)).status], [404], selector);
      const { tag } = await ended("true");
      for (const query of ["stream=all", "tail=-1", "tail=x", "tail=1.5", "lines=1"])
        assert.deepEqual([(await logs(tag, `?${query}`)).status], [400], query);
      const first = await ended("echo first");
      const others = Array.from({ length: 8 }, () => capsule.sh("true"));
      await Promise.all(others);
      for (let i = 0; i < 64; i += 8) await Promise.all(Array.from({ length: 8 }, () => ended("echo other")));
      assert.equal((await logs(first.tag)).status, 404);
    });
  });

  describe("attach", () => {
    test("`from=start`: what is kept, then live, no gap, no double", async () => {
      const { tag } = await start(
        "echo one; echo two >&2; until [ -e /tmp/go-live ]; do sleep 0.05; done; echo three; exit 4",
      );
      await waitFor("it has printed", async () => (await logs(tag)).bytes.length === 8);
      await using socket = await attach(tag, "from=start");
      await using other = await attach(tag, "from=4&encoding=base64");
      await socket.next("start");
      await other.next("start");
      await capsule.run("touch", ["/tmp/go-live"]);
      assert.deepEqual(await socket.output(), {
        stdout: "one\nthree\n",
        stderr: "two\n",
        exitCode: 4,
        closeCode: 1000,
      });
      const { stdout, stderr } = await other.output();
      assert.deepEqual([stdout, stderr], [Buffer.from("three\n").toString("base64"), "dHdvCg=="]);
      await using late = await attach(tag, "from=4&offsets=1");
      await late.next("start");
      assert.deepEqual(await late.rest(), [
        { type: "stderr", data: "dHdvCg==", offset: 4 },
        { type: "stdout", data: Buffer.from("three\n").toString("base64"), offset: 8 },
        { type: "exit", exit_code: 4 },
      ]);
      for (const [query, status] of [
        ["from=15", 400],
        ["from=-1", 400],
        ["from=end", 400],
        ["since=1", 400],
        ["from=now", 404],
        ["", 404],
      ] as const)
        assert.equal((await client.upgrade(`${capsule.path}/processes/${tag}/stream?${query}`)).status, status, query);
    });

    test("`exec/stream?offsets=1` counts the bytes of both streams", async () => {
      await using socket = await TestSocket.open(capsule, "exec/stream?offsets=1");
      socket.say({
        type: "start",
        cmd: "bash",
        args: ["-c", "printf a; sleep 0.2; printf bc >&2; sleep 0.2; printf d"],
      });
      await socket.next("start");
      const bytes = new Bytes(0);
      const messages = await socket.rest();
      for (const message of messages.slice(0, -1)) bytes.add(message);
      assert.deepEqual([bytes.text, bytes.next, messages.at(-1)], [["ad", "bc"], 4, { type: "exit", exit_code: 0 }]);
    });

    test("a client that leaves at random bytes and comes back by offset has all, over pauses in between", async (t) => {
      const random = new Random(t);
      const script = "for ((i = 0; i < 400; i++)); do echo line $i; echo error $i >&2; sleep 0.01; done; exit 6";
      const { tag } = await start(script);
      const bytes = new Bytes(0);
      let hasExited = false;
      let pauses = 2;
      while (!hasExited) {
        const leaveAt = bytes.next + 1 + random.size(1_500); // two pauses are before the end of 7 380 bytes
        await using socket = await attach(tag, `from=${bytes.next}&offsets=1`);
        await socket.next("start");
        while (bytes.next < leaveAt && !hasExited) {
          const message = await socket.any();
          if (message.type === "exit") hasExited = true;
          else bytes.add(message, leaveAt - bytes.next);
        }
        if (bytes.next > 2_000 && pauses > 0 && !hasExited) {
          pauses--;
          await capsule.pause();
          await capsule.resume();
        }
      }
      const lines = (word: string) => Array.from({ length: 400 }, (_, i) => `${word} ${i}\n`).join("");
      assert.equal(pauses, 0);
      assert.deepEqual(bytes.text, [lines("line"), lines("error")]);
      assert.equal(bytes.next, lines("line").length + lines("error").length);
    });

    test("`survive`: when the client goes, the process lives on as a background process", async () => {
      const script = "echo one; until [ -e /tmp/go-survive ]; do sleep 0.05; done; echo two; exit 8";
      let tag: string;
      {
        await using socket = await TestSocket.open(capsule, "exec/stream");
        socket.say({ type: "start", cmd: "sh", args: ["-c", script], survive: true });
        ({ tag } = await socket.next("start"));
        assert.match(tag, /^proc-[0-9a-f]{8}$/);
        assert.equal((await socket.next("stdout")).data, "one\n");
      }
      await capsule.pause();
      await capsule.resume();
      const { processes } = (await client.expect(200, "GET", `${capsule.path}/processes`)).json;
      assert.ok(processes.some((each: Started) => each.tag === tag));
      await capsule.run("touch", ["/tmp/go-survive"]);
      await using again = await attach(tag, "from=start");
      await again.next("start");
      assert.deepEqual(await again.output(), { stdout: "one\ntwo\n", stderr: "", exitCode: 8, closeCode: 1000 });
    });

    test("`connect` of a terminal with `from: start` shows its last output, also what was received, over a pause", async () => {
      let tag: string;
      {
        await using first = await TestSocket.open(capsule, "pty");
        first.say({ type: "start", cmd: "sh", args: ["-c", "echo on the screen; exec cat"] });
        ({ tag } = await first.next("started"));
        await first.prints(/on the screen/);
      }
      await capsule.pause();
      await capsule.resume();
      for (let round = 0; round < 2; round++) {
        await using again = await TestSocket.open(capsule, "pty");
        again.say({ type: "connect", tag, from: "start" });
        await again.next("started");
        await again.prints(/^on the screen/);
        again.type(`live ${round}\r`);
        await again.prints(new RegExp(`live ${round}\\r\\nlive ${round}`));
      }
      await signal(tag);
    });

    test("a client whose next byte is dropped is closed with 1008", async () => {
      const { tag } = await start("until [ -e /tmp/go-flood ]; do sleep 0.05; done; exec cat /dev/zero");
      await using socket = await attach(tag, "from=start");
      await socket.next("start");
      socket.socket.pause();
      await capsule.run("touch", ["/tmp/go-flood"]);
      await waitFor(
        "much is dropped",
        async () => Number((await logs(tag, "?tail=0")).headers["x-dropped-bytes"]) > 64 * keptMax,
      );
      socket.socket.resume();
      assert.equal((await socket.closed).code, 1008);
      assert.equal((await signal(tag)).status, 204);
    });
  });
});
