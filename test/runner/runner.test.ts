/** The runner on small test files: what passes, what fails, what is skipped, and what never ends. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { after, test } from "node:test";
import { waitFor } from "../wait-for.ts";

const program = join(import.meta.dirname, "../run.ts");
const folder = mkdtempSync(join(tmpdir(), "capsule-runner-"));
after(() => rmSync(folder, { recursive: true }));

/** A file with these lines below its imports. */
function file(name: string, ...lines: string[]): string {
  const path = join(folder, `${name}.test.mjs`);
  writeFileSync(path, ['import { describe, test } from "node:test";', ...lines].join("\n"));
  return path;
}

function start(args: string[]) {
  const { NODE_TEST_CONTEXT: _, ...env } = process.env; // with it, node:test would not run files
  const child = spawn(process.execPath, [program, ...args], { env, stdio: ["ignore", "pipe", "pipe"] });
  const ended = Promise.all([once(child, "close"), text(child.stdout), text(child.stderr)]);
  return {
    child,
    ended: ended.then(([[status], stdout, stderr]) => ({
      status,
      stdout,
      stderr,
      sum: stdout.trimEnd().split("\n").at(-1),
    })),
  };
}

const runner = (...args: string[]) => start(args).ended;

test("passed, failed and skipped tests are counted, and the last line is their sum", async () => {
  const path = file(
    "mixed",
    'test("good", () => {});',
    'test("bad", () => { throw new Error("reason of it"); });',
    'test("left out", { skip: "no disk" }, () => {});',
    'test("without a reason", { skip: true }, () => {});',
    'test("not done", { todo: "later" }, () => { throw new Error("x"); });',
    'describe("suite", () => { test("inner bad", () => { throw "text"; }); test("inner good", () => {}); });',
    'describe("no suite", { skip: "no root" }, () => { test("unseen", () => {}); });',
  );
  const { status, stdout, sum } = await runner(path);
  assert.equal(sum, "2 passed, 2 failed, 4 skipped", stdout);
  assert.equal(status, 1);
  assert.match(stdout, /^✖ bad\n {2}.*mixed\.test\.mjs:3\n {2}Error: reason of it$/m);
  assert.match(stdout, /^✖ suite › inner bad\n.*\n {2}text$/m);
  assert.deepEqual(
    stdout.split("\n").filter((line) => /^(skipped|failed): /.test(line)),
    [
      "skipped: left out — no disk",
      "skipped: without a reason",
      "skipped: not done — later",
      "skipped: no suite — no root",
      `failed: ${path}: bad`,
      `failed: ${path}: suite › inner bad`,
    ],
  );
});

test("a suite that fails by itself is counted beside its tests", async () => {
  const { sum } = await runner(
    file(
      "hook",
      'import { before } from "node:test";',
      'describe("s", () => { before(() => { throw new Error("h"); }); test("t", () => {}); });',
    ),
  );
  assert.equal(sum, "0 passed, 2 failed, 0 skipped");
});

test("passing files end with exit code 0", async () => {
  const [one, two] = [file("one", 'test("a", () => {});'), file("two", 'test("b", () => {});', 'test("c", () => {});')];
  const { status, stdout, sum } = await runner(one, two);
  assert.deepEqual({ status, sum }, { status: 0, sum: "3 passed, 0 failed, 0 skipped" });
  assert.match(stdout, /two\.test\.mjs: 2 passed, /);
});

for (const [name, passed, ...lines] of [
  ["an exit code of its own", 0, 'test("good", () => {});', "process.exit(3);"],
  ["an error after its tests", 1, 'test("good", () => {});', 'setTimeout(() => { throw new Error("late"); }, 20);'],
  ["a syntax error", 0, "no program at all"],
  ["a signal", 0, 'process.kill(process.pid, "SIGKILL");'],
  ["no test", 0, ""],
] as const) {
  test(`a file with ${name} is a failure`, async () => {
    const { status, stdout, sum } = await runner(file("outside", ...lines));
    assert.equal(sum, `${passed} passed, 1 failed, 0 skipped`, stdout);
    assert.equal(status, 1);
    assert.match(stdout, /^failed: .*outside\.test\.mjs: outside of its tests$/m);
  });
}

