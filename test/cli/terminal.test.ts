/** The command line in a real terminal emulator. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtemp, open, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { lastingPort } from "../lasting-port.ts";
import { Server } from "../server.ts";
import { Emulator } from "../terminal/emulator.ts";
import { CommandLine, program } from "./command-line.ts";

const deadline = { timeout: 400_000 };
const size = { cols: 90, rows: 24 };
/** Blocks the signal before it prints "waiting", so that none is missed. */
const sizeWhenResized = [
  "import os, signal",
  "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])",
  "print('waiting', flush=True)",
  "signal.sigwait([signal.SIGWINCH])",
  "print('resized to %dx%d' % os.get_terminal_size())",
].join("; ");
const shell = ["--", "env", "PS1=ready> ", "bash", "--norc", "--noprofile"];

let server: Server;
let line: CommandLine;
let id: string;
let folder: string;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "capsule-terminal-"));
  server = await Server.start({ env: { CAPSULE_PORT: await lastingPort() } });
  line = new CommandLine({ CAPSULE_DATA: server.dataDir });
  id = (await line.run(["create"])).stdout.trim();
});

after(async () => {
  await rm(folder, { recursive: true, force: true });
  await server?.[Symbol.asyncDispose]();
});

const opened = (...args: string[]) => Emulator.start([program, ...args], line.env, size);

async function enters(emulator: Emulator, text: string): Promise<void> {
  await emulator.types(text);
  await emulator.presses("Enter");
}

test("exec -it runs a program in this terminal; exec -i passes lines on until Ctrl-D", deadline, async () => {
  const words = (flag: string) => `'${program}' exec ${flag} ${id} --`;
  const script = `${words("-it")} sh -c 'stty size; read -r x; echo "read $x"; exit 4'; echo "it was $?"`;
  await using emulator = await Emulator.start(["bash", "-c", `${script}; ${words("-i")} wc -l`], line.env, size);
  await emulator.shows(/^24 90$/m);
  await enters(emulator, "typed");
  await emulator.shows(/^read typed$/m);
  await emulator.shows(/^it was 4$/m);
  await enters(emulator, "one line");
  await emulator.presses("C-d");
  await emulator.shows(/^1$/m);
});

test("a shell passes on keys, window size and exit code", deadline, async () => {
  const again = `'${program}' shell ${id} ${shell.map((word) => `'${word}'`).join(" ")}; echo "it was $?"`;
  await using emulator = await Emulator.start(["bash", "-c", again], line.env, size);
  await emulator.shows(/^ready>$/m);
  await enters(emulator, "stty size");
  await emulator.shows(/^24 90$/m);
  await enters(emulator, `python3 -c "${sizeWhenResized}"`); // keys can overtake a new size: it is waited for
  await emulator.shows(/^waiting$/m);
  await emulator.resizes({ cols: 100, rows: 30 });
  await emulator.shows(/^resized to 100x30$/m);
  await enters(emulator, "sh -c 'echo started; exec sleep 99'");
  await emulator.shows(/^started$/m);
  await emulator.presses("C-c");
  await enters(emulator, "echo code $?");
  await emulator.shows(/^code 130$/m);
  await enters(emulator, "exit 7");
  await emulator.shows(/^it was 7$/m);
});

test("Ctrl-] d detaches a shell in the middle of a command, and it is joined again", deadline, async () => {
  let tag: string;
  {
    await using emulator = await opened("shell", id, ...shell);
    await emulator.shows(/^ready>$/m);
    await enters(emulator, "x=kept; read -p 'name? ' name; echo hello $name $x");
    await emulator.shows(/^name\?/m);
    await emulator.presses("C-]");
    await emulator.types("d");
    const screen = await emulator.shows(/Detached[\s\S]*--tag\s+(pty-[0-9a-f]{8})/);
    tag = /(pty-[0-9a-f]{8})/.exec(screen)![1]!;
  }
  await using emulator = await opened("shell", id, "--tag", tag);
  await enters(emulator, "Ada");
  await emulator.shows(/^hello Ada kept$/m);
});

test("a shell that a pause cuts tells how to come back; --tag names a session", deadline, async () => {
  {
    await using emulator = await opened("shell", id, "--tag", "desk");
    await enters(emulator, "y=kept; PS1='desk''> '");
    await emulator.shows(/^desk>/m);
    await line.run(["pause", id]);
    const told = `capsule resume ${id} && capsule shell ${id} --tag desk`;
    await emulator.shows(new RegExp([...told].join("\\s*").replaceAll(" ", "\\s*")));
  }
  await line.run(["resume", id]);
  await using emulator = await opened("shell", id, "--tag", "desk");
  await enters(emulator, "echo still $y");
  await emulator.shows(/^still kept$/m);
});

test("a shell survives a restart of the server", deadline, async () => {
  await using emulator = await opened("shell", id, ...shell);
  await emulator.shows(/^ready>$/m);
  await server.kill("SIGKILL");
  await emulator.shows(/connection was lost/);
  server.log.expect(/"code":"unavailable","msg":"request failed"/); // the shell comes back before the guest's agent has answered
  await server.start();
  await enters(emulator, "echo still $((40 + 2))");
  await emulator.shows(/^still 42$/m);
});

test("ls --watch draws changes, in colour; control characters of guests are escaped", deadline, async () => {
  const other = (await line.run(["create"])).stdout.trim();
  const watch = `'${program}' ls --watch; echo "it was $?"; read -r typed; echo "typed $typed"`;
  await using emulator = await Emulator.start(["bash", "-c", watch], line.env, size);
  await emulator.shows(new RegExp(`^${other} +running`, "m"));
  await line.run(["rm", other]);
  const screen = await emulator.shows(/^(?![\s\S]*running[\s\S]*running)[\s\S]*running[\s\S]*q ends this/);
  assert.ok(screen.includes(id) && !screen.includes(other));
  await emulator.types("q");
  await emulator.shows(/^it was 0$/m);
  await enters(emulator, "echoed");
  await emulator.shows(/^echoed\ntyped echoed$/m); // the terminal echoes again
  await line.run(["exec", "--background", id, "--", "sh", "-c", "sleep 50; : \u001b[2J\u001b]0;owned\u0007"]);
  await using ps = await opened("ps", id);
  await ps.shows(/\\u001b\[2J\\u001b\]0;owned\\u0007/);
});

test("cp draws its progress on one line, and erases it", deadline, async () => {
  const big = join(folder, "big");
  {
    await using file = await open(big, "w");
    await file.truncate(1024 ** 3); // more than is waited for
  }
  {
    await using whole = await opened("cp", big, `${id}:/root/`);
    const drawn = await whole.shows(/^\[#+ +\] +\d+ % {2}\d\S* [KM]iB\/s {2}\/.*\/big$/m);
    assert.equal(drawn.trim().split("\n").length, 1);
  }
  const gate = join(folder, "gate"); // no key: its echo would move the cursor
  execFileSync("mkfifo", [gate]);
  const typed = `{ head -c 300000 /dev/zero; read go < ${gate}; } | '${program}' cp - ${id}:piped && echo copied`;
  await using piped = await Emulator.start(["bash", "-c", typed], line.env, size);
  await piped.shows(/^293 KiB {2}\d/);
  await writeFile(gate, "go\n");
  assert.equal((await piped.shows(/^copied$/m)).trim(), `Copied 1 file, 293 KiB, to ${id}:piped\ncopied`);
});
