/** The answers of commands at the real HTTP layer: exit codes, error codes, and the words about the work that was done. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Api } from "../../test/api.ts";
import { lineTo } from "../../test/cli/api-line.ts";
import { withUnit } from "./team.ts";
import { Waiting } from "./waiting.ts";

const api = new Api();
const line = lineTo(api);

test("wrong command lines are 2, also of commands that pass exit codes on", async () => {
  const id = await api.capsule();
  const wrong: [string[], RegExp][] = [
    [["exec", "-e", "A", id, "true"], /NAME=VALUE/],
    [["exec", "--tag", "x", id, "true"], /--tag names a process that --background/],
    [["run", "-e", "A", "--", "true"], /NAME=VALUE/],
    [["cp", "a", "b"], /one side must be in a capsule.*\n +As in: capsule cp/],
    [["logs", "--tail", "x", id, "web"], /number of lines/],
  ];
  for (const [args, pattern] of wrong) {
    const { code, stderr } = await line.run(args);
    assert.equal(code, 2, `${args.join(" ")}: ${stderr}`);
    assert.match(stderr, pattern);
  }
});

test("a prefix and a name that fit nothing have the code of an id that fits nothing", async () => {
  for (const id of ["cl-000000", "nobody", `cl-${"0".repeat(25)}`]) {
    const { code, stderr } = await line.run(["inspect", "--json", id]);
    assert.deepEqual([code, JSON.parse(stderr).error.code], [1, "not_found"], id);
  }
});

test("a capsule that is named twice is paused once, and a refusal has the command's name", async () => {
  const id = await api.capsule();
  const twice = await line.run(["pause", id, id.slice(0, 12), id]);
  assert.deepEqual(twice, { code: 0, stdout: `${id} is paused\n`, stderr: "" });
  const again = await line.run(["pause", id, "nobody"]);
  assert.equal(again.code, 1);
  const [first, second] = again.stderr.split("\n");
  assert.match(first!, new RegExp(`^capsule pause: .*${id}.*paused`));
  assert.match(second!, /^capsule pause: there is no capsule named "nobody"/, "no advice to resume it");
});

test("rm says what happened to each, and a command that is missing is named", async () => {
  const [a, b] = [await api.capsule(), await api.capsule()];
  assert.deepEqual(await line.run(["rm", a, b]), {
    code: 0,
    stdout: `${a} is destroyed\n${b} is destroyed\n`,
    stderr: "",
  });
  const empty = await line.run(["exec", a]);
  assert.deepEqual([empty.code, empty.stderr.split("\n")[0]], [2, "capsule exec: CMD is missing"]);
});

test("kill says what was sent to which process, and why a pid that ps lists is none of its", async () => {
  const id = await api.capsule();
  const killed = await line.run(["kill", "-s", "TERM", id, "proc-0123abcd"]);
  assert.deepEqual(killed, { code: 0, stdout: "proc-0123abcd was sent SIGTERM\n", stderr: "" });
  const init = await line.run(["kill", id, "1"]);
  assert.equal(init.code, 1);
  assert.match(init.stderr, /\n +Only processes with a TAG .*capsule exec ID -- kill PID/);
});

test("limits have units, and are plain numbers with --json", async () => {
  const { stdout } = await line.run(["limits"]);
  assert.match(stdout, /^file_write_max_bytes +100 MiB$/m);
  assert.match(stdout, /^lifetime_max_sec +365 days$/m);
  assert.match(stdout, /^requests_per_sec +2000$/m, "a rate");
  assert.equal(JSON.parse((await line.run(["limits", "--json"])).stdout).file_write_max_bytes, 100 * 1024 ** 2);
  const shown = (name: string, value: unknown) => withUnit(name, value);
  assert.deepEqual(
    [shown("a_sec", 90), shown("a_sec", 300), shown("a_sec", 0), shown("a_sec", 7_200), shown("a_mb", 1_536)],
    ["90 s", "5 min", "0 s", "2 h", "1.5 GiB"],
  );
});

test("a wait that lasts has a line with its seconds, which is erased; a short one has none", (t) => {
  t.mock.timers.enable({ apis: ["setInterval"] });
  const written: string[] = [];
  const stream = { isTTY: true, columns: 80, write: (text: string) => written.push(text) } as never;
  const waiting = new Waiting(true, stream);
  waiting.begins("starting");
  t.mock.timers.tick(999);
  waiting.ends();
  assert.deepEqual(written, []);
  waiting.begins("starting");
  t.mock.timers.tick(2_000);
  waiting.ends();
  t.mock.timers.tick(5_000);
  assert.deepEqual(written, ["\r\x1b[K1 s: starting", "\r\x1b[K2 s: starting", "\r\x1b[K"]);
  const quiet = new Waiting(false, stream);
  quiet.begins("starting");
  t.mock.timers.tick(2_000);
  assert.equal(written.length, 3);
});
