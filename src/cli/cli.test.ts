import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { meantBy } from "./cli.ts";
import { type Command, parse, UsageError } from "./command.ts";
import { commands } from "./commands.ts";
import { completion, scripts } from "./completion.ts";
import { segmentsBelow } from "./download.ts";
import { modeOf } from "./modes.ts";
import { Progress } from "./progress.ts";
import { ago, printable, sized, table } from "./screen.ts";
import { Keys } from "./shell.ts";
import { sizeHere } from "./terminal.ts";

const command = (name: string): Command => commands[name]!;

test("arguments after the id belong to the command, with or without --", () => {
  for (const line of [
    ["-e", "A=1", "cl-1", "--", "ls", "--json"],
    ["--env=A=1", "cl-1", "ls", "--json"],
  ]) {
    const call = parse(command("exec"), line);
    assert.deepEqual(
      [call.words, call.rest, call.list("env"), call.isJson],
      [["cl-1"], ["ls", "--json"], ["A=1"], false],
    );
  }
  assert.deepEqual(parse(command("exec"), ["cl-1", "--", "echo", "--", "x"]).rest, ["echo", "--", "x"]);
  const shell = parse(command("shell"), ["cl-1", "--tag", "pty-1", "--", "sh", "--json"]);
  assert.deepEqual([shell.words, shell.text("tag"), shell.rest], [["cl-1"], "pty-1", ["sh", "--json"]]);
});

test("a wrong command line is a usage error", () => {
  const wrong: [string, string[]][] = [
    ["rm", []],
    ["ps", ["a", "b"]],
    ["ls", ["--nonsense"]],
    ["create", ["--vcpus"]],
  ];
  for (const [name, line] of wrong) assert.throws(() => parse(command(name), line), UsageError, `${name} ${line}`);
  for (const text of ["x", "-1", "1.5", ""])
    assert.throws(() => parse(command("create"), [`--vcpus=${text}`]).number("vcpus"), UsageError, text);
});

test("what is missing is named as the usage names it", () => {
  const expected: [name: string, line: string[], message: string][] = [
    ["rm", [], "ID is missing"],
    ["kill", ["cl-1"], "PID|TAG is missing"],
    ["cp", ["-r", "a"], "ID:DST is missing"],
    ["set", ["cl-1"], "KEY=VALUE is missing"],
    ["exec", ["-u", "nobody"], "ID is missing"],
    ["create", ["--label"], "--label takes KEY=VALUE"],
    ["create", ["--label", "--name", "a"], "--label takes KEY=VALUE"],
    ["create", ["-e"], "--env takes NAME=VALUE"],
  ];
  for (const [name, line, message] of expected) assert.throws(() => parse(command(name), line), { message });
  for (const [name, each] of Object.entries(commands)) {
    if (each.words[0] === 0) continue;
    assert.throws(
      () => parse(each, []),
      { message: /^[A-Z_:]+(\|[A-Z_:]+)* is missing$|^bash\|zsh\|fish is missing$/ },
      name,
    );
  }
});

test("an option that does not exist is told the one that is near", () => {
  const parsed = (option: string) => () => parse(command("create"), [option]);
  assert.throws(parsed("--memry"), { message: "Unknown option '--memry'; did you mean --memory?" });
  assert.throws(parsed("--nonsense"), { message: "Unknown option '--nonsense'" });
});

test("an option behind the capsule's id is not taken for the command", () => {
  const message = "options stand before ID, and a command that begins with - after --";
  assert.throws(() => parse(command("exec"), ["cl-1", "-e", "A=1", "--", "true"]), { message });
  assert.deepEqual(parse(command("exec"), ["cl-1", "--", "-x"]).rest, ["-x"]);
  assert.deepEqual(parse(command("exec"), ["-e", "A=1", "cl-1", "ls", "-l"]).rest, ["ls", "-l"]);
});

test("a command that does not exist is told the one that was meant", () => {
  const expected = {
    creat: "create",
    list: "ls",
    delete: "rm",
    ssh: "shell",
    "keys nw": undefined,
    nonsense: undefined,
  };
  for (const [typed, meant] of Object.entries(expected)) assert.equal(meantBy(typed, commands), meant, typed);
  const grouped = { "admin keys list": command("ls"), "admin ls": command("ls") };
  assert.equal(meantBy("admin key", grouped), "admin keys");
  assert.equal(meantBy("list", grouped), undefined);
});

test("a terminal without a size has none", () => {
  assert.deepEqual(sizeHere({ isTTY: true, columns: 90, rows: 24 }), { cols: 90, rows: 24 });
  for (const stream of [
    { isTTY: true, columns: 0, rows: 0 },
    { isTTY: false, columns: 90, rows: 24 },
  ])
    assert.equal(sizeHere(stream), undefined);
});

test("times are seconds, or a number with a unit", () => {
  const secondsOf = (text: string) => parse(command("create"), [`--lifetime=${text}`]).seconds("lifetime");
  const times = ["0", "90", "90s", "5m", "2h", "7d"];
  assert.deepEqual(times.map(secondsOf), [0, 90, 90, 300, 7_200, 604_800]);
  for (const text of ["", "s", "-1", "1.5h", "1 h", "1h30m", "5M", "1w", "9".repeat(13)])
    assert.throws(() => secondsOf(text), UsageError, text);
});

