/** Commands by the client, of a service whose agent is a fake: users, live output, a line of the shell, unknown options. */
import assert from "node:assert/strict";
import { registerHooks } from "node:module";
import { after, before, describe, type TestContext, test } from "node:test";
import { inspect } from "node:util";
import { Api, keys } from "../../test/api.ts";
import type { FakeRun } from "../../test/fakes/agent.ts";
import { waitFor } from "../../test/wait-for.ts";
import { Capsule } from "./capsule.ts";
import { Client } from "./client.ts";
import { hasCode } from "./errors.ts";

async function setUp(t: TestContext) {
  const api = new Api();
  const url = await api.app.listen({ host: "127.0.0.1", port: 0 });
  t.after(() => api.app.close());
  const id = await api.capsule("running");
  const client = new Client({ url, apiKey: keys.red });
  return { url, agent: api.agent(id), client, capsule: client.capsule(id) };
}

const own = { user: "ada", envs: { A: "1" }, cwd: "/tmp" };

test("every start of a command passes user, envs and cwd", async (t) => {
  const { agent, capsule } = await setUp(t);
  await capsule.exec("true", [], own);
  await capsule.exec("true", [], { ...own, timeoutSec: 0 });
  await (await capsule.stream("true", [], { ...own, tag: "mine" })).wait();
  await capsule.spawn("true", [], own);
  const pty = await capsule.pty({ cmd: "true", ...own });
  pty.detach();
  for (const { user, envs, cwd } of [
    ...agent.runs.map((run) => run.command),
    ...agent.started,
    ...agent.ptys.map(({ command }) => command),
  ])
    assert.deepEqual({ user, envs, cwd }, own);
  assert.equal(agent.runs.length + agent.started.length + agent.ptys.length, 5);
  assert.equal(agent.runs.at(-1)?.command.tag, "mine");
});

test("a stream with survive has the tag and the offset from which the process that lives on can be read", async (t) => {
  const { agent, capsule } = await setUp(t);
  const stream = await capsule.stream("hang", [], { survive: true });
  const run = await hanging(agent);
  assert.ok(run.command.survive);
  assert.equal(stream.tag, "", "as the agent tells it");
  run.print("stdout", "four");
  for await (const { text } of stream) {
    assert.equal(text, "four");
    break;
  }
  assert.equal(stream.nextOffset, 4);
  await using without = await capsule.stream("hang", [], { survive: false, tag: "mine" });
  assert.equal(without.tag, undefined);
  assert.equal(agent.runs.at(-1)?.command.survive, undefined);
});

test("sh runs a line of the shell, with the options of exec", async (t) => {
  const { agent, capsule } = await setUp(t);
  const result = capsule.sh("a && b | c", { ...own, stdin: "x" }).catch(() => {});
  await waitFor("it is asked for", () => agent.runs.length === 1);
  const { cmd, args, user } = agent.runs[0]!.command;
  assert.deepEqual([cmd, args, user], ["sh", ["-c", "a && b | c"], "ada"]);
  await result;
});

test("a line of the shell that is given to exec as a program is told of sh", async (t) => {
  const { capsule } = await setUp(t);
  const hint = 'exec runs one program, without a shell: use sh("cd /tmp && ls")';
  for (const timeoutSec of [30, 0]) {
    const { stdout, stderr, stderrBytes, exitCode } = await capsule.exec("cd /tmp && ls", [], { timeoutSec });
    assert.deepEqual([stdout, stderr, exitCode], ["", `cd /tmp && ls: command not found\n${hint}\n`, 127]);
    assert.equal(new TextDecoder().decode(stderrBytes), stderr);
  }
  assert.equal((await capsule.exec("nothing")).stderr, "nothing: command not found\n");
});

test("a printed capsule shows its id, name and status", async (t) => {
  const { capsule } = await setUp(t);
  assert.equal(inspect(capsule), `Capsule { id: '${capsule.id}' }`);
  await capsule.update({ name: "web" });
  assert.equal(inspect(capsule), `Capsule { id: '${capsule.id}', name: 'web', status: 'running' }`);
});

describe("a runtime without a WebSocket", { concurrency: false }, () => {
  const own = globalThis.WebSocket;
  before(() => Reflect.deleteProperty(globalThis, "WebSocket"));
  after(() => Object.assign(globalThis, { WebSocket: own }));

  test("takes that of the installed package ws", async (t) => {
    const { capsule } = await setUp(t);
    assert.equal(await (await capsule.stream("echo", ["there"])).wait(), 0);
  });

  test("names the package where it is not installed, before anything is sent", async (t) => {
    const hooks = registerHooks({
      resolve: (name, context, next) => {
        if (name === "ws") throw new Error("Cannot find package 'ws'");
        return next(name, context);
      },
    });
    t.after(() => hooks.deregister());
    const { agent, capsule } = await setUp(t);
    for (const call of [
      () => capsule.stream("true"),
      () => capsule.pty(),
      () => capsule.exec("true", [], { timeoutSec: 0 }),
    ])
      await assert.rejects(call, (error) => hasCode(error, "unreachable") && /npm install ws/.test(error.message));
    assert.equal(agent.runs.length, 0);
    assert.equal((await capsule.exec("true")).exitCode, 0);
  });
});

