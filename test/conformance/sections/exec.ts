/** Section "Execution": commands in the foreground. */
import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { after, before, describe } from "node:test";
import type { Reply, TestCapsule } from "../../client.ts";
import { waitFor } from "../../wait-for.ts";
import { conforms, section, test } from "../conforms.ts";
import { Random } from "../random.ts";
import { client } from "../service.ts";

const mib = 1024 * 1024;

export const exec = section(import.meta, "foreground exec", () => {
  let capsule: TestCapsule;
  /** Commands that take longer than the default timeout, without and with it. They run while the other tests do. */
  let unlimited: Promise<Reply>;
  let limited: Promise<Reply>;

  before(async () => {
    capsule = await client.capsule();
    unlimited = capsule.exec({ cmd: "bash", args: ["-c", "sleep 33; echo patience"], timeout: 0 });
    limited = capsule.exec({ cmd: "bash", args: ["-c", "echo so far; sleep 900"] });
    for (const each of [unlimited, limited]) each.catch(() => {}); // awaited by the last tests
  });
  after(() => capsule?.[Symbol.asyncDispose]());

  /** How many processes have exactly this command line. */
  async function count(commandLine: string): Promise<number> {
    return Number((await capsule.run("pgrep", ["-xfc", commandLine])).stdout);
  }

  async function gone(commandLine: string): Promise<void> {
    await waitFor(`no more ${commandLine}`, async () => (await count(commandLine)) === 0);
  }

  describe("standard input", () => {
    test("`stdin`: the text, then end of file; `stdin_base64`: bytes", async () => {
      assert.equal((await capsule.run("cat", [], { stdin: "grüße\n\0" })).stdout, "grüße\n\0");
      assert.equal((await capsule.run("wc", ["-c"], { stdin: "" })).stdout, "0\n");
      const bytes = Buffer.from([0, 255, 254, 10]);
      const { stdout, encoding } = await capsule.run("cat", [], { stdin_base64: bytes.toString("base64") });
      assert.deepEqual([Buffer.from(stdout, "base64"), encoding], [bytes, "base64"]);
    });

    test("both, a boolean, or bad base64: 400; none: /dev/null", async () => {
      const bad = [{ stdin: "", stdin_base64: "" }, { stdin: true }, { stdin_base64: "Y" }, { stdin_base64: "-_-_" }];
      for (const fields of bad) {
        const reply = await capsule.exec({ cmd: "cat", ...fields });
        assert.deepEqual([reply.status, reply.json.error.code], [400, "invalid_request"]);
      }
      assert.equal((await capsule.run("readlink", ["/proc/self/fd/0"])).stdout, "/dev/null\n");
    });

    test("random sizes, byte for byte", async (t) => {
      const random = new Random(t);
      for (let round = 0; round < 10; round++) {
        const bytes = randomBytes(random.size(700_000));
        const { stdout } = await capsule.run("sha256sum", [], { stdin_base64: bytes.toString("base64") });
        assert.equal(stdout, `${createHash("sha256").update(bytes).digest("hex")}  -\n`, `${bytes.length} bytes`);
      }
    });

    test("a program that does not read it ends as any other", async () => {
      const stdin = "x".repeat(900_000);
      assert.equal((await capsule.run("true", [], { stdin })).exit_code, 0);
      assert.equal((await capsule.run("head", ["-c3"], { stdin })).stdout, "xxx");
      assert.equal((await capsule.exec({ cmd: "sleep", args: ["900"], stdin, timeout: 1 })).status, 504);
    });
  });

  describe("result", () => {
    conforms("POST /v1/capsules/{id}/exec 200", "stdout, stderr, exit_code, duration_ms, encoding", async () => {
      const reply = await capsule.exec({ cmd: "bash", args: ["-c", "echo out; echo err >&2; exit 3"] });
      assert.equal(reply.status, 200);
      const { duration_ms, ...rest } = reply.json;
      assert.deepEqual(rest, { stdout: "out\n", stderr: "err\n", exit_code: 3, encoding: "utf-8" });
      assert.ok(Number.isInteger(duration_ms) && duration_ms >= 0);
    });

    test("A non-zero exit code is reported inside a 200 body: every code", async () => {
      for (const code of [0, 1, 2, 126, 127, 128, 200, 255]) {
        assert.equal((await capsule.run("bash", ["-c", `exit ${code}`])).exit_code, code);
      }
    });

    test("death by signal n is 128 + n", async () => {
      for (const signal of [1, 2, 3, 6, 9, 11, 15]) {
        const { exit_code } = await capsule.run("sh", ["-c", `ulimit -c 0; kill -${signal} $$; sleep 5`]);
        assert.equal(exit_code, 128 + signal);
      }
    });

    test("duration_ms: wall-clock run time", async () => {
      const began = performance.now();
      const { duration_ms } = await capsule.run("sleep", ["0.5"]);
      const elapsedMs = performance.now() - began;
      assert.ok(duration_ms >= 490 && duration_ms <= elapsedMs + 1, `${duration_ms} of ${elapsedMs}`);
    });

    test("command not found: 200 with exit code 127 and the reason in stderr", async () => {
      for (const cmd of ["no-such-command", "/no/such/command", "./nothing", "echo hi", "true;true"]) {
        const result = await capsule.run(cmd);
        assert.equal(result.exit_code, 127, cmd);
        assert.ok(result.stderr.includes(cmd), result.stderr);
        assert.equal(result.stdout, "");
      }
    });
  });

  describe("how a command is started", () => {
    test("`cmd` and `args` are passed unchanged, without a shell", async () => {
      const args = ["a b", "$HOME", "*", "~", "", "ü\n€𝄞", `'"\\`, "-n", "; exit 1", "%s", "\t", "&&", "|"];
      const { stdout } = await capsule.run("printf", ["%s\\0", ...args]);
      assert.deepEqual(stdout.split("\0"), [...args, ""]);
    });

    test("a command without args, found in PATH or by its path", async () => {
      assert.equal((await capsule.run("pwd")).stdout, "/root\n");
      assert.equal((await capsule.run("/bin/pwd")).stdout, "/root\n");
      assert.equal((await capsule.run("./pwd", [], { cwd: "/usr/bin" })).stdout, "/usr/bin\n");
    });

    test("thousands of arguments, and long ones", async () => {
      const args = Array.from({ length: 5_000 }, (_, i) => `argument-${i}`);
      const { stdout } = await capsule.run("printf", ["%s\\n", ...args]);
      assert.deepEqual(stdout.trimEnd().split("\n"), args);
      const long = "x".repeat(100_000);
      assert.equal((await capsule.run("printf", ["%s", long])).stdout, long);
    });

    test("default environment: PATH, HOME, USER, LOGNAME, LANG and nothing else", async () => {
      const { stdout } = await capsule.run("env", ["-0"]);
      const pairs = stdout.split("\0").filter((line) => line !== "");
      const found = Object.fromEntries(
        pairs.map((pair) => [pair.slice(0, pair.indexOf("=")), pair.slice(pair.indexOf("=") + 1)]),
      );
      const { PATH, ...rest } = found;
      assert.deepEqual(rest, { HOME: "/root", USER: "root", LOGNAME: "root", LANG: "C.UTF-8" });
      for (const folder of ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]) {
        assert.ok(PATH?.split(":").includes(folder), PATH);
      }
    });

    test("the locale in LANG is UTF-8, and programs load it from one file", async () => {
      assert.equal((await capsule.run("locale", ["charmap"])).stdout, "UTF-8\n");
      assert.equal((await capsule.run("localedef", ["--list-archive"])).stdout, "C.utf8\n");
    });

    test("names of services and protocols are known", async () => {
      const script = 'import socket; print(socket.getservbyname("https"), socket.getprotobyname("tcp"))';
      assert.equal((await capsule.run("python3", ["-c", script])).stdout, "443 6\n");
    });

    test("`envs`: extra environment variables, on top of the defaults", async () => {
      const envs = { GREETING: "hällo\nworld", EMPTY: "", HOME: "/tmp", "odd.name-1": "x=y" };
      const { stdout } = await capsule.run("env", ["-0"], { envs });
      const lines = stdout.split("\0");
      for (const [name, value] of Object.entries(envs)) assert.ok(lines.includes(`${name}=${value}`), stdout);
      assert.ok(lines.includes("USER=root"));
      assert.equal(lines.filter((line) => line.startsWith("HOME=")).length, 1);
    });

    test("`cwd`: working directory; default /root", async () => {
      assert.equal((await capsule.run("pwd")).stdout, "/root\n");
      assert.equal((await capsule.run("pwd", [], { cwd: "/usr/share" })).stdout, "/usr/share\n");
    });

    test("default user root, umask 022, stdin is /dev/null", async () => {
      assert.equal(await capsule.sh("id -un; id -G; umask"), "root\n0\n0022");
      assert.equal((await capsule.run("readlink", ["/proc/self/fd/0"])).stdout, "/dev/null\n");
      assert.equal((await capsule.run("cat")).exit_code, 0);
    });

    test("own session and process group; no descriptors but the three, no blocked or ignored signals", async () => {
      const [pid, pgid, sid] = (await capsule.sh("ps -o pid=,pgid=,sid= -p $$")).trim().split(/\s+/);
      assert.deepEqual([pgid, sid], [pid, pid]);
      assert.equal((await capsule.run("ls", ["/proc/self/fd"])).stdout, "0\n1\n2\n3\n", "3 is ls's own");
      const masks = (await capsule.run("grep", ["-E", "^Sig(Blk|Ign)", "/proc/self/status"])).stdout;
      assert.deepEqual(masks.match(/[0-9a-f]{16}/g), ["0".repeat(16), "0".repeat(16)]);
    });
  });

  describe("output", () => {
    test("base64 is used when the output is binary: for both streams if either is not UTF-8", async () => {
      const binary = Buffer.from([0xff, 0xfe, 0x00, 0x0a]);
      for (const script of [
        "printf '\\377\\376\\0\\n'; printf text >&2",
        "printf text; printf '\\377\\376\\0\\n' >&2",
      ]) {
        const { stdout, stderr, encoding } = await capsule.run("bash", ["-c", script]);
        assert.equal(encoding, "base64");
        const decoded = [stdout, stderr].map((each) => Buffer.from(each, "base64"));
        assert.ok(decoded.some((bytes) => bytes.equals(binary)));
        assert.ok(decoded.some((bytes) => bytes.toString() === "text"));
      }
    });

    test("NULs, control characters, a BOM and four-byte characters are UTF-8 like any other", async () => {
      const text = "\u0000\u0001\u001b[0m\r\n\u007f\ufeff€𝄞\ufffd";
      const { stdout, encoding } = await capsule.run("printf", ["%b", "\\0000\\x01\\x1b[0m\\r\\n\\x7f\ufeff€𝄞\ufffd"]);
      assert.equal(encoding, "utf-8");
      assert.equal(stdout, text);
    });

    test("a character is complete at every buffer boundary", async () => {
      const script = "import sys\nfor n in range(3): sys.stdout.write('x' * n + '€' * 100000 + '\\n')";
      const { stdout, encoding } = await capsule.run("python3", ["-c", script]);
      assert.equal(encoding, "utf-8");
      assert.ok(stdout === [0, 1, 2].map((n) => `${"x".repeat(n)}${"€".repeat(100_000)}\n`).join(""));
    });

    test("output beyond 16 MiB is cut and marked `truncated`; output of exactly 16 MiB is not", async () => {
      const print = (bytes: number) =>
        capsule.run("bash", ["-c", `tr '\\0' a </dev/zero | head -c ${bytes}; echo end >&2`]);
      const exact = await print(16 * mib);
      assert.equal(exact.stdout.length, 16 * mib);
      assert.ok(!exact.truncated);
      const beyond = await print(16 * mib + 1);
      assert.equal(beyond.stdout.length, 16 * mib);
      assert.equal(beyond.truncated, true);
      assert.equal(beyond.exit_code, 0);
      assert.equal(beyond.stderr, "end\n");
    });

    test("hundreds of runs with outputs of random sizes, on both streams, byte for byte", async (t) => {
      const random = new Random(t);
      const made = await capsule.run("bash", [
        "-c",
        `head -c ${mib} /dev/urandom | tee /tmp/bytes | base64 -w0 | tee /tmp/text`,
      ]);
      const text = Buffer.from(made.stdout);
      const binary = Buffer.from(made.stdout, "base64");
      for (let run = 0; run < 200; run++) {
        const isBinary = random.below(4) === 0;
        const source = isBinary ? binary : text;
        const sizes = [random.size(mib), random.size(random.below(2) === 0 ? mib : 100)] as const;
        const path = isBinary ? "/tmp/bytes" : "/tmp/text";
        const script = 'head -c "$2" "$1"; head -c "$3" "$1" >&2';
        const result = await capsule.run("bash", ["-c", script, "-", path, ...sizes.map(String)]);
        const got = [result.stdout, result.stderr].map((each) => Buffer.from(each, result.encoding));
        assert.equal(result.exit_code, 0);
        for (const [i, size] of sizes.entries()) {
          assert.ok(
            got[i]!.equals(source.subarray(0, size)),
            `run ${run}: ${got[i]!.length} of ${size} bytes, ${path}`,
          );
        }
      }
    });

    test("the first and last byte of a fast command arrive, in hundreds of runs", async () => {
      for (let run = 0; run < 150; run++) {
        assert.equal((await capsule.run("echo", [String(run)])).stdout, `${run}\n`);
      }
    });

    test("stdout and stderr are each complete and in order when written alternately", async () => {
      const script = "for i in $(seq 2000); do echo o$i; echo e$i >&2; done";
      const { stdout, stderr } = await capsule.run("bash", ["-c", script]);
      const numbers = Array.from({ length: 2_000 }, (_, i) => i + 1);
      assert.equal(stdout, numbers.map((i) => `o${i}\n`).join(""));
      assert.equal(stderr, numbers.map((i) => `e${i}\n`).join(""));
    });

    test("commands run at the same time, each with its own output", async () => {
      // None ends before all have begun.
      const meet = "touch $0/$1; until [ $(ls $0 | wc -l) = 30 ]; do sleep 0.1; done";
      const folder = await capsule.sh("mktemp -d");
      const results = await Promise.all(
        Array.from({ length: 30 }, (_, i) =>
          capsule.run("bash", ["-c", `${meet}; head -c ${i * 1_000} /tmp/text; exit ${i}`, folder, String(i)], {
            timeout: 0,
          }),
        ),
      );
      for (const [i, { exit_code, stdout }] of results.entries())
        assert.deepEqual([exit_code, stdout.length], [i, i * 1_000]);
    });

    test("no zombie remains", async () => {
      await capsule.sh("for i in $(seq 20); do (setsid true &) ; done");
      await waitFor("no zombies", async () => !/^Z/m.test((await capsule.run("ps", ["-eo", "stat="])).stdout));
    });
  });

  describe("completion is the leader's exit", () => {
    const holders: [string, string, string][] = [
      ["a background job", "sleep 301 & echo done", "sleep 301"],
      ["setsid nohup", "setsid nohup sleep 302 & echo done", "sleep 302"],
      ["a double fork", "(sleep 303 &) ; echo done", "sleep 303"],
      ["a heredoc", "sleep 304 <<EOF &\nx\nEOF\necho done", "sleep 304"],
    ];
    for (const [what, script, commandLine] of holders) {
      test(`${what} that holds the pipes does not delay the answer, and keeps running`, async () => {
        const { stdout, exit_code } = await capsule.run("bash", ["-c", script], { timeout: 200 });
        assert.deepEqual([stdout, exit_code], ["done\n", 0]);
        // The process may still have to execute that program.
        await waitFor("it runs", async () => (await count(commandLine)) === 1);
        await capsule.run("pkill", ["-xf", commandLine]);
      });
    }

    test("a pipeline's output is complete", async () => {
      assert.equal(await capsule.sh("seq 100000 | tac | tac | md5sum"), await capsule.sh("seq 100000 | md5sum"));
    });
  });

  describe("timeout", () => {
    for (const field of ["timeout", "timeout_sec"]) {
      test(`\`${field}\` reached: 504 with what was printed, and the whole tree is dead`, async () => {
        const script = "trap '' TERM; echo out; echo err >&2; setsid sleep 7311 & (sleep 7311 &) ; sleep 7311";
        // The time begins before the shell, which may start slowly on a busy machine.
        for (let [timeoutSec, printed] = [4, false]; !printed; timeoutSec *= 4) {
          const began = performance.now();
          const reply = await capsule.exec({ cmd: "bash", args: ["-c", script], [field]: timeoutSec });
          const elapsedMs = performance.now() - began;
          assert.equal(reply.status, 504, reply.text);
          assert.equal(reply.json.error.code, "timeout");
          assert.ok(elapsedMs >= timeoutSec * 1_000, String(elapsedMs));
          assert.equal(await count("sleep 7311"), 0);
          const { stdout, stderr, encoding } = reply.json.error.details;
          printed = stderr !== "" || timeoutSec > 60;
          if (printed)
            assert.deepEqual({ stdout, stderr, encoding }, { stdout: "out\n", stderr: "err\n", encoding: "utf-8" });
        }
      });
    }

    test("a command that ends in time is not killed", async () => {
      const { exit_code, stdout } = await capsule.run("bash", ["-c", "sleep 0.5; echo in time"], { timeout: 20 });
      assert.deepEqual([exit_code, stdout], [0, "in time\n"]);
    });

    test("fork trees and writers of endless output are killed too", async () => {
      const script = "f() { sleep 7313 & if [ $1 -gt 0 ]; then (f $(($1-1))) & (f $(($1-1))) & fi; }; f 3; yes";
      const reply = await capsule.exec({ cmd: "bash", args: ["-c", script], timeout: 2 });
      assert.equal(reply.status, 504, reply.text);
      await gone("sleep 7313");
      assert.equal(await count("yes"), 0);
    });
  });

  describe("a command that cannot execute its program", () => {
    test("waits alone while another process has a lease on the program's file, and its timeout ends it", async () => {
      const holder = `import fcntl, os, signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
open("/proc/sys/fs/lease-break-time", "w").write("900")
file = os.open("/root/leased", os.O_RDONLY)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("leased", flush=True)
signal.pause()`;
      await capsule.sh("cp /bin/echo /root/leased");
      const script = 'python3 -c "$1" >/root/lease.log 2>&1 & until grep leased /root/lease.log; do sleep 0.1; done';
      assert.match((await capsule.run("bash", ["-c", script, "-", holder])).stdout, /leased/);
      const limited = capsule.exec({ cmd: "/root/leased", timeout: 2 });
      const patient = capsule.exec({ cmd: "/root/leased", args: ["patient"], timeout: 0 });
      for (let run = 0; run < 20; run++) assert.equal(await capsule.sh(`echo ${run}`), `${run}`);
      assert.equal((await limited).status, 504);
      await capsule.run("pkill", ["-f", "signal.pause"]);
      assert.equal((await patient).json.stdout, "patient\n");
    });

    test("a command that freezes its cgroup, or leaves it frozen, holds up no other", async () => {
      const group = "g=/sys/fs/cgroup$(sed s/0:://p -n /proc/self/cgroup)";
      const frozen = capsule.exec({
        cmd: "sh",
        args: ["-c", `${group}; echo 1 >$g/cgroup.freeze; echo on`],
        timeout: 2,
      });
      const left = `${group}; echo $$ >/sys/fs/cgroup/cgroup.procs && echo 1 >$g/cgroup.freeze && echo left`;
      for (let run = 0; run < 20; run++) assert.equal(await capsule.sh(left), "left");
      const { status, json } = await frozen;
      assert.deepEqual([status, json.error.details.stdout], [504, ""]);
    });
  });

  describe("client gone", () => {
    test("the foreground command's whole tree is killed", async () => {
      const abort = new AbortController();
      const running = capsule.exec(
        { cmd: "bash", args: ["-c", "setsid sleep 7312 & sleep 7312"], timeout: 0 },
        { signal: abort.signal },
      );
      await waitFor("both run", async () => (await count("sleep 7312")) === 2);
      abort.abort();
      await assert.rejects(running);
      await gone("sleep 7312");
    });

    test("during endless output", async () => {
      const abort = new AbortController();
      const running = capsule.exec({ cmd: "yes", args: ["7314"], timeout: 0 }, { signal: abort.signal });
      await waitFor("it runs", async () => (await count("yes 7314")) === 1);
      abort.abort();
      await assert.rejects(running);
      await gone("yes 7314");
      assert.equal(await capsule.sh("echo fine"), "fine");
    });
  });

  describe("long commands", () => {
    test("`timeout` default 30", async () => {
      const { status, json } = await limited;
      assert.equal(status, 504);
      assert.equal(json.error.details.stdout, "so far\n");
      assert.ok(
        json.error.details.duration_ms >= 29_900 && json.error.details.duration_ms < 60_000,
        json.error.details.duration_ms,
      );
      assert.equal(await count("sleep 900"), 0);
    });

    test("`timeout` 0 means no timeout: a silent command of 33 s ends by itself", async () => {
      const { status, json } = await unlimited;
      assert.equal(status, 200);
      assert.deepEqual([json.exit_code, json.stdout], [0, "patience\n"]);
    });
  });
});
