/** Lines of the log: which requests get one, and a standard output that nobody reads. */
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, constants, mkdtempSync, openSync, readFileSync, readSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { Api, keys } from "../../test/api.ts";

const requestLines = ({ log }: Api) =>
  log.map((line) => JSON.parse(line)).filter(({ msg, path }) => msg === "request" && path !== "/openapi.json");

test("a path in the log is cut to 512 characters", async () => {
  const api = new Api();
  await api.call("GET", `/v1/capsules/${"x".repeat(600)}`);
  const [{ path }] = requestLines(api);
  assert.equal(path, `/v1/capsules/${"x".repeat(498)}…`);
});

test("refused requests without a key have 100 lines at once; the next line says how many have none", async () => {
  const api = new Api({ refused_keys_per_sec: 1_000 });
  for (let sent = 0; sent < 160; sent++) await api.app.inject("/v1/limits");
  const refused = requestLines(api).length;
  assert.ok(refused >= 100, `${refused} lines`);
  await api.app.inject({ url: "/v1/limits", headers: { "x-api-key": keys.red } });
  const lines = requestLines(api);
  const unlogged = lines.reduce((sum, line) => sum + (line.unlogged ?? 0), 0);
  assert.equal(lines.length + unlogged, 161);
  assert.equal(lines.at(-1).status, 200);
});

/** Writes 2 MB, then one line more when it is told to. */
const program = `
  import { StandardOutput } from ${JSON.stringify(join(import.meta.dirname, "log.ts"))};
  const out = new StandardOutput();
  for (let i = 0; i < 20_000; i++) out.write(JSON.stringify({ i, text: "x".repeat(90) }) + "\\n");
  process.stderr.write("written\\n");
  process.stdin.once("data", () => process.exit());`;

function start(stdout: "pipe" | number) {
  return spawn(process.execPath, ["--input-type=module-typescript", "--eval", program], {
    stdio: ["pipe", stdout, "pipe"],
    timeout: 60_000,
    killSignal: "SIGKILL",
  });
}

function assertWhole(text: string): void {
  const lines = text.trimEnd().split("\n");
  const last = lines.pop()!; // a part of it may have been written
  let before = -1;
  for (const line of lines) {
    const { i, text: written } = JSON.parse(line);
    assert.ok(i > before && written === "x".repeat(90), line);
    before = i;
  }
  assert.ok(last.length > 0 && lines.length < 19_999, `${lines.length} lines`);
}

test("a socket that nobody reads does not stop the writer", async () => {
  const child = start("pipe");
  const [said] = await once(child.stderr!, "data");
  assert.match(String(said), /written/);
  child.stdin!.write("go on\n");
  let text = "";
  for await (const chunk of child.stdout!) text += chunk;
  assertWhole(text);
});

test("a pipe that nobody reads does not stop the writer, and stays as it was for its other holders", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "log-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const path = join(folder, "pipe");
  execFileSync("mkfifo", [path]);
  const both = openSync(path, constants.O_RDWR | constants.O_NONBLOCK);
  t.after(() => closeSync(both));
  const end = openSync(path, constants.O_WRONLY);
  const child = start(end);
  const [said] = await once(child.stderr!, "data");
  assert.match(String(said), /written/);
  const [, flags = ""] = /^flags:\s*(\d+)$/m.exec(readFileSync(`/proc/self/fdinfo/${end}`, "utf8")) ?? [];
  assert.equal(Number.parseInt(flags, 8) & constants.O_NONBLOCK, 0);
  closeSync(end);
  const exit = once(child, "exit");
  child.stdin!.write("go on\n");
  await exit;
  const bytes = Buffer.alloc(1 << 20);
  assertWhole(bytes.toString("utf8", 0, readSync(both, bytes)));
});
