/** The command line of `./dev`: help, and refusals before anything is installed, built or removed. */
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { after, test } from "node:test";
import { shapeHelp } from "./machine/shape.ts";
import { groupNames } from "./runner/groups.ts";
import { waitFor } from "./wait-for.ts";

const repository = resolve(import.meta.dirname, "..");
const folder = mkdtempSync(join(tmpdir(), "capsule-dev-"));
after(() => rmSync(folder, { recursive: true }));
copyFileSync(join(repository, "dev"), join(folder, "dev"));
mkdirSync(join(folder, "deploy"));
for (const each of ["packages.sh", "service.sh"]) {
  copyFileSync(join(repository, "deploy", each), join(folder, "deploy", each));
}
mkdirSync(join(folder, "test/fakes"), { recursive: true });

/** In a folder with the script and nothing else; whatever a command does leaves something there, or fails otherwise. */
const dev = (...args: string[]) => devWith({}, ...args);

function devWith(more: NodeJS.ProcessEnv, ...args: string[]) {
  const before = readdirSync(folder, { recursive: true });
  const env = { ...process.env, CAPSULE_DATA: join(folder, "data"), ...more };
  const { status, stdout, stderr } = spawnSync(join(folder, "dev"), args, { encoding: "utf8", env, timeout: 60_000 });
  assert.deepEqual(readdirSync(folder, { recursive: true }), before, `./dev ${args.join(" ")} has done something`);
  return { status, stdout, stderr };
}

const listed = dev("help").stdout;
const names = [...new Set([...listed.matchAll(/^\.\/dev ([a-z]+)/gm)].map(([, name]) => name!))];

test("every command prints its own lines of the help, whatever else it is given", () => {
  assert.ok(names.length >= 14, listed);
  for (const name of names) {
    for (const args of [
      [name, "--help"],
      [name, "-h"],
      ["help", name],
      [name, "--nonsense", "--help"],
    ]) {
      const { status, stdout, stderr } = dev(...args);
      assert.deepEqual({ status, stderr }, { status: 0, stderr: "" }, args.join(" "));
      assert.match(stdout, new RegExp(`^\\./dev ${name}\\b`), args.join(" "));
      assert.ok(listed.includes(stdout), `more than ${name}'s lines: ${stdout}`);
      assert.equal(stdout.match(/^\.\/dev/gm)?.length, 1, stdout);
    }
  }
  for (const args of [[], ["help"], ["--help"], ["-h"]]) assert.equal(dev(...args).stdout, listed);
});

test("a taken port is told before the first build, and nothing is done", async (t) => {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => server.close());
  const { port } = server.address() as AddressInfo;
  const { status, stderr } = devWith({ CAPSULE_PORT: String(port) }, "up");
  assert.deepEqual(
    [status, stderr],
    [1, `dev: 127.0.0.1:${port} is in use; another port: CAPSULE_PORT=9000 ./dev up\n`],
  );
});

test("an unknown argument of any command is refused with exit code 2 and one line, and nothing is done", () => {
  for (const name of names) {
    for (const wrong of ["--nonsense", "nonsense", "--dry-run", "=x", ""]) {
      const { status, stdout, stderr } = dev(name, wrong);
      assert.deepEqual({ status, stdout }, { status: 2, stdout: "" }, `./dev ${name} '${wrong}': ${stderr}`);
      assert.equal(stderr, `dev: ${name} does not take '${wrong}'; see ./dev ${name} --help\n`);
    }
  }
});

test("known arguments do not carry an unknown one along", () => {
  for (const [line, wrong] of [
    ["image --upgrade --all", "--all"],
    ["image dev minimal --upgrade debian", "debian"],
    ["uninstall --all --upgrade", "--upgrade"],
    ["clean --all now", "now"],
    ["test agent unit conformance confromance", "confromance"],
    ["bench --json figures.json --json=figures.json create --json", "--json"],
    ["machine down shell up", "up"],
  ] as const) {
    const { status, stderr } = dev(...line.split(" "));
    assert.equal(status, 2, line);
    assert.match(stderr, new RegExp(`^dev: \\w+ does not take '${wrong}'; `), line);
  }
});

