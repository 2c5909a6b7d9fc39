/** Each command of the command line, against a real server with real VMs. */
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { chmod, lstat, mkdir, mkdtemp, readdir, readFile, readlink, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { after, before, test } from "node:test";
import { commands } from "../../src/cli/commands.ts";
import { helpOf } from "../../src/cli/help.ts";
import { Server } from "../server.ts";
import { CommandLine, type Ended, program, said } from "./command-line.ts";

const deadline = { timeout: 400_000 };

let server: Server;
let line: CommandLine;
let folder: string;
let id: string;

before(async () => {
  server = await Server.start();
  folder = await mkdtemp(join(tmpdir(), "capsule-cli-"));
  line = new CommandLine({ CAPSULE_DATA: server.dataDir }); // address and key are what the server left there
  id = (await ok("create")).trim();
});

after(async () => {
  await rm(folder, { recursive: true, force: true });
  await server?.[Symbol.asyncDispose]();
});

/** Output of a command that must succeed. */
async function ok(...args: string[]): Promise<string> {
  const { stdout, stderr, code } = await line.run(args);
  assert.equal(code, 0, `capsule ${args.join(" ")}: ${stderr}`);
  return stdout;
}

async function json(...args: string[]) {
  return JSON.parse(await ok(...args, "--json"));
}

function failed(ended: Ended, code: number, pattern: RegExp): void {
  assert.equal(ended.code, code, ended.stderr);
  assert.match(ended.stderr, pattern);
}

test(
  "stats prints the newest use of each running capsule, and create takes the size of the disk",
  deadline,
  async () => {
    const made = await json("create", "--disk", "5G");
    assert.equal(made.disk_mb, 5_120);
    const [head, ...rows] = (await ok("stats", made.id, id)).trim().split("\n");
    assert.match(head!, /^ID +NAME +STATUS +CPU +MEMORY +DISK$/);
    assert.deepEqual(
      rows.map((row) => row.split(" ")[0]),
      [made.id, id],
    );
    assert.equal((await json("stats", made.id)).id, made.id);
    await ok("rm", made.id);
  },
);

test("create, ls and rm print ids, or whole capsules with --json", deadline, async () => {
  const made = await json(
    "create",
    "--timeout",
    "700",
    "--memory",
    "512",
    "--lifetime",
    "2h",
    "--on-expiry",
    "pause",
    "--auto-resume",
  );
  assert.deepEqual([made.status, made.timeout_sec, made.memory_mb], ["running", 700, 512]);
  assert.deepEqual([made.lifetime_sec, made.on_expiry, made.auto_resume], [7_200, "pause", true]);
  assert.equal((await ok("ls", "--quiet")).trim(), `${made.id}\n${id}`);
  assert.deepEqual(
    (await json("ls")).map((each: { id: string }) => each.id),
    [made.id, id],
  );
  const table = (await ok("ls")).split("\n");
  assert.match(table[0]!, /^ID +NAME +STATUS +TEMPLATE/);
  assert.match(table[1]!, new RegExp(`^${made.id} +running +minimal +1 +512 MiB`));
  await ok("set", made.id.slice(0, 9), "name=web", "label.env=a=b", "timeout_sec=60");
  const changed = await json("ls", "--name", "web");
  assert.deepEqual([changed[0].id, changed[0].labels, changed[0].timeout_sec], [made.id, { env: "a=b" }, 60]);
  assert.equal((await ok("ls", "-q", "--label", "env=a=b", "--status", "running,paused")).trim(), made.id);
  assert.equal(await ok("ls", "-q", "--label", "env=c"), "");
  assert.equal((await ok("exec", "web", "--", "echo", "by name")).trim(), "by name");
  await ok("pause", "web");
  assert.equal((await ok("exec", "web", "--", "echo", "resumed")).trim(), "resumed");
  await ok("set", "web", "auto_resume=false", "retention_sec=7d", "on_timeout=destroy");
  const [{ auto_resume, retention_sec, on_timeout }] = await json("ls", "--name", "web");
  assert.deepEqual([auto_resume, retention_sec, on_timeout], [false, 604_800, "destroy"]);
  failed(await line.run(["set", "web", "lifetime_sec=1w"]), 2, /lifetime_sec takes seconds, or a time/);
  failed(await line.run(["set", "web", "vcpus=2"]), 2, /cannot be set/);
  failed(await line.run(["create", "--name", "web"]), 1, /named web/);
  failed(await line.run(["rm", made.id.slice(0, 8)]), 1, /at least 6 characters/);
  failed(await line.run(["rm", "nobody"]), 1, /no capsule named "nobody"/);
  assert.equal(await ok("rm", made.id.slice(0, 12)), `${made.id} is destroyed\n`);
  failed(await line.run(["rm", made.id]), 1, /does not exist|no capsule/i);
});

test("exec passes on standard input: much of it, a part of it, and a closed one", deadline, async () => {
  const input = randomBytes(50 * 1024 * 1024);
  const hash = createHash("sha256").update(input).digest("hex");
  const { stdout, code } = await line.run(["exec", id, "--", "sha256sum"], { input });
  assert.deepEqual([stdout, code], [`${hash}  -\n`, 0]);
  const bash = async (script: string) => {
    const child = spawn("bash", ["-c", script, program, id], { env: line.env, stdio: ["ignore", "pipe", "inherit"] });
    const [output] = await Promise.all([text(child.stdout), once(child, "close")]);
    return output;
  };
  assert.equal(await bash('yes | "$0" exec "$1" -- head -1'), "y\n");
  assert.equal(await bash('"$0" exec "$1" -- sh -c "cat; echo end" <&-'), "end\n");
  assert.equal(await bash('echo 1 | "$0" exec --json "$1" -- cat | grep -c 1'), "1\n");
  const loop = 'seq 3 | while read n; do "$0" exec "$1" -- echo $n </dev/null; done';
  assert.equal(await bash(loop), "1\n2\n3\n");
  assert.match(
    await bash('echo "tty; exit 5" | "$0" exec -t "$1" -- sh; echo "code $?"'),
    /\/dev\/pts\/[\s\S]*code 5\n$/,
  );
  assert.match(
    await bash('"$0" exec -t "$1" -- nope 2>&1; echo "code $?"'),
    /nope: command not found[\s\S]*code 127\n$/,
  );
});

test("exec passes on output and exit code, byte for byte", deadline, async () => {
  const script = 'printf "a\\0b"; echo oops >&2; exit 9';
  const { stdout, stderr, code } = await line.run(["exec", "-e", "X=1", id, "--", "sh", "-c", script]);
  assert.deepEqual([stdout, stderr, code], ["a\0b", "oops\n", 9]);
  assert.equal(await ok("exec", "--cwd", "/usr", "-e", "X=a b", id, "sh", "-c", 'echo "$PWD $X"'), "/usr a b\n");
  const asUser = ["-u", "4321", "-w", "/tmp", "-e", "X=1", id, "--", "sh", "-c", 'echo "$(id -u) $PWD $X"'];
  assert.equal(await ok("exec", ...asUser), "4321 /tmp 1\n");
  assert.match(await ok("exec", "-t", ...asUser), /^4321 \/tmp 1\r\n$/);
  const tag = (await ok("exec", "-b", "-u", "4321", id, "--", "sleep", "56")).trim();
  const listed = (await json("ps", id)).find((each: { tag: string }) => each.tag === tag);
  assert.deepEqual([listed.user, listed.kind, Number.isInteger(listed.started_at)], ["4321", "exec", true]);
  await ok("kill", id, tag);
  failed(await line.run(["exec", "-u", "nobody-of-this-name", id, "--", "true"]), 125, /no user .*\n.*\/etc\/passwd/);
  assert.equal(await ok("exec", id, "echo", "--json"), "--json\n", "what follows the id is the command's, --json too");
  const result = JSON.parse(await ok("exec", "--json", id, "--", "echo", "--json"));
  assert.deepEqual([result.stdout, result.exit_code, result.encoding], ["--json\n", 0, "utf-8"]);
  for (const flags of [[], ["--background"], ["--background", "--json"]])
    failed(await line.run(["exec", ...flags, id, "no-such-command"]), 127, /command not found/);
  for (const flags of [[], ["--json"]])
    failed(await line.run(["exec", ...flags, "--timeout", "1", id, "sleep", "30"]), 124, /within 1 s/);
  assert.equal(await ok("exec", "--timeout", "3000000", id, "sleep", "0.1"), ""); // beyond what a timer takes
  failed(await line.run(["exec", `cl-${"0".repeat(25)}`, "true"]), 125, /capsule/);
  failed(await line.run(["exec", id]), 2, /Usage: capsule exec/);
});

test("the first Ctrl-C sends SIGTERM, the second one kills", deadline, async () => {
  const cases: [script: string, signals: NodeJS.Signals[], code: number, rest: string][] = [
    ["trap 'echo tidied; exit 5' TERM; echo ready; while sleep 0.1; do :; done", ["SIGINT"], 5, "tidied\n"],
    ["trap '' TERM; echo ready; sleep 55", ["SIGTERM", "SIGINT"], 137, ""],
    ["trap '' TERM; echo ready; sleep 55", ["SIGHUP"], 137, ""],
  ];
  for (const [script, signals, code, rest] of cases) {
    const child = line.start(["exec", id, "--", "sh", "-c", script]);
    await said(child.stdout, /ready\n/);
    const more = said(child.stdout, /tidied\n/).catch(() => "");
    for (const signal of signals) child.kill(signal);
    assert.deepEqual([(await once(child, "close"))[0], await more], [code, rest]);
  }
  assert.doesNotMatch(await ok("ps", id), /sleep 55/);
});

test("a slow reader of a long output slows it down, and gets all of it", deadline, async () => {
  const child = line.start(["exec", id, "--", "sh", "-c", "head -c 10000000 /dev/zero"]);
  let sizeBytes = 0;
  for await (const chunk of child.stdout) sizeBytes += (chunk as Buffer).length;
  assert.equal(sizeBytes, 10_000_000);
});

test("background processes: ps, logs, kill", deadline, async () => {
  const script = "while sleep 0.1; do echo tick; done";
  assert.equal((await ok("exec", "--background", "--tag", "web", id, "--", "sh", "-c", script)).trim(), "web");
  assert.match(await ok("ps", id), /^\d+ +root +exec +web +sh -c while/m);
  failed(await line.run(["logs", id, "nobody"]), 125, /nobody|no process/);
  failed(await line.run(["logs", "--tail", "x", id, "web"]), 2, /--tail/);
  const logs = line.start(["logs", "-f", "--tail", "1", id, "web"]);
  await said(logs.stdout, /tick\ntick\n/);
  const gone = once(logs, "close");
  await ok("kill", id, "web");
  assert.deepEqual((await gone)[0], 0);
  failed(await line.run(["kill", id, "web"]), 1, /web/);
  assert.match(await ok("logs", id, "web"), /^(tick\n)+$/);
  assert.equal(await ok("logs", "--tail", "2", id, "web"), "tick\ntick\n");
  await ok("exec", "--background", "--tag", "both", id, "--", "sh", "-c", "echo one; sleep 0.3; echo two >&2");
  assert.equal(await ok("logs", "-f", id, "both"), "one\ntwo\n");
  assert.equal(await ok("logs", "-f", "--tail", "1", id, "both"), "two\n");
  assert.deepEqual(await json("logs", id, "both"), { text: "one\ntwo\n", dropped_bytes: 0 });
});

const latin = (inFolder: string) => Buffer.concat([Buffer.from(inFolder), Buffer.from("/caf\xe9", "latin1")]);

test("cp copies a tree in and out again: links, modes, unusual names, empty folders", deadline, async () => {
  const tree = join(folder, "tree");
  await mkdir(join(tree, "sub/empty"), { recursive: true });
  await writeFile(join(tree, "ünï code\n.txt"), "text");
  await writeFile(latin(tree), "no UTF-8", { mode: 0o600 });
  await writeFile(join(tree, "sub/run"), "#!/bin/sh\necho ran\n");
  await chmod(join(tree, "sub/run"), 0o750);
  await symlink("/etc/passwd", join(tree, "outside"));
  await symlink("../sub/run", join(tree, "sub/link"));
  await ok("cp", tree, `${id}:/work`);
  assert.equal(await ok("exec", id, "/work/sub/link"), "ran\n");
  const tally = await json("cp", `${id}:/work`, join(folder, "back"));
  assert.deepEqual([tally.files, tally.links, tally.directories], [3, 2, 3]);
  const back = join(folder, "back");
  assert.deepEqual(
    (await readdir(back, { recursive: true })).sort(),
    (await readdir(tree, { recursive: true })).sort(),
  );
  assert.equal(await readFile(join(back, "ünï code\n.txt"), "utf8"), "text");
  assert.equal(await readFile(latin(back), "utf8"), "no UTF-8");
  assert.equal((await lstat(join(back, "sub/run"))).mode & 0o777, 0o750);
  assert.equal(await readlink(join(back, "outside")), "/etc/passwd");
});

test("cp keeps the modes of files and folders, in and out, setgid and sticky of folders too", deadline, async () => {
  const tree = join(folder, "modes");
  const modes = { ".": 0o700, shared: 0o2775, "shared/drop": 0o1777, "shared/key": 0o600, run: 0o755, plain: 0o644 };
  await mkdir(join(tree, "shared/drop"), { recursive: true });
  for (const file of ["shared/key", "run", "plain"]) await writeFile(join(tree, file), file);
  for (const [path, mode] of Object.entries(modes)) await chmod(join(tree, path), mode);
  const expected = Object.entries(modes).map(([path, mode]) => `${mode.toString(8)} ${path}\n`);
  await ok("exec", id, "sh", "-c", "mkdir /grouped && chmod 2777 /grouped"); // whose folders inherit setgid
  await ok("cp", tree, `${id}:/grouped`);
  const listed = await ok("exec", "--cwd", "/grouped/modes", id, "stat", "-c", "%a %n", ...Object.keys(modes));
  assert.equal(listed, expected.join(""));
  await ok("cp", `${id}:/grouped/modes`, join(folder, "modes-back"));
  for (const [path, mode] of Object.entries(modes))
    assert.equal((await lstat(join(folder, "modes-back", path))).mode & 0o7777, mode, path);
});

test("cp never writes through an existing link", deadline, async () => {
  const [outside, target] = [join(folder, "outside"), join(folder, "target")];
  await mkdir(outside);
  await mkdir(join(target, "tree"), { recursive: true });
  await writeFile(join(outside, "file"), "mine");
  await ok("exec", id, "sh", "-c", "mkdir -p /tree/sub; echo theirs > /tree/file; echo theirs > /tree/sub/file");
  await symlink(join(outside, "file"), join(target, "tree/file"));
  await ok("cp", `${id}:/tree`, target);
  assert.equal(await readFile(join(target, "tree/file"), "utf8"), "theirs\n");
  assert.equal(await readFile(join(outside, "file"), "utf8"), "mine");
  await rm(join(target, "tree/sub"), { recursive: true });
  await symlink(outside, join(target, "tree/sub"));
  failed(await line.run(["cp", `${id}:/tree`, target]), 1, /is not a folder/);
  assert.equal(await readFile(join(outside, "file"), "utf8"), "mine");
});

test("cp reads standard input and writes standard output", deadline, async () => {
  const bytes = Buffer.alloc(1_000_003, "abc\0\xff", "latin1");
  const sent = await line.run(["cp", "-", `${id}:bytes`], { input: bytes });
  assert.equal(sent.code, 0, sent.stderr);
  const child = line.start(["cp", `${id}:/root/bytes`, "-"]);
  const chunks: Buffer[] = [];
  for await (const chunk of child.stdout) chunks.push(chunk as Buffer);
  assert.ok(bytes.equals(Buffer.concat(chunks)));
  await ok("cp", `${id}:bytes`, folder);
  assert.equal((await lstat(join(folder, "bytes"))).size, bytes.length);
  failed(await line.run(["cp", `${id}:/nothing`, folder]), 1, /there is no \/nothing/);
  failed(await line.run(["cp", folder, folder]), 2, /one side must be in a capsule/);
});

test("pause, resume, snapshot, templates", deadline, async () => {
  const other = (await ok("create", "--no-wait")).trim();
  await ok("exec", id, "true");
  assert.match(await ok("pause", id), /is paused/);
  failed(await line.run(["exec", id, "true"]), 125, new RegExp(`capsule resume ${id}`));
  assert.equal((await json("resume", id)).status, "running");
  const watched = line.start(["ls", "--watch"]);
  await said(watched.stdout, new RegExp(`${other}\\trunning`));
  assert.equal((await ok("snapshot", other, "cli-test")).trim(), "cli-test");
  await said(watched.stdout, new RegExp(`${other}\\tremoved`));
  watched.kill("SIGINT");
  assert.deepEqual((await once(watched, "close"))[0], 0);
  assert.match(await ok("templates"), /^cli-test +snapshot +1 +512 MiB/m);
  assert.equal((await json("templates")).find((each: { name: string }) => each.name === "cli-test").type, "snapshot");
  failed(await line.run(["snapshot", id, "cli-test"]), 1, /--overwrite/);
  assert.equal(await ok("templates", "rm", "cli-test"), "cli-test is deleted\n");
});

test("stop and start, of several capsules", deadline, async () => {
  const other = (await ok("create")).trim();
  await ok("exec", other, "--", "sh", "-c", "echo kept > /root/kept");
  assert.equal((await json("stop", other)).status, "stopped");
  failed(await line.run(["exec", other, "true"]), 125, new RegExp(`capsule start ${other}`));
  failed(await line.run(["stop", other]), 1, /it is stopped, not running/);
  const started = await line.run(["start", other, id]);
  assert.equal(started.code, 1, "one of them runs");
  assert.equal(started.stdout, `${other} is running\n`);
  assert.match(started.stderr, /it is running, not stopped or error/);
  assert.equal(await ok("exec", other, "cat", "/root/kept"), "kept\n");
  await ok("rm", other);
});

test("keys, limits, open", deadline, async () => {
  const key = (await ok("keys", "new", "for a test")).trim();
  const other = new CommandLine({ CAPSULE_URL: server.url, CAPSULE_API_KEY: key });
  const list = JSON.parse((await other.run(["keys", "--json"])).stdout) as {
    id: string;
    name: string;
    current: boolean;
  }[];
  const own = list.find(({ current }) => current)!;
  assert.equal(own.name, "for a test");
  assert.equal(await ok("keys", "rm", own.id), `${own.id} is revoked\n`);
  failed(await other.run(["ls"]), 1, /CAPSULE_API_KEY/);
  assert.equal((await json("limits")).vcpus_max >= 8, true);
  assert.match(await ok("limits"), /^memory_min_mb +128 MiB$/m);
  assert.match(await ok("open"), new RegExp(`^${server.url}/#token=\\S+\n$`));
});

test("errors come with advice, or as JSON", deadline, async () => {
  const unreachable = new CommandLine({ CAPSULE_URL: "http://127.0.0.1:2", CAPSULE_API_KEY: "k" });
  failed(await unreachable.run(["ls"]), 1, /\.\/dev up/);
  const keyless = new CommandLine({ CAPSULE_DATA: folder });
  failed(await keyless.run(["ls"]), 1, /there is no API key.*\n.*CAPSULE_API_KEY/);
  const malformed = new CommandLine({ CAPSULE_URL: "127.0.0.1:8080", CAPSULE_API_KEY: "k" });
  failed(await malformed.run(["ls"]), 1, /"127\.0\.0\.1:8080", which is not a URL\n +Example: http:/);
  const { stderr } = await line.run(["rm", "--json", `cl-${"0".repeat(25)}`]);
  assert.equal(JSON.parse(stderr).error.code, "not_found");
  failed(await line.run(["ls", "--nonsense"]), 2, /nonsense/);
  const usage = await line.run(["ls", "--json", "--nonsense"]);
  assert.deepEqual([usage.code, JSON.parse(usage.stderr).error.code], [2, "usage"]);
  const nextStep: [string[], RegExp][] = [
    [["create", "--template", "none"], /capsule templates/],
    [["create", "--vcpus", "1000"], /capsule limits/],
    [["kill", id, "none"], /capsule ps/],
    [["keys", "rm", "key-none"], /capsule keys/],
    [["cp", program, `${id}:/no/such/file`], /mkdir -p/],
  ];
  for (const [args, pattern] of nextStep) failed(await line.run(args), 1, pattern);
  failed(await line.run(["nonsense"]), 2, /no command "nonsense"/);
});

test("a closed stdout is no error", deadline, async () => {
  const child = line.start(["exec", id, "--", "sh", "-c", "yes"]);
  await said(child.stdout, /y\n/);
  child.stdout.destroy();
  assert.deepEqual(await once(child, "close"), [0, null]);
});

test("commands have help; bash completes commands, ids and options", deadline, async () => {
  assert.equal(await ok("cp", "--help"), `${helpOf("cp", commands.cp!)}\n`);
  assert.match(await ok("--help"), /capsule create[\s\S]+capsule serve/);
  await writeFile(
    join(folder, "complete"),
    `${await ok("completion", "bash")}
    capsule() { echo cl-one; echo cl-two; }
    try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _capsule; echo "\${COMPREPLY[@]}"; }
    try capsule te; try capsule pause cl-t; try capsule create --v; try capsule ad; try capsule admin ke`,
  );
  const offered = execFileSync("bash", ["--norc", join(folder, "complete")], { encoding: "utf8" });
  assert.equal(offered, "templates\ncl-two\n--vcpus\nadmin\nkeys\n");
  for (const shell of ["zsh", "fish"]) assert.match(await ok("completion", shell), /snapshot/);
});