async function hanging(agent: { runs: FakeRun[] }): Promise<FakeRun> {
  return await waitFor("it runs", () => agent.runs.at(-1));
}

test("onStdout and onStderr get the output as it comes, in whole characters; the result has all", async (t) => {
  const { agent, capsule } = await setUp(t);
  const shown: string[] = [];
  const result = capsule.exec("hang", [], {
    onStdout: (text) => shown.push(`out ${text}`),
    onStderr: async (text) => shown.push(`err ${text}`),
  });
  const run = await hanging(agent);
  const [euro, rest] = [Buffer.from("a€").subarray(0, 2), Buffer.from("a€").subarray(2)];
  run.print("stdout", euro);
  await waitFor("the first piece is shown", () => shown.length === 1);
  run.print("stderr", "problem\n");
  await waitFor("the second piece is shown", () => shown.length === 2);
  run.print("stdout", rest);
  run.exit(3);
  const { stdout, stderr, exitCode } = await result;
  assert.deepEqual([stdout, stderr, exitCode], ["a€", "problem\n", 3]);
  assert.deepEqual(shown, ["out a", "err problem\n", "out €"]);
});

test("a callback that throws kills the command, and exec throws its error", async (t) => {
  const { agent, capsule } = await setUp(t);
  const failing = () => Promise.reject(new Error("the screen broke"));
  const result = capsule.exec("hang", [], { onStdout: failing });
  const rejected = assert.rejects(result, /the screen broke/);
  const run = await hanging(agent);
  run.print("stdout", "x");
  await rejected;
  await waitFor("it is killed", () => run.cancelled);
});

test("options that a method does not have are named", async (t) => {
  const { url, agent, client, capsule } = await setUp(t);
  const wrong = { onStdot: 1, more: 2 } as object;
  const job = capsule.process("job");
  const calls: Record<string, () => Promise<unknown>> = {
    exec: () => capsule.exec("true", [], wrong),
    sh: () => capsule.sh("true", wrong),
    stream: () => capsule.stream("true", [], wrong),
    spawn: () => capsule.spawn("true", [], wrong),
    pty: () => capsule.pty(wrong),
    rejoin: () => capsule.rejoin("pty-0123abcd", wrong),
    processes: () => capsule.processes(wrong),
    attach: () => job.attach(wrong),
    logs: () => job.logs(wrong),
    result: () => job.result(wrong),
    wait: () => job.wait(wrong),
    kill: () => job.kill("SIGTERM", wrong),
    refresh: () => capsule.refresh(wrong),
    until: () => capsule.until("running", wrong),
    update: () => capsule.update(wrong),
    updateCall: () => capsule.update({ name: "a" }, wrong),
    pause: () => capsule.pause(wrong),
    resume: () => capsule.resume(wrong),
    ping: () => capsule.ping(wrong),
    snapshot: () => capsule.snapshot("a", wrong),
    destroy: () => capsule.destroy(wrong),
    create: () => client.create(wrong),
    list: () => client.list(wrong),
    connect: () => client.connect(capsule.id, wrong),
    limits: () => client.limits(wrong),
    session: () => client.session(wrong),
    health: () => client.health(wrong),
    signInLink: () => client.signInLink(wrong),
    events: () => client.events(wrong).next(),
    templates: () => client.templates.list(wrong),
    removeTemplate: () => client.templates.remove("a", wrong),
    keys: () => client.keys.list(wrong),
    createKey: () => client.keys.create("a", wrong),
    revoke: () => client.keys.revoke("a", wrong),
    signIn: () => Client.signIn("a", { url, ...wrong }),
    "Capsule.create": () => Capsule.create({ url, apiKey: keys.red, ...wrong }),
    "Capsule.connect": () => Capsule.connect(capsule.id, { url, apiKey: keys.red, ...wrong }),
    "Capsule.list": () => Capsule.list({ url, apiKey: keys.red, ...wrong }),
    read: () => capsule.files.read("/tmp/a", wrong),
    readText: () => capsule.files.readText("/tmp/a", wrong),
    readStream: () => capsule.files.readStream("/tmp/a", wrong),
    write: () => capsule.files.write("/tmp/a", "x", wrong),
    files: () => capsule.files.list("/", wrong),
    stat: () => capsule.files.stat("/", wrong),
    mkdir: () => capsule.files.mkdir("/tmp/b", wrong),
    remove: () => capsule.files.remove("/tmp/b", wrong),
  };
  for (const [name, call] of Object.entries(calls))
    await assert.rejects(call(), { name: "TypeError", message: /has no option .*"onStdot".*"more"/ }, name);
  assert.throws(() => new Client(wrong), { name: "TypeError", message: /"onStdot"/ });
  assert.deepEqual([agent.runs.length, agent.started.length, agent.ptys.length], [0, 0, 0]);
  assert.equal((await capsule.exec("true", [], { more: undefined } as object)).exitCode, 0);
});

test("options in place of the arguments are refused", async (t) => {
  const { capsule } = await setUp(t);
  const misplaced = { cwd: "/tmp" } as unknown as string[];
  for (const call of [
    () => capsule.exec("true", misplaced),
    () => capsule.stream("true", misplaced),
    () => capsule.spawn("true", misplaced),
    () => capsule.pty({ args: misplaced }),
  ])
    await assert.rejects(call(), { name: "TypeError", message: /takes an array of arguments/ });
});
