/** Section "Events", PTY session: every message and default, reconnecting, and terminals that survive a pause. */
import assert from "node:assert/strict";
import { after, before, describe } from "node:test";
import type { TestCapsule } from "../../client.ts";
import { waitFor } from "../../wait-for.ts";
import { conforms, section, test } from "../conforms.ts";
import { Random } from "../random.ts";
import { client } from "../service.ts";
import { type Message, TestSocket } from "../socket.ts";

export const pty = section(import.meta, "PTY sessions", () => {
  let capsule: TestCapsule;
  /** Two silent sockets for the last tests: one without a first message, one with an idle session. */
  let silent: TestSocket;
  let idle: { session: Session; askedMs: number; pingedMs: Promise<number> };
  before(async () => {
    capsule = await client.capsule();
    silent = await TestSocket.open(capsule, "pty");
    const askedMs = performance.now(); // before the service's time begins, however late this process hears of it
    const session = await begin({ type: "start", cmd: "cat" });
    idle = { session, askedMs, pingedMs: session.socket.pinged.then(() => performance.now()) };
  });
  after(() => capsule?.[Symbol.asyncDispose]());

  interface Session extends AsyncDisposable {
    socket: TestSocket;
    tag: string;
    pid: number;
  }

  async function begin(first: Message, inside = capsule): Promise<Session> {
    const socket = await TestSocket.open(inside, "pty");
    socket.say(first);
    const { tag, pid } = await socket.next("started");
    return { socket, tag, pid, [Symbol.asyncDispose]: () => socket[Symbol.asyncDispose]() };
  }

  /** A terminal without echo, so that its output is only that of the commands. */
  function quiet(script: string, more: Message = {}): Promise<Session> {
    return begin({ type: "start", cmd: "bash", args: ["-c", `stty -echo -onlcr; ${script}`], ...more });
  }

  test("a guest that has no memory to give is not lost: requests are answered, and work again later", async () => {
    await using strained = await client.capsule();
    const commits =
      "cd /proc/sys/vm; echo 0 >admin_reserve_kbytes; echo 4 >overcommit_kbytes; echo 2 >overcommit_memory";
    await using session = await begin(
      {
        type: "start",
        cmd: "sh",
        args: ["-c", `${commits}; echo strained; read line; echo 0 >overcommit_memory; read line`],
      },
      strained,
    );
    await session.socket.prints(/strained/);
    const args = Array.from({ length: 30_000 }, (_, i) => `argument ${i}`);
    for (let round = 0; round < 3; round++) {
      const replies = await Promise.all([
        strained.exec({ cmd: "true", args }),
        client.call("GET", `${strained.path}/processes`),
        client.call("POST", `${strained.path}/files/list`, { json: { path: "/usr", depth: 4 } }),
        client.call("POST", `${strained.path}/files/read`, { json: { path: "/bin/bash" } }),
      ]);
      for (const { status, text } of replies)
        assert.ok([200, 400, 429].includes(status), `${status} ${text.slice(0, 500)}`);
    }
    session.socket.type("\r");
    await waitFor("commands to run", async () => (await strained.exec({ cmd: "true" })).status === 200);
    assert.equal((await strained.view()).status, "running");
  });

  describe("start", () => {
    conforms("GET /v1/capsules/{id}/pty 101", "`started` with tag and pid, `output` in base64, `exit`", async () => {
      await using session = await begin({ type: "start", cmd: "bash", args: ["-c", "echo hello; exit 4"] });
      assert.match(session.tag, /^pty-[0-9a-f]{8}$/);
      assert.ok(Number.isInteger(session.pid) && session.pid > 1);
      const messages = await session.socket.rest();
      const exit = messages.pop();
      assert.deepEqual(exit, { type: "exit", exit_code: 4 });
      const output = Buffer.concat(messages.map(({ data }) => Buffer.from(data, "base64"))).toString();
      assert.equal(output, "hello\r\n");
      assert.equal((await session.socket.closed).code, 1000);
    });

    test("defaults: /bin/bash without args, 80 columns, 24 rows, TERM, home, root", async () => {
      await using session = await begin({ type: "start" });
      session.socket.type("stty size; echo $TERM $PWD $HOME $(id -un) $0; tty; exit 9\r");
      await session.socket.prints(/24 80\r\n/);
      await session.socket.prints(/xterm-256color \/root \/root root \/bin\/bash\r\n/);
      await session.socket.prints(/\/dev\/pts\/\d+\r\n/);
      assert.deepEqual((await session.socket.rest()).at(-1), { type: "exit", exit_code: 9 });
    });

    test("`cols`, `rows`, `envs`, `cwd` and `user` are honoured", async () => {
      const script = "stty size; echo $WORD $PWD $HOME $(id -un) $(id -Gn)";
      const first = {
        type: "start",
        cmd: "bash",
        args: ["-c", script],
        cols: 132,
        rows: 50,
        cwd: "/usr",
        envs: { WORD: "ünd" },
      };
      await using root = await begin(first);
      assert.match(
        Buffer.from(await root.socket.prints(/root\r\n/), "latin1").toString(),
        /^50 132\r\nünd \/usr \/root root root\r\n$/,
      );
      await using daemon = await begin({ ...first, user: "daemon" });
      await daemon.socket.prints(/\/usr \/usr\/sbin daemon daemon\r\n/);
    });

    test("it is a terminal of its own session, with job control", async () => {
      await using session = await begin({ type: "start" });
      session.socket.type("[ -t 0 ] && [ -t 1 ] && echo is-a-'terminal'; ps -o pid=,sid= -p $$\r");
      await session.socket.prints(/is-a-terminal\r\n/);
      await session.socket.prints(new RegExp(`\\s*${session.pid}\\s+${session.pid}\\r\\n`));
      session.socket.type("sleep 7001\r");
      await waitFor("it sleeps", async () => (await capsule.run("pgrep", ["-xf", "sleep 7001"])).exit_code === 0);
      session.socket.type("\x03");
      session.socket.type("echo code-$?\r");
      await session.socket.prints(/code-130\r\n/);
      session.socket.type("sleep 7002 &\r");
      session.socket.type("jobs\r");
      await session.socket.prints(/Running\s+sleep 7002/);
      session.socket.say({ type: "kill" });
      assert.equal((await session.socket.rest()).at(-1).type, "exit");
    });
  });

  describe("input and resize", () => {
    test("`resize`: terminal size changed, and the program gets SIGWINCH", async () => {
      await using session = await quiet("trap 'stty size' WINCH; echo ready; while true; do sleep 0.05; done");
      await session.socket.prints(/ready\n/);
      session.socket.say({ type: "resize", cols: 100, rows: 30 });
      await session.socket.prints(/30 100\n/);
    });

    test("a paste of 1 MiB arrives complete, in one message or in thousands", async () => {
      const bytes = 1024 * 1024;
      for (const pieces of [1, 2_000]) {
        await using session = await quiet(`stty raw; echo ready; head -c ${bytes} | sha256sum; sleep 0.1`);
        await session.socket.prints(/ready/);
        const text = Buffer.alloc(bytes, `${pieces}abcdefghijklmnopqrstuvwxyz\r`);
        const size = Math.ceil(bytes / pieces);
        for (let at = 0; at < bytes; at += size) session.socket.type(text.subarray(at, at + size));
        const hash = Buffer.from(await crypto.subtle.digest("SHA-256", text)).toString("hex");
        assert.ok((await session.socket.prints(/[0-9a-f]{64}/)).endsWith(hash), `in ${pieces}`);
      }
    });

    test("every byte value passes through a raw terminal", async () => {
      await using session = await quiet(
        "stty raw; printf ready; head -c 256 | od -An -v -tx1 | tr -d ' \\n'; printf end",
      );
      await session.socket.prints(/ready/);
      session.socket.type(Buffer.from(Array.from({ length: 256 }, (_, i) => i)));
      const hex = await session.socket.prints(/end/);
      assert.equal(hex, `${Array.from({ length: 256 }, (_, i) => i.toString(16).padStart(2, "0")).join("")}end`);
    });

    test("`kill` terminates the terminal process", async () => {
      await using session = await begin({
        type: "start",
        cmd: "bash",
        args: ["-c", "trap '' HUP TERM; setsid sleep 7003 & sleep 7003"],
      });
      await waitFor("it runs", async () => (await capsule.run("pgrep", ["-cxf", "sleep 7003"])).stdout === "2\n");
      session.socket.say({ type: "kill" });
      assert.deepEqual((await session.socket.rest()).at(-1), { type: "exit", exit_code: 137 });
      assert.equal((await capsule.run("pgrep", ["-cxf", "sleep 7003"])).stdout, "0\n");
    });
  });

  describe("connect", () => {
    test("Sessions persist across WebSocket disconnections: missed output is replayed, then live, nothing twice", async (t) => {
      const random = new Random(t);
      const script =
        "for i in $(seq 3000); do echo line-$i; [ $((i % 100)) = 0 ] && sleep 0.05; done; echo the-end; read -r";
      const { tag, socket: first } = await quiet(script);
      let socket = first;
      let transcript = "";
      for (;;) {
        transcript += await socket.prints(new RegExp(`(?:.*\\n){1,${1 + random.below(400)}}`));
        transcript += await unread(socket);
        socket = (await begin({ type: "connect", tag })).socket;
        if (transcript.includes("the-end\n")) break;
      }
      const expected = `${Array.from({ length: 3_000 }, (_, i) => `line-${i + 1}\n`).join("")}the-end\n`;
      assert.equal(transcript.length, expected.length);
      assert.ok(transcript === expected);
      socket.say({ type: "kill" });
      await socket.closed;
    });

    test("`started` is answered again with the same tag and pid; several clients share a session", async () => {
      await using one = await begin({ type: "start", cmd: "cat" });
      await using other = await begin({ type: "connect", tag: one.tag });
      assert.deepEqual([other.tag, other.pid], [one.tag, one.pid]);
      one.socket.type("from one\r");
      for (const { socket } of [one, other]) await socket.prints(/from one\r\nfrom one\r\n/);
      other.socket.type("from other\r");
      for (const { socket } of [one, other]) await socket.prints(/from other\r\nfrom other\r\n/);
      one.socket.type("\x04");
      for (const { socket } of [one, other])
        assert.deepEqual((await socket.rest()).at(-1), { type: "exit", exit_code: 0 });
    });

    test("a session whose process ended while no client was connected still delivers its output and exit", async () => {
      const session = await quiet("echo before; until [ -e /tmp/end ]; do sleep 0.02; done; echo after; exit 6");
      await session.socket.prints(/before\n/);
      session.socket.socket.close();
      await session.socket.closed;
      await capsule.run("touch", ["/tmp/end"]);
      await waitFor(
        "it has ended",
        async () => (await capsule.run("kill", ["-0", String(session.pid)])).exit_code !== 0,
      );
      await using late = await begin({ type: "connect", tag: session.tag });
      await late.socket.prints(/^after\n/);
      assert.deepEqual(await late.socket.rest(), [{ type: "exit", exit_code: 6 }]);
    });

    test("an unknown tag: `error` with `fatal` true, and the connection closes", async () => {
      for (const tag of ["pty-00000000", "proc-00000000", "x"]) {
        await using socket = await TestSocket.open(capsule, "pty");
        socket.say({ type: "connect", tag });
        const { data, fatal } = await socket.next("error");
        assert.ok(fatal === true && data.length > 5);
        const { code } = await socket.closed;
        assert.ok(code !== 1005 && code !== 1006, String(code));
      }
    });

    test("a session survives pause and resume; the pause closes the socket with a fatal error and 4409", async () => {
      await using own = await client.capsule();
      const session = await begin({ type: "start" }, own);
      session.socket.type("kept=in-memory; echo re'ady'\r");
      await session.socket.prints(/ready\r\n/);
      await own.pause();
      const { code } = await session.socket.closed;
      assert.equal(code, 4409);
      const last = (await session.socket.rest()).at(-1);
      assert.deepEqual([last.type, last.fatal], ["error", true]);
      await own.resume();
      await using again = await begin({ type: "connect", tag: session.tag }, own);
      assert.equal(again.pid, session.pid);
      again.socket.type("echo it is $kept\r");
      await again.socket.prints(/it is in-memory\r\n/);
      await own.destroy();
      assert.equal((await again.socket.closed).code, 4404);
    });
  });

  describe("bad messages", () => {
    const first: [string, string | Buffer][] = [
      ["no JSON", "hello"],
      ["an unknown type", '{"type":"open"}'],
      ["input before start", '{"type":"input","data":"YQ=="}'],
      ["a command that is not there", '{"type":"start","cmd":"no-such-command"}'],
      ["a user who is not there", '{"type":"start","user":"nobody-of-this-name"}'],
      ["a cwd that is not there", '{"type":"start","cwd":"/nowhere"}'],
      ["a cwd that is too long", JSON.stringify({ type: "start", cwd: `/${"a".repeat(4_096)}` })],
      ["no columns", '{"type":"start","cols":0}'],
      ["too many rows", '{"type":"start","rows":65536}'],
      ["rows as text", '{"type":"start","rows":"24"}'],
      ["connect without a tag", '{"type":"connect"}'],
      ["a binary frame", Buffer.from('{"type":"start"}')],
    ];
    for (const [what, message] of first) {
      test(`${what} as the first: a fatal error and a close frame`, async () => {
        await using socket = await TestSocket.open(capsule, "pty");
        socket.socket.send(message);
        const { data, fatal } = await socket.next("error");
        assert.ok(fatal === true && data.length > 5);
        const { code } = await socket.closed;
        assert.ok(code !== 1005 && code !== 1006, String(code));
      });
    }

    test("an invalid message after the start does not end the session", async () => {
      await using session = await begin({ type: "start", cmd: "cat" });
      const slips = [
        "nonsense",
        '{"type":"input","data":"no base64!"}',
        '{"type":"input"}',
        '{"type":"resize","cols":-1,"rows":1}',
        '{"type":"start"}',
      ];
      for (const slip of slips) {
        session.socket.say(slip);
        assert.equal((await session.socket.next("error")).fatal, false, slip);
      }
      session.socket.type("alive\r");
      await session.socket.prints(/alive\r\nalive\r\n/);
      session.socket.say({ type: "kill" });
      await session.socket.closed;
    });
  });

  describe("silence", () => {
    test("`ping`: server keepalive, every 30 s, no reply required", async () => {
      const { session, askedMs, pingedMs } = idle;
      const afterMs = (await pingedMs) - askedMs;
      assert.ok(afterMs > 29_000, `pinged after ${afterMs} ms`);
      session.socket.type("alive\r");
      await session.socket.prints(/alive\r\nalive\r\n/);
      await session.socket[Symbol.asyncDispose]();
    });

    test("no first message within 30 s: a fatal error and a close frame", async () => {
      assert.equal((await silent.closed).code, 4408);
      const { data, fatal } = await silent.next("error");
      assert.deepEqual([data, fatal], ["no session was asked for in time", true]);
    });
  });

  /** Closes the session with a close frame, so that output sent before the server's close frame counts as delivered. */
  async function unread(socket: TestSocket): Promise<string> {
    socket.socket.close();
    const messages = await socket.rest();
    return Buffer.concat(
      messages.filter(({ type }) => type === "output").map(({ data }) => Buffer.from(data, "base64")),
    ).toString("latin1");
  }
});
