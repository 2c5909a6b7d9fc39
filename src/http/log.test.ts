import assert from "node:assert/strict";
import { test } from "node:test";
import pino from "pino";
import { quietUntilUsed } from "./log.ts";

function caught() {
  const lines: Record<string, unknown>[] = [];
  let children = 0;
  const options = { level: "trace", base: null, timestamp: false, onChild: () => void children++ };
  const logger = pino(options, { write: (line) => void lines.push(JSON.parse(line)) });
  return { log: quietUntilUsed(logger), lines, children: () => children };
}

test("a request that says nothing costs no logger, and one that does says its id at any depth", () => {
  const { log, lines, children } = caught();
  const requests = ["a", "b", "c"].map((requestId) => log.child({}).child({ requestId }));
  assert.equal(children(), 0);
  requests[1]?.error({ code: 1 }, "%s failed", "it");
  requests[1]?.child({ part: 2 }).info("again");
  assert.deepEqual(lines, [
    { level: 50, requestId: "b", code: 1, msg: "it failed" },
    { level: 30, requestId: "b", part: 2, msg: "again" },
  ]);
});

test("every level of the logger is there", () => {
  const { log, lines } = caught();
  const child = log.child({});
  for (const level of ["trace", "debug", "info", "warn", "error", "fatal"] as const) child[level]("said");
  child.silent("unsaid");
  assert.deepEqual(
    lines.map(({ level }) => level),
    [10, 20, 30, 40, 50, 60],
  );
  assert.equal(child.level, "trace");
});