test("completions are for known shells only", async () => {
  for (const shell of ["csh", "constructor"]) {
    await assert.rejects(completion({ words: [shell], commands }), UsageError, shell);
  }
});

test("control characters in names do not reach the terminal", () => {
  fc.assert(fc.property(fc.string({ unit: "binary" }), (text) => assert.doesNotMatch(printable(text), /\p{Cc}/u)));
  assert.equal(table(["A", "B"], [["x\n", "y"]]), "A        B\nx\\u000a  y");
});

test("a table's last column is cut off at the window's width", () => {
  const rows = [
    ["1", "sleep 1000"],
    ["22", "ls"],
  ];
  assert.equal(table(["PID", "COMMAND"], rows, 12), "PID  COMMAND\n1    sleep …\n22   ls");
  assert.equal(table(["PID", "COMMAND"], rows, 0), "PID  COMMAND\n1    sleep 1000\n22   ls");
  assert.equal(table(["PID", "COMMAND"], rows), "PID  COMMAND\n1    sleep 1000\n22   ls");
});

test("a path that is not below the folder is refused", () => {
  assert.deepEqual(segmentsBelow("/a/b", "/a/b/c/d"), ["c", "d"]);
  assert.deepEqual(segmentsBelow("/", "/etc"), ["etc"]);
  const hostile = ["/a/b", "/a/b/", "/a/bc", "/a/b/../../etc", "/a/b/./c", "/a/b//c", "/etc", "c", "", "/a/b/c\0"];
  for (const path of hostile) assert.throws(() => segmentsBelow("/a/b", path), /which is not in/, path);
});

test("modes are parsed, of folders also setgid and sticky", () => {
  const mode = (permissions: string) => modeOf({ permissions } as Parameters<typeof modeOf>[0]);
  const modes = { "-rwxr-x---": 0o750, "-rwsr-sr-T": 0o754, "-rw-r--r--": 0o644, "drwx------": 0o700 };
  const special = { "drwxrwsr-x": 0o2775, drwxrwSrwt: 0o3767, "dr-s--x--T": 0o1510 };
  for (const [text, expected] of Object.entries({ ...modes, ...special })) assert.equal(mode(text), expected, text);
});

test("Ctrl-] d detaches, Ctrl-] Ctrl-] types Ctrl-], other keys are passed on, however they are split", () => {
  const typed = (...pieces: string[]) => {
    let timesLeft = 0;
    const keys = new Keys(() => timesLeft++);
    const out = pieces.map((piece) => Buffer.from(keys.typed(Buffer.from(piece))).toString()).join("");
    return [out, timesLeft];
  };
  assert.deepEqual(typed("ab\x1d", "d", ""), ["ab", 1]);
  assert.deepEqual(typed("\x1d\x1dx"), ["\x1dx", 0]);
  assert.deepEqual(typed("\x1d[A"), ["\x1d[A", 0]);
});

test("sizes and ages have few digits", () => {
  assert.deepEqual([0, 1023, 1024, 1_572_864, 250 * 2 ** 20].map(sized), [
    "0 B",
    "1023 B",
    "1.0 KiB",
    "1.5 MiB",
    "250 MiB",
  ]);
  const now = Date.parse("2030-01-10T00:00:00Z");
  const ages = ["2030-01-09T23:59:50Z", "2030-01-09T23:00:00Z", "2030-01-01T00:00:00Z", null].map((at) => ago(at, now));
  assert.deepEqual(ages, ["10 s ago", "1 h ago", "9 days ago", "never"]);
});

test("progress is drawn on terminals only, and its line is erased", () => {
  for (const isTTY of [true, false]) {
    const drawn: string[] = [];
    const stream = { isTTY, columns: 80, write: (text: string) => drawn.push(text) } as unknown as NodeJS.WriteStream;
    const progress = new Progress(true, stream);
    progress.expects(100);
    progress.begins("file");
    progress.moved(50);
    progress.ends();
    assert.equal(progress.doneBytes, 50);
    assert.equal(/\[#{12} {12}\] {2}50 %.*file/.test(drawn[0] ?? ""), isTTY);
    assert.equal(drawn.at(-1) === "\r\x1b[K", isTTY);
  }
});

test("every shell completes every command and option, and quotes are balanced", () => {
  for (const [shell, script] of Object.entries(scripts)) {
    const text = script(commands);
    for (const [name, { options }] of Object.entries(commands)) {
      for (const word of name.split(" ")) assert.match(text, new RegExp(`\\b${word}\\b`), `${shell}: ${name}`);
      for (const option of Object.keys(options))
        assert.match(text, new RegExp(`(--|-l )${option}\\b`), `${shell}: ${option}`);
    }
    for (const line of text.split("\n"))
      assert.equal(line.replaceAll("'\\''", "").split("'").length % 2, 1, `${shell}: ${line}`);
  }
});
