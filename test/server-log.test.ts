import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { ServerLog } from "./server-log.ts";

const folder = mkdtempSync(join(tmpdir(), "server-log-"));
after(() => rmSync(folder, { recursive: true }));
const file = join(folder, "server.log");
const line = (level: number, msg: string) => JSON.stringify({ level, msg });

test("lines of level error and above are errors unless they were announced; so is output that is no log line", async () => {
  const lines = [line(30, "listening"), line(50, "socket failed"), line(60, "fatal"), "Error: at", line(40, "slow")];
  writeFileSync(file, `${lines.join("\n")}\n{"level":50,"msg":"cut by the en`);
  const log = new ServerLog(file, [/"socket failed"/]);
  assert.deepEqual(await log.unexpected(), [line(60, "fatal"), "Error: at"]);
  await assert.rejects(log.assertExpected(), /logged 2 errors that no test announced:\n.*fatal.*\nError: at$/);
  log.expect(/"fatal"/, /^Error/);
  await log.assertExpected();
});

test("a server that was never started has logged nothing", async () => {
  assert.deepEqual(await new ServerLog(join(folder, "none")).unexpected(), []);
});
