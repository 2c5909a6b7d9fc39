/** The SDK's methods and the examples, against a real server with real VMs. */
import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { readdirSync } from "node:fs";
import { copyFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { WebSocket as NpmWebSocket } from "ws";
import { type Capsule, Client, hasCode, ServiceError, type WebSocketClass } from "../../src/sdk/sdk.ts";
import { lastingPort } from "../lasting-port.ts";
import { Server } from "../server.ts";
import { waitFor } from "../wait-for.ts";
import { runtimes } from "./runtimes.ts";
import { Project, root, run } from "./sdk-package.ts";

const deadline = { timeout: 400_000 };
const examples = join(root, "examples");

let server: Server;
let client: Client;
/** For the tests that leave it running. */
let capsule: Capsule;
let project: Project;

before(async () => {
  project = await Project.create();
  server = await Server.start({ env: { CAPSULE_PORT: await lastingPort() } });
  client = new Client({ url: server.url, apiKey: server.apiKey });
  capsule = await client.create();
});

after(async () => {
  await project?.[Symbol.asyncDispose]();
  assert.deepEqual(await server?.log.unexpected(), []);
  await server?.[Symbol.asyncDispose]();
});

const refusedWith = (code: string) => (error: unknown) => error instanceof ServiceError && error.code === code;

test("a capsule is created, found, listed, and destroyed at the end of its block", deadline, async () => {
  let id: string;
  {
    await using mine = await client.create({ memoryMb: 512, timeoutSec: 500, wait: false });
    id = mine.id;
    assert.equal((await mine.until("running")).status, "running");
    assert.deepEqual([mine.info.memoryMb, mine.info.timeoutSec, mine.info.lastActiveAt], [512, 500, null]);
    await mine.ping();
    assert.notEqual((await mine.refresh()).info.lastActiveAt, null);
    assert.equal((await client.connect(id)).id, id);
    assert.deepEqual(
      (await client.list()).map((each) => each.id),
      [id, capsule.id],
    );
    assert.equal(JSON.parse(JSON.stringify(mine)).timeout_sec, 500);
  }
  await assert.rejects(client.connect(id), refusedWith("not_found"));
});

test("exec gives output, exit code and bytes; a long limit uses a stream, with the same result", deadline, async () => {
  for (const timeoutSec of [20, 0]) {
    const args = ["-c", 'echo "$X in $PWD"; printf "\\377\\001" >&2; exit 7'];
    const result = await capsule.exec("sh", args, { envs: { X: "é" }, cwd: "/tmp", timeoutSec });
    assert.deepEqual([result.stdout, result.exitCode, result.isTruncated], ["é in /tmp\n", 7, false]);
    assert.deepEqual([...result.stderrBytes], [255, 1]);
    assert.equal((await capsule.exec("no-such-command", [], { timeoutSec })).exitCode, 127);
    await assert.rejects(capsule.exec("true", [], { cwd: "/nope", timeoutSec }), refusedWith("invalid_request"));
  }
  await assert.rejects(capsule.stream("true", [], { cwd: "/nope" }), refusedWith("invalid_request"));
});

test("an exec that times out throws with its partial output", deadline, async () => {
  const late = async (timeoutSec: number) => {
    const error = await capsule.exec("sh", ["-c", "echo early; sleep 300"], { timeoutSec }).catch((thrown) => thrown);
    assert.ok(hasCode(error, "timeout"), String(error));
    return JSON.stringify(error);
  };
  const soon = await late(5);
  // The time begins before the shell, which may start slowly on a busy machine.
  assert.match(soon.includes("early") ? soon : await late(60), /early/);
});

test("a signal aborts the call and kills the command", deadline, async () => {
  const stop = new AbortController();
  const running = capsule.exec("sleep", ["77"], { signal: stop.signal });
  await waitFor("the process is listed", async () => (await capsule.processes()).some(({ args }) => args[0] === "77"));
  stop.abort(new Error("enough"));
  await assert.rejects(running, /enough/);
  await waitFor("the process has ended", async () => !(await capsule.processes()).some(({ args }) => args[0] === "77"));
});

test("streamed output comes while the command runs; leaving the loop kills it", deadline, async () => {
  const stream = await capsule.stream("sh", ["-c", "echo one; echo two >&2; read never < /dev/zero; sleep 66"]);
  const seen: string[] = [];
  for await (const { channel, text } of stream) {
    seen.push(`${channel} ${text.trim()}`);
    if (seen.length === 2) break;
  }
  assert.deepEqual(seen.sort(), ["stderr two", "stdout one"]);
  await waitFor(
    "the process has ended",
    async () => !(await capsule.processes()).some(({ pid }) => pid === stream.pid),
  );
  const whole = await capsule.stream("sh", ["-c", "printf '\\303'; sleep 0.1; printf '\\251'; exit 3"]);
  let text = "";
  for await (const chunk of whole) text += chunk.text;
  assert.deepEqual([text, whole.exitCode, await whole.wait()], ["é", 3, 3]);
  await assert.rejects(capsule.stream("no-such-command"), refusedWith("invalid_request"));
});

test("a stream whose socket can be paused applies backpressure to its command", deadline, async () => {
  const WebSocket = NpmWebSocket as unknown as WebSocketClass;
  const same = await new Client({ url: server.url, apiKey: server.apiKey, WebSocket }).connect(capsule.id);
  const stream = await same.stream("sh", ["-c", "head -c 20000000 /dev/zero; echo done >&2"]);
  let [sizeBytes, isDone] = [0, false];
  for await (const { channel, bytes } of stream) {
    if (channel === "stdout") sizeBytes += bytes.length;
    else isDone = true;
  }
  assert.deepEqual([sizeBytes, isDone, stream.exitCode], [20_000_000, true, 0]);
});

test("a background process is listed, attached to, waited for and killed", deadline, async () => {
  await capsule.exec("mkfifo", ["/tmp/gate"]);
  const script = "read line < /tmp/gate; echo $line; exit 4";
  const again = await capsule.spawn("sh", ["-c", script], { tag: "again", cwd: "/tmp" });
  assert.ok((await capsule.processes()).some(({ tag, pid }) => tag === "again" && pid === again.pid));
  const output = await again.attach();
  const waiting = capsule.process("again").wait();
  await capsule.exec("sh", ["-c", "echo open > /tmp/gate"]);
  let text = "";
  for await (const chunk of output) text += chunk.text;
  assert.deepEqual([text, output.exitCode, await waiting], ["open\n", 4, 4]);
  assert.equal(await capsule.process("again").wait(), 4); // it has ended, and is remembered
  await assert.rejects(again.attach(), refusedWith("not_found"));
  await assert.rejects(capsule.process("nobody").wait(), refusedWith("not_found"));
  assert.equal(await (await capsule.spawn("false")).wait(), 1);
  const kept = await again.logs();
  assert.deepEqual([kept.text, kept.droppedBytes], ["open\n", 0]);
  assert.equal((await again.logs({ stream: "stderr", tail: 1 })).text, "");
  const talker = await capsule.spawn("sh", ["-c", "echo one; sleep 0.2; echo two >&2; sleep 0.2; echo three; exit 5"]);
  const { stdout, stderr, exitCode, droppedBytes } = await talker.result();
  assert.deepEqual([stdout, stderr, exitCode, droppedBytes], ["one\nthree\n", "two\n", 5, 0]);
  const rest = await talker.attach({ from: 4 });
  assert.equal(await rest.wait(), 5);
  assert.equal(rest.nextOffset, 14);
  await assert.rejects(talker.attach({ from: 15 }), refusedWith("invalid_request"));
  const endless = await capsule.spawn("sleep", ["1000"]);
  await assert.rejects(endless.wait({ timeoutMs: 10 }), refusedWith("timeout"));
  await endless.kill();
  assert.equal(await endless.wait(), 137);
  await assert.rejects(endless.kill(), refusedWith("not_found"));
});

test("files are written from and read into every content type", deadline, async () => {
  const { files } = capsule;
  const made = await files.mkdir("/data/a/b");
  assert.deepEqual([made.type, made.path], ["directory", "/data/a/b"]);
  const bytes = new Uint8Array(randomBytes(300_000));
  async function* pieces() {
    for (let at = 0; at < bytes.length; at += 7_777) yield bytes.subarray(at, at + 7_777);
  }
  const contents = {
    bytes,
    blob: new Blob([bytes]),
    buffer: bytes.buffer,
    pieces: pieces(),
    stream: new Blob([bytes]).stream(),
  };
  for (const [name, content] of Object.entries(contents)) {
    await files.write(`/data/${name}`, content as Uint8Array);
    assert.equal(hashOf(await files.read(`/data/${name}`)), hashOf(bytes), name);
  }
  await files.write("/data/ünïcode", "täxt");
  assert.equal(await files.readText("/data/ünïcode"), "täxt");
  const chunks: Uint8Array[] = [];
  for await (const chunk of (await files.readStream("/data/bytes")) as unknown as AsyncIterable<Uint8Array>)
    chunks.push(chunk);
  assert.equal(hashOf(Buffer.concat(chunks)), hashOf(bytes));
  const listed = await files.list("/data", { depth: 2 });
  assert.deepEqual(
    listed.map(({ path }) => path),
    [
      "/data/a",
      "/data/a/b",
      ...Object.keys(contents)
        .sort()
        .map((name) => `/data/${name}`),
      "/data/ünïcode",
    ],
  );
  assert.equal((await files.stat("/data/bytes"))?.size, bytes.length);
  await files.remove("/data");
  assert.equal(await files.stat("/data"), undefined);
  await assert.rejects(files.read("/data/bytes"), refusedWith("not_found"));
});

test("a terminal survives a restart of the server, and its output comes once", deadline, async () => {
  const states: string[] = [];
  const pty = await capsule.pty({
    ...{ args: ["--norc"], envs: { PS1: "$ " }, onState: (state) => states.push(state) },
    reconnectMs: deadline.timeout, // for a server that starts slowly
  });
  let seen = "";
  const reading = (async () => {
    for await (const bytes of pty) seen += new TextDecoder().decode(bytes);
  })();
  await pty.write("stty -echo; echo first-$((1 + 1))\n");
  await waitFor("the first line", () => seen.includes("first-2"));
  await server.kill("SIGKILL");
  await waitFor("the terminal reconnects", () => states.includes("reconnecting"));
  await pty.write("stty size; echo second-$((1 + 2))\n"); // kept until the terminal is connected again
  pty.resize(91, 31);
  server.log.expect(/"code":"unavailable","msg":"request failed"/); // the terminal comes back before the guest's agent has answered
  await server.start();
  await waitFor("the second line", () => seen.includes("second-3"));
  assert.match(seen, /31 91/);
  assert.equal(seen.match(/first-2/g)?.length, 1);
  await pty.write("exit 6\n");
  assert.equal(await pty.wait(), 6);
  await reading;
  assert.deepEqual(states, ["live", "reconnecting", "live"]);
});

test("a detached terminal is joined again with the missed output; an unknown one is refused", deadline, async () => {
  const left = await capsule.pty({ cmd: "/bin/sh" });
  await capsule.exec("mkfifo", ["/tmp/away"]);
  await left.write("read go < /tmp/away; echo while-$((40 + 2))-away\n");
  left.detach();
  await assert.rejects(left.wait(), /detached/);
  await capsule.refresh(); // when this is answered, the service has seen the terminal's client go
  await capsule.exec("sh", ["-c", "echo go > /tmp/away"]);
  const back = await capsule.rejoin(left.tag);
  assert.equal(back.pid, left.pid);
  let seen = "";
  for await (const bytes of back) {
    seen += new TextDecoder().decode(bytes);
    if (seen.includes("while-42-away")) back.kill();
  }
  assert.equal(back.exitCode, 137);
  await assert.rejects(capsule.rejoin("pty-00000000"), refusedWith("not_found"));
});

test("a paused capsule refuses every call; a resumed one continues", deadline, async () => {
  const pty = await capsule.pty();
  const ended = assert.rejects(pty.wait(), refusedWith("invalid_state"));
  assert.equal((await capsule.pause()).status, "paused");
  await ended;
  for (const call of [
    () => capsule.exec("true"),
    () => capsule.pty(),
    () => capsule.stream("true"),
    () => capsule.pause(),
  ])
    await assert.rejects(call(), refusedWith("invalid_state"));
  assert.equal((await capsule.resume()).status, "running");
  const back = await capsule.rejoin(pty.tag);
  assert.equal(back.pid, pty.pid);
  back.kill();
});

test("a stopped capsule refuses commands, and starts from its disk without its processes", deadline, async () => {
  await using own = await client.create();
  await own.files.write("/root/kept", "kept");
  const job = await own.spawn("sleep", ["1000"]);
  assert.equal((await own.stop()).status, "stopped");
  await assert.rejects(own.exec("true"), refusedWith("invalid_state"));
  await assert.rejects(own.stop(), refusedWith("invalid_state"));
  assert.equal((await own.start()).status, "running");
  await assert.rejects(own.start(), refusedWith("invalid_state"));
  assert.equal(await own.files.readText("/root/kept"), "kept");
  await assert.rejects(job.wait(), refusedWith("not_found"));
});

test("snapshots become templates, and events report every step", deadline, async () => {
  const events = client.events();
  assert.deepEqual((await events.next()).value, { type: "reset", reason: "new" });
  const made = await client.create({ wait: false });
  await made.until("running");
  const template = await made.snapshot("sdk-test");
  assert.deepEqual([template.name, template.type, template.memoryMb], ["sdk-test", "snapshot", 512]);
  assert.ok((await client.templates.list({ type: "snapshot" })).some(({ name }) => name === "sdk-test"));
  const second = await client.create({ template: "sdk-test" });
  await assert.rejects(second.snapshot("sdk-test"), refusedWith("template_name_taken"));
  await second.snapshot("sdk-test", { overwrite: true });
  await client.templates.remove("sdk-test");
  await assert.rejects(client.templates.remove("sdk-test"), refusedWith("not_found"));
  const heard: string[] = [];
  for await (const event of events) {
    if (event.type === "capsule") heard.push(`${event.capsule.id} ${event.capsule.status}`);
    else heard.push(event.type);
    if (event.type === "template-removed") break;
  }
  assert.ok(heard.includes(`${made.id} running`), heard.join("\n"));
  for (const type of ["capsule-removed", "template"]) assert.ok(heard.includes(type), type);
});

test("keys, session, sign-in link, limits and health", deadline, async () => {
  const made = await client.keys.create("for a test");
  const other = new Client({ url: server.url, apiKey: made.key });
  assert.deepEqual([(await other.session()).keyId, (await other.session()).team], [made.id, "default"]);
  assert.ok((await other.keys.list()).some(({ id, current }) => id === made.id && current));
  await client.keys.revoke(made.id);
  await assert.rejects(other.session(), refusedWith("unauthorized"));
  const { url } = await client.signInLink();
  const token = new URL(url).hash.replace("#token=", "");
  const { client: signedIn } = await Client.signIn(token, { url: server.url });
  assert.equal((await signedIn.session()).team, "default");
  await assert.rejects(Client.signIn(token, { url: server.url }));
  assert.equal((await client.limits()).memoryMinMb, 128);
  assert.equal((await client.health()).ready, true);
});

for (const { name, program } of runtimes) {
  test(`the package and its command line work in ${name}`, deadline, async () => {
    const runtime = await program();
    const env = { ...process.env, CAPSULE_URL: server.url, CAPSULE_API_KEY: server.apiKey };
    const scenario = join(project.folder, "scenario.js"); // beside the installed package
    await copyFile(join(import.meta.dirname, "scenario.js"), scenario);
    const { stdout } = await run(runtime, [scenario], { cwd: project.folder, env });
    assert.deepEqual(JSON.parse(stdout), {
      created: "running",
      exec: ["hellö\n", [255], 7],
      unlimited: true,
      sh: ["4321:1\n", "grüße", { stdout: "4321:1\n", stderr: "grüße" }, 4],
      unknown: ["TypeError", 'exec has no option "timeout"'],
      noUser: "invalid_request",
      stream: [{ stdout: "out\n", stderr: "err\n" }, 3],
      afterBreak: 1,
      files: [2 << 20, true, 2 << 20],
      text: "text",
      listed: ["blob", "made", "text"],
      watched: { event: "remove", path: "/tmp/text" },
      removed: true,
      pty: [true, 5],
      paused: "paused",
      refused: true,
      streamRefused: true,
      resumed: ["running", true],
      job: 128 + 9,
      aborted: "TimeoutError",
      unauthorized: true,
      unreachable: "unreachable",
      event: "reset",
      destroyed: true,
    });
    const words = ["exec", capsule.id, "--", "sh", "-c", "echo from the program"];
    const ran = await run(runtime, [join(project.installed, "capsule.js"), ...words], { cwd: project.folder, env });
    assert.equal(ran.stdout, "from the program\n");
  });
}

// The one that needs an API is run by test/network/inject.test.ts.
const runnable = readdirSync(examples).filter((each) => each.endsWith(".ts") && each !== "api-without-key.ts");
for (const name of runnable) {
  test(`examples/${name} runs`, deadline, async () => {
    const env = { ...process.env, CAPSULE_URL: server.url, CAPSULE_API_KEY: server.apiKey };
    const { stdout } = await run(process.execPath, [join(examples, name)], { env });
    const expected: Record<string, RegExp> = {
      "agent-sandbox.ts": /answer: 45/,
      "long-job.ts": /^output: step 1\nended with 0 after 4 steps\n$/,
      "templates.ts": /started with: ready\nstarted with: ready\n$/,
      "terminal.ts": /^the output was kept\nthe shell ended with 5\n$/,
    };
    assert.match(stdout, expected[name]!);
  });
}

function hashOf(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}

/** Asks again until it is so; the test's own deadline ends it. */
