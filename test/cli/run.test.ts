/** The commands `run`, `inspect`, `events`, `login`, `context` and `version`, against a real server with real VMs. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Client } from "../client.ts";
import { Server } from "../server.ts";
import { waitFor } from "../wait-for.ts";
import { CommandLine, said } from "./command-line.ts";

const deadline = { timeout: 400_000 };

let server: Server;
let line: CommandLine;
let client: Client;
let folder: string;

before(async () => {
  server = await Server.start();
  folder = await mkdtemp(join(tmpdir(), "capsule-run-"));
  line = new CommandLine({ CAPSULE_DATA: server.dataDir, XDG_CONFIG_HOME: folder });
  client = await Client.connect(server.url, server.apiKey);
});

after(async () => {
  client?.close();
  await rm(folder, { recursive: true, force: true });
  await server?.[Symbol.asyncDispose]();
});

async function capsules(): Promise<{ id: string; name: string | null }[]> {
  return (await client.expect(200, "GET", "/v1/capsules")).json;
}

test("run passes input, output and exit code on, and with --rm leaves nothing behind", deadline, async () => {
  const command = ["--", "sh", "-c", 'cat; echo "$WORD" >&2; exit 7'];
  const ended = await line.run(["run", "--rm", "-e", "WORD=said", ...command], { input: "passed on" });
  assert.deepEqual([ended.stdout, ended.stderr, ended.code], ["passed on", "said\n", 7]);
  const missing = await line.run(["run", "--rm", "--", "no-such-command"]);
  assert.equal(missing.code, 127);
  const refused = await line.run(["run", "--rm", "no-such-template", "--", "true"]);
  assert.equal(refused.code, 125);
  assert.deepEqual(await capsules(), []);
});

test("run destroys the capsule after Ctrl-C, and when nobody reads its output", deadline, async () => {
  const interrupted = line.start(["run", "--rm", "--", "sh", "-c", "echo up; sleep 1000"]);
  await said(interrupted.stdout, /up/);
  interrupted.kill("SIGINT");
  await once(interrupted, "close");
  assert.deepEqual(await capsules(), []);
  const early = line.start(["run", "--rm", "--json", "--", "sleep", "1000"]);
  await waitFor("the capsule's command runs", async () => {
    const [made] = await capsules();
    if (made === undefined) return false;
    const { json } = await client.call("GET", `/v1/capsules/${made.id}/processes`);
    return JSON.stringify(json).includes('"sleep"');
  });
  early.kill("SIGTERM");
  await once(early, "close");
  assert.deepEqual(await capsules(), [], "with --json");
  const unread = line.start(["run", "--rm", "--", "sh", "-c", "while :; do echo up; done"]);
  await said(unread.stdout, /up/);
  unread.stdout.destroy();
  await once(unread, "close");
  assert.deepEqual(await capsules(), []);
});

test("run without --rm keeps the capsule and names it; inspect prints its fields", deadline, async () => {
  const ended = await line.run(["run", "--name", "kept", "--memory", "256M", "--", "true"]);
  const [{ id } = { id: "" }] = await capsules();
  assert.deepEqual([ended.code, ended.stderr], [0, `capsule run: ${id}\n`]);
  const inspected = await line.run(["inspect", "kept"]);
  const { json: view } = await client.expect(200, "GET", `/v1/capsules/${id}`);
  assert.equal(view.memory_mb, 256);
  assert.equal(inspected.stdout, `${JSON.stringify(view, undefined, 2)}\n`);
  assert.equal((await line.run(["inspect", "--json", "kept"])).stdout, `${JSON.stringify(view)}\n`);
  await client.expect(204, "DELETE", `/v1/capsules/${id}`);
});

test("usage errors do nothing", deadline, async () => {
  for (const args of [
    ["run"],
    ["run", "--rm", "minimal"],
    ["run", "--memory", "1T", "--", "true"],
    ["create", "a", "-t", "b"],
    ["create", "-e", "WORD"],
    ["run", "-e", "WORD", "--", "true"],
  ]) {
    assert.equal((await line.run(args)).code, 2, args.join(" "));
  }
  assert.deepEqual(await capsules(), []);
});

test("events prints changes as they come", deadline, async () => {
  const listening = line.start(["events", "--json"]);
  await said(listening.stdout, /reset/);
  const capsule = await client.capsule({ name: "seen" });
  await client.expect(204, "DELETE", capsule.path);
  assert.match(await said(listening.stdout, /capsule-removed/), new RegExp(capsule.id));
  listening.kill("SIGTERM");
  const [code] = await once(listening, "close");
  assert.equal(code, 0);
});

test("login tries a key and keeps it, and context chooses; variables go first", deadline, async () => {
  const elsewhere = new CommandLine({ CAPSULE_DATA: join(folder, "none"), XDG_CONFIG_HOME: folder });
  assert.equal((await elsewhere.run(["ls"])).code, 1, "no key yet");
  const wrong = await elsewhere.run(["login", server.url], { input: `capk_${"0".repeat(48)}\n` });
  assert.equal(wrong.code, 1);
  const file = join(folder, "capsule/contexts.json");
  await assert.rejects(stat(file), { code: "ENOENT" });
  assert.equal(
    (await elsewhere.run(["login", "--context", "work", `${server.url}/`], { input: `${server.apiKey}\n` })).code,
    0,
  );
  assert.equal((await stat(file)).mode & 0o777, 0o600);
  assert.equal((await elsewhere.run(["ls", "-q"])).code, 0);
  assert.equal((await elsewhere.run(["login", "--context", "other", server.url], { input: server.apiKey })).code, 0);
  const listed = JSON.parse((await elsewhere.run(["context", "--json"])).stdout);
  assert.deepEqual(listed, [
    { name: "work", url: server.url, current: false },
    { name: "other", url: server.url, current: true },
  ]);
  assert.equal((await elsewhere.run(["context", "work"])).code, 0);
  assert.equal(JSON.parse(await readFile(file, "utf8")).current, "work");
  assert.equal((await elsewhere.run(["context", "nowhere"])).code, 1);

  const mixed = new CommandLine({ CAPSULE_API_KEY: server.apiKey, XDG_CONFIG_HOME: folder });
  assert.equal((await mixed.run(["ls", "-q"])).code, 0, "the context's address with the variable's key");
  const foreign = new CommandLine({
    ...{ CAPSULE_URL: "http://127.0.0.1:1", CAPSULE_DATA: join(folder, "none"), XDG_CONFIG_HOME: folder },
  });
  assert.match((await foreign.run(["ls"])).stderr, /no API key/, "a context's key goes to no other address");
  const key = new CommandLine({ CAPSULE_API_KEY: "wrong", XDG_CONFIG_HOME: folder, CAPSULE_URL: server.url });
  assert.equal((await key.run(["ls"])).code, 1, "the variable goes first");
  await writeFile(file, "{");
  const damaged = await elsewhere.run(["ls"]);
  assert.deepEqual([damaged.code, /contexts\.json is damaged/.test(damaged.stderr)], [1, true]);
  await rm(file);
});

test("version prints the program's own, and the server's if it answers", deadline, async () => {
  const { client: own, server: theirs } = JSON.parse((await line.run(["version", "--json"])).stdout);
  assert.match(own, /^\d+\.\d+\.\d+/);
  assert.equal(theirs, own);
  const keyless = new CommandLine({ CAPSULE_URL: server.url, CAPSULE_DATA: join(folder, "none") });
  assert.equal(JSON.parse((await keyless.run(["version", "--json"])).stdout).server, own);
  const alone = new CommandLine({ CAPSULE_URL: "http://127.0.0.1:1" });
  const { stdout, code } = await alone.run(["version"]);
  assert.deepEqual([stdout, code], [`client ${own}\nserver does not answer\n`, 0]);
});