test("the groups of the tests are known, and no other folder of test", () => {
  assert.match(dev("test", ...groupNames, "nonsense").stderr, /does not take 'nonsense'/);
  assert.match(dev("test", "fakes").stderr, /does not take 'fakes'/);
});

test("the groups of the benchmarks and the flags of a machine are known", () => {
  const bench = readFileSync(join(repository, "bench/main.ts"), "utf8");
  const groups = /^const groups: .* = \{\n([^}]*)\};/m.exec(bench)![1]!.match(/\w+/g)!;
  const options = [...bench.matchAll(/^ {2}(--\w+)( [A-Z]+)?/gm)].filter(([, option]) => option !== "--help");
  assert.ok(groups.length > 10 && options.length >= 4);
  const known = options.flatMap(([, option, value]) => (value === undefined ? [option!] : [option!, "f"]));
  assert.match(dev("bench", ...known, ...groups, "nonsense").stderr, /does not take 'nonsense'/);
  const flags = [...shapeHelp.matchAll(/^ {2}(--\S+)( \S+\|(\S+))?/gm)];
  const typed = flags.flatMap(([, flag, , value]) => (value === undefined ? [flag!] : [flag!, value]));
  assert.ok(typed.includes("--kernel") && typed.includes("backports") && typed.includes("--rootless"));
  assert.match(dev("machine", "up", ...typed, "nonsense").stderr, /does not take 'nonsense'/);
});

const skip = process.getuid?.() !== 0 && "needs root to become another user";
test("a data folder of root's is refused to another user in one line that says so", { skip }, () => {
  const data = join(folder, "of-root");
  mkdirSync(data, { mode: 0o700 });
  chmodSync(folder, 0o755);
  for (const command of ["up", "doctor", "sdk"]) {
    const env = { ...process.env, CAPSULE_DATA: data };
    const options = { encoding: "utf8", env, uid: 65_534, gid: 65_534, timeout: 60_000 } as const;
    const { status, stderr } = spawnSync(join(folder, "dev"), [command], options);
    assert.equal(status, 1, command);
    assert.equal(stderr, `dev: ${data} belongs to root: use sudo\n`, command);
  }
});

test("an unknown command is refused with exit code 2", () => {
  for (const args of [["nonsense"], ["nonsense", "--help"], ["help", "nonsense"], ["--nonsense"]]) {
    const { status, stderr } = dev(...args);
    assert.equal(status, 2);
    assert.equal(
      stderr,
      `dev: there is no command '${args.findLast((each) => each !== "--help" && each !== "help")}'; ./dev help lists them\n`,
    );
  }
});

test("the counter beside a long step ends with the step, also at Ctrl-C", async () => {
  const place = mkdtempSync(join(tmpdir(), "capsule-counter-"));
  const [shell, done] = [join(place, "shell"), join(place, "done")];
  const script = join(place, "script");
  writeFileSync(
    script,
    `cd ${folder}; . deploy/packages.sh; work=${place}; trap end_counter EXIT; echo $$ >${shell}.new; mv ${shell}.new ${shell}
step one bash -c 'until [ -e ${done} ]; do sleep 0.1; done'
step two sleep 300`,
  );
  // A terminal for it, whose session the shell leads.
  const terminal = spawn("script", ["-qfec", `exec bash ${script}`, "/dev/null"], {
    stdio: ["ignore", "pipe", "ignore"],
  });
  const ended = once(terminal, "close");
  let said = "";
  terminal.stdout.on("data", (bytes) => {
    said += bytes;
  });
  try {
    await waitFor("the shell has begun", () => existsSync(shell));
    const pid = Number(readFileSync(shell, "utf8"));
    const children = () => readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").trim().split(" ").map(Number);
    await waitFor("the first step counts", () => /one … [1-9]/.test(said));
    const first = children();
    writeFileSync(done, "");
    await waitFor("the second step counts", () => /two … [1-9]/.test(said));
    const second = children();
    assert.equal(second.length, 2, said);
    assert.ok(first.every((child) => !second.includes(child)));
    process.kill(-pid, "SIGINT");
    await ended;
    await waitFor("all have ended", () => [...first, ...second].every((child) => !existsSync(`/proc/${child}`)));
  } finally {
    terminal.kill("SIGKILL");
    rmSync(place, { recursive: true });
  }
});