for (const [name, line] of [
  ["an endless loop", 'test("spins", () => { for (;;); });'],
  ["an endless loop that SIGTERM does not end", 'process.on("SIGTERM", () => {}); test("spins", () => { for (;;); });'],
  ["an open handle", "setInterval(() => {}, 1_000);"],
] as const) {
  test(`a file with ${name} is ended at its limit, is a failure, and leaves no process`, async () => {
    const path = file(name.replaceAll(" ", "-"), line);
    const { status, stdout, sum } = await runner(path, "--limit", "2");
    assert.equal(sum, "0 passed, 1 failed, 0 skipped", stdout);
    assert.equal(status, 1);
    assert.match(stdout, /ended before its own end; its limit is 2 s/);
    await waitFor("the end of its process", () => !isRun(path));
  });
}

test("-t runs the tests with this text in their title, and fails when there is none", async () => {
  const path = file("named", 'test("a (1+1)", () => {});', 'test("b", () => { throw new Error(); });');
  const found = await runner(path, "-t", "(1+1)");
  assert.deepEqual([found.status, found.sum], [0, "1 passed, 0 failed, 0 skipped"], found.stdout);
  const none = await runner(path, "-t", "a (1.1)");
  assert.deepEqual([none.status, none.sum], [1, "0 passed, 1 failed, 0 skipped"], none.stdout);
});

test("of several files, failures and the output of their files are printed, and passed tests with them", async () => {
  const red = file(
    "red",
    'test("bad", (t) => { console.log("printed"); t.diagnostic("seed 7"); throw new Error("why"); });',
  );
  const { stdout } = await runner(red, file("green", 'test("fine", () => {});'));
  for (const part of ["printed", "ℹ seed 7", "Error: why", "✔ fine"])
    assert.ok(stdout.includes(part), `${part}: ${stdout}`);
});

test("both errors of a test whose disposal fails too are printed", async () => {
  const path = file(
    "disposal",
    'test("both", async () => {',
    '  await using it = { async [Symbol.asyncDispose]() { throw new Error("second"); } };',
    '  throw new Error("first");',
    "});",
  );
  const { stdout } = await runner(path);
  for (const part of ["Error: first", "Error: second"]) assert.ok(stdout.includes(part), stdout);
});

test("a run that is ended ends its files and fails", async () => {
  const started = join(folder, "started");
  const path = file(
    "ended",
    'import { writeFileSync } from "node:fs";',
    `test("waits", () => { writeFileSync(${JSON.stringify(started)}, ""); return new Promise((r) => setTimeout(r, 600_000)); });`,
  );
  const { child, ended } = start([path]);
  await waitFor("the start of the test", () => readable(started) !== undefined);
  child.kill("SIGTERM");
  assert.equal((await ended).status, 1);
  await waitFor("the end of its process", () => !isRun(path));
});

function isRun(path: string): boolean {
  const commands = readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map((pid) => readable(`/proc/${pid}/cmdline`));
  return commands.some((command) => command?.includes(path));
}

function readable(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return; // not yet, or no more
  }
}

test("wrong words are refused with exit code 2, and nothing is run", async () => {
  const path = file("unrun", 'test("good", () => {});');
  for (const [args, reason] of [
    [["confromance"], "there are no tests in confromance"],
    [["test/no-such.test.ts"], "there is no file"],
    [["unit", path], "groups or files, not both"],
    [["unit", "-t", "x"], "-t takes files"],
    [[path, "--limit", "soon"], "--limit is a number"],
  ] as const) {
    const { status, stdout, stderr } = await runner(...args);
    assert.deepEqual({ status, stdout }, { status: 2, stdout: "" });
    assert.ok(stderr.startsWith("dev: ") && stderr.includes(reason), stderr);
  }
});
