/** What a program does with the package: every part of it once. Prints what it has seen, as JSON. */
import { Capsule, Client, ConnectionError, hasCode } from "capsule-sdk";

const client = new Client(); // on Node 20 with the WebSocket of the package ws
const seen = {};

const capsule = await client.create({ timeoutSec: 600 });
seen.created = capsule.status;
const { stdout, stderrBytes, exitCode } = await capsule.exec("sh", ["-c", "echo hellö; printf '\\377' >&2; exit 7"]);
seen.exec = [stdout, [...stderrBytes], exitCode];
const unlimited = await capsule.exec("cat", ["/etc/hostname"], { timeoutSec: 0 });
seen.unlimited = unlimited.stdout === `${capsule.id}\n` && unlimited.exitCode === 0;

const live = { stdout: "", stderr: "" };
const line = await capsule.sh('echo "$(id -u):$A" && cat >&2 && exit 4', {
  ...{ user: "4321", envs: { A: "1" }, stdin: "grüße" },
  onStdout: (text) => {
    live.stdout += text;
  },
  onStderr: async (text) => {
    live.stderr += text;
  },
});
seen.sh = [line.stdout, line.stderr, live, line.exitCode];
seen.unknown = await capsule.exec("true", [], { timeout: 5 }).catch((error) => [error.name, error.message]);
seen.noUser = await capsule.exec("true", [], { user: "nobody-of-this-name" }).catch(({ code }) => code);

const stream = await capsule.stream("sh", ["-c", "echo out; echo err >&2; exit 3"]);
const streamed = { stdout: "", stderr: "" };
for await (const { channel, text } of stream) streamed[channel] += text;
seen.stream = [streamed, stream.exitCode];
const endless = await capsule.stream("sh", ["-c", "yes"]);
for await (const { bytes } of endless) if (bytes.length > 0) break;
do seen.afterBreak = (await capsule.exec("pgrep", ["-x", "yes"])).exitCode;
while (seen.afterBreak === 0); // until it is gone; the test's deadline ends it

const mib = new Uint8Array(1 << 20).map((_, at) => at % 251);
await capsule.files.write("/tmp/blob", new Blob([mib, mib]).stream());
await capsule.files.write("/tmp/text", "text");
const read = await capsule.files.read("/tmp/blob");
let flowed = 0;
for await (const chunk of await capsule.files.readStream("/tmp/blob")) flowed += chunk.length;
seen.files = [read.length, read.every((byte, at) => byte === (at % (1 << 20)) % 251), flowed];
seen.text = await capsule.files.readText("/tmp/text");
await capsule.files.mkdir("/tmp/made");
seen.listed = (await capsule.files.list("/tmp")).map(({ name }) => name).sort();
const watch = await capsule.files.watch("/tmp", { recursive: true });
await capsule.files.remove("/tmp/text");
for await (const change of watch) {
  seen.watched = change;
  break;
}
seen.removed = (await capsule.files.stat("/tmp/text")) === undefined;

const job = await capsule.spawn("sh", ["-c", "sleep 1000"], { tag: "job" });
const pty = await capsule.pty({ cols: 77, rows: 11 });
await pty.write("stty size; exit 5\n");
let shown = "";
for await (const bytes of pty) shown += new TextDecoder().decode(bytes);
seen.pty = [/^11 77\r$/m.test(shown), await pty.wait()];

await capsule.pause();
seen.paused = capsule.status;
seen.refused = await capsule.exec("true").catch((error) => hasCode(error, "invalid_state"));
seen.streamRefused = await capsule.stream("true").catch((error) => hasCode(error, "invalid_state"));
await capsule.resume();
seen.resumed = [capsule.status, (await capsule.processes()).some(({ tag }) => tag === "job")];
const exited = job.wait();
await job.kill("SIGKILL");
seen.job = await exited;

const aborted = capsule.exec("sleep", ["100"], { signal: AbortSignal.timeout(500) });
seen.aborted = await aborted.catch((error) => error.name);
seen.unauthorized = await Capsule.list({ apiKey: "x" }).catch((error) => hasCode(error, "unauthorized"));
const nowhere = new Client({ url: "http://127.0.0.1:2" }).capsule(capsule.id); // no program listens on that port
seen.unreachable = await nowhere
  .ping({ signal: AbortSignal.timeout(20_000) })
  .catch((error) => error instanceof ConnectionError && error.code);
for await (const event of client.events()) {
  seen.event = event.type;
  break;
}
await capsule.destroy();
seen.destroyed = await client.connect(capsule.id).catch((error) => hasCode(error, "not_found"));
console.log(JSON.stringify(seen));
