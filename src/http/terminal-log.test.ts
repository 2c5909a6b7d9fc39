import assert from "node:assert/strict";
import { test } from "node:test";
import pino from "pino";
import { describeError } from "./log.ts";
import { shortLine, TerminalLog } from "./terminal-log.ts";

test("a line for people has the time, level, message, error and fields, and no control characters of theirs", () => {
  let said = "";
  const to = new TerminalLog({
    write: (text) => {
      said += text;
    },
  });
  const options = { base: null, serializers: { err: describeError }, timestamp: pino.stdTimeFunctions.isoTime };
  pino(options, to).warn({ err: new Error("no\u001b[31m"), capsule: "cl-1", n: 2 }, "a capsule failed");
  assert.match(said, /^\d\d:\d\d:\d\d warn {2}a capsule failed "no\\u001b\[31m" capsule=cl-1 n=2\n$/);
});

test("a long value is cut", () => {
  const line = shortLine(JSON.stringify({ level: 30, time: 0, msg: "m", path: "x".repeat(1_000) }));
  assert.ok(line.length < 240 && line.endsWith("…\n"));
});
