import assert from "node:assert/strict";
import { once } from "node:events";
import { request } from "node:http";
import type { AddressInfo } from "node:net";
import { describe, test } from "node:test";
import { Api, keys } from "../../../test/api.ts";
import type { FakeRun } from "../../../test/fakes/agent.ts";
import { waitFor } from "../../../test/wait-for.ts";
import type { Exit } from "../../agent/agent.ts";
import { AgentFailure } from "../../agent/failure.ts";
import { CapsuleError } from "../../wire/errors.ts";

interface Setup {
  limits?: ConstructorParameters<typeof Api>[0];
  onRun?: (run: FakeRun) => void;
}

async function setUp({ limits, onRun }: Setup = {}) {
  const api = new Api(limits);
  const id = await api.capsule();
  const agent = api.agent(id);
  if (onRun) agent.onRun = onRun;
  const exec = (json: unknown) => api.call("POST", `/v1/capsules/${id}/exec`, { json });
  return { api, id, agent, exec };
}

describe("foreground exec", () => {
  test("answers with output, exit code and duration", async () => {
    const { api, id, exec } = await setUp();
    const { status, json } = await exec({ cmd: "echo", args: ["a", "b c", "ü"] });
    assert.equal(status, 200);
    assert.deepEqual(
      { ...json, duration_ms: 0 },
      { stdout: "a b c ü\n", stderr: "", exit_code: 0, duration_ms: 0, encoding: "utf-8" },
    );
    assert.ok(Number.isInteger(json.duration_ms));
    assert.equal(api.isBusy(id), false);
  });

  test("a non-zero exit code is a 200", async () => {
    const { exec } = await setUp();
    assert.equal((await exec({ cmd: "exit", args: ["139"] })).json.exit_code, 139);
  });

  test("a missing command is 127 with the reason in stderr", async () => {
    const { exec } = await setUp();
    const { status, json } = await exec({ cmd: "nope" });
    assert.equal(status, 200);
    assert.equal(json.exit_code, 127);
    assert.match(json.stderr, /nope: command not found/);
  });

  test("both streams are base64 if either is not UTF-8", async () => {
    const { exec } = await setUp({
      onRun: (run) => {
        run.print("stdout", "text");
        run.print("stderr", Buffer.from([0xff, 0x00]));
        run.exit(0);
      },
    });
    const { json } = await exec({ cmd: "hang" });
    assert.equal(json.encoding, "base64");
    assert.equal(Buffer.from(json.stdout, "base64").toString(), "text");
    assert.deepEqual([...Buffer.from(json.stderr, "base64")], [0xff, 0x00]);
  });

  test("output beyond the limit is cut at a character and marked truncated; all of it is consumed", async () => {
    const { exec, agent } = await setUp({
      limits: { exec_output_max_bytes: 10 },
      onRun: (run) => {
        run.print("stdout", "1234567");
        run.print("stdout", "8ü€");
        run.print("stdout", "more");
        run.print("stderr", "1234567890");
        run.exit(0);
      },
    });
    const { json } = await exec({ cmd: "hang" });
    assert.deepEqual([json.stdout, json.stderr, json.truncated], ["12345678ü", "1234567890", true]);
    assert.equal(json.encoding, "utf-8");
    assert.equal(agent.runs[0]?.consumedBytes, 7 + 6 + 4 + 10);
  });

  test("output beyond the budget of all teams ends in 503 without Retry-After, and is never cut", async () => {
    const { api, id, exec, agent } = await setUp({ limits: { answers_max_bytes: 16 << 20 } });
    const large = Buffer.alloc(10 << 20, "x");
    const hoard = exec({ cmd: "hang", timeout: 0 });
    await waitFor("the first command runs", () => agent.runs.length === 1);
    agent.runs[0]?.print("stdout", large);
    const beyond = exec({ cmd: "hang", timeout: 0 });
    await waitFor("both commands run", () => agent.runs.length === 2);
    agent.runs[1]?.print("stdout", large);
    const refusal = await beyond;
    assert.deepEqual([refusal.status, refusal.json.error.code], [503, "no_capacity"]);
    assert.equal(
      refusal.headers["retry-after"],
      undefined,
      "the command has run: a client must not repeat it by itself",
    );
    assert.equal(agent.runs[1]?.cancelled, true);

    const other = await api.capsule("running", keys.blue);
    const json = { cmd: "echo", args: ["blue"] };
    const reply = await api.call("POST", `/v1/capsules/${other}/exec`, { json, key: keys.blue });
    assert.deepEqual([reply.json.stdout, reply.json.truncated], ["blue\n", undefined]);

    agent.runs[0]?.exit(0);
    assert.equal((await hoard).json.stdout.length, large.length);
    assert.equal((await api.call("POST", `/v1/capsules/${id}/exec`, { json })).json.stdout, "blue\n");
  });

  test("the answer's bytes are those of its object as JSON, whatever its size", async () => {
    for (const repeat of [1, 20_000]) {
      const text = `\u0001"\\/é\ud83d\ude42\u007f\u2028\n`.repeat(repeat);
      const { exec } = await setUp({
        onRun: (run) => {
          run.print("stdout", text);
          run.print("stderr", "e");
          run.exit(3);
        },
      });
      const reply = await exec({ cmd: "hang" });
      const { duration_ms } = reply.json;
      const object = { stdout: text, stderr: "e", exit_code: 3, duration_ms, encoding: "utf-8" };
      assert.equal(reply.text, JSON.stringify(object));
      assert.equal(reply.headers["content-length"], String(Buffer.byteLength(reply.text)));
      assert.equal(reply.headers["content-type"], "application/json; charset=utf-8");
    }
  });

  test("the command, its environment and directory are passed unchanged", async () => {
    const { exec, agent } = await setUp();
    await exec({ cmd: "true", args: ["-n", "", "a\nb"], envs: { A: "1", "B\n": "=" }, cwd: "/tmp", tag: "x" });
    assert.deepEqual(agent.runs[0]?.command, {
      cmd: "true",
      args: ["-n", "", "a\nb"],
      envs: { A: "1", "B\n": "=" },
      cwd: "/tmp",
      user: undefined,
      tag: undefined,
    });
  });

  test("a field that the body does not have is ignored, also if a terminal's start has it", async () => {
    const { exec, agent } = await setUp();
    await exec({ cmd: "true", cols: "wide" });
    await exec({ cmd: "true", cols: "wide", background: true });
    for (const command of [agent.runs[0]?.command, agent.started[0]]) assert.equal("cols" in command!, false);
  });

  test("a field that the foreground or the background ignores is not checked there", async () => {
    const { exec, agent } = await setUp();
    for (const tag of ["a b", 7]) {
      assert.equal((await exec({ cmd: "true", tag })).status, 200);
      assert.equal((await exec({ cmd: "true", tag, background: true })).status, 400);
    }
    assert.equal((await exec({ cmd: "true", stdin_base64: 7, background: true })).status, 202);
    assert.equal(agent.runs[0]?.command.tag, undefined);
  });

  test("a request without a body is 400", async () => {
    const api = new Api();
    const id = await api.capsule();
    assert.equal((await api.call("POST", `/v1/capsules/${id}/exec`)).status, 400);
  });

  for (const field of ["timeout", "timeout_sec"]) {
    test(`${field} reached: the tree is killed, 504 with the output so far`, async (t) => {
      const { api, id, exec, agent } = await setUp({
        onRun: (run) => run.print("stdout", Buffer.from("so farü").subarray(0, -1)),
      });
      t.mock.timers.enable({ apis: ["setTimeout"] });
      const answer = exec({ cmd: "hang", [field]: 7 });
      await waitFor("the command runs", () => agent.runs.length === 1);
      assert.equal(api.isBusy(id), true);
      t.mock.timers.tick(6_999);
      assert.equal(agent.runs[0]?.stopped, false);
      t.mock.timers.tick(1);
      const { status, json, text } = await answer;
      assert.equal(agent.runs[0]?.stopped, true);
      assert.equal(status, 504);
      const { duration_ms } = json.error.details;
      const details = { stdout: "so far", stderr: "", encoding: "utf-8", duration_ms };
      const message = "the command did not end within 7 s and was killed";
      assert.equal(text, JSON.stringify({ error: { code: "timeout", message, details } }));
      assert.equal(json.error.code, "timeout");
      assert.equal(json.error.details.stdout, "so far");
      assert.equal(json.error.details.encoding, "utf-8");
      assert.equal(api.isBusy(id), false);
    });
  }

  test("the default timeout is 30 seconds, and 0 means none", async (t) => {
    const { exec, agent } = await setUp();
    t.mock.timers.enable({ apis: ["setTimeout"] });
    const limited = exec({ cmd: "hang" });
    const unlimited = exec({ cmd: "hang", timeout: 0 });
    await waitFor("both commands run", () => agent.runs.length === 2);
    t.mock.timers.tick(30_000);
    assert.equal((await limited).status, 504);
    t.mock.timers.tick(30_000_000);
    assert.equal(agent.runs[1]?.stopped, false);
    agent.runs[1]?.exit(3);
    assert.equal((await unlimited).json.exit_code, 3);
  });

  test("an unconfirmed kill is 502, and the command is cancelled", async (t) => {
    const { exec, agent } = await setUp({
      onRun: (run) => {
        run.stop = () => {};
      },
    });
    t.mock.timers.enable({ apis: ["setTimeout"] });
    const answer = exec({ cmd: "hang", timeout: 1 });
    await waitFor("the command runs", () => agent.runs.length === 1);
    t.mock.timers.tick(1_000);
    t.mock.timers.tick(15_000);
    const { status, json } = await answer;
    assert.deepEqual([status, json.error.code], [502, "agent_error"]);
    assert.equal(agent.runs[0]?.cancelled, true);
  });

  test("a lost connection is an error, never an invented exit code", async () => {
    const { api, id, exec } = await setUp({
      onRun: (run) => {
        run.print("stdout", "half");
        run.fail(new CapsuleError("agent_error", "the guest's connection was lost"));
      },
    });
    const { status, json } = await exec({ cmd: "hang" });
    assert.deepEqual([status, json.error.code], [502, "agent_error"]);
    assert.equal(api.isBusy(id), false);
  });

  for (const code of ["invalid_state", "agent_error"] as const) {
    test(`a capsule that went away meanwhile has one answer, whether its agent ended with ${code} or not`, async () => {
      for (const [change, expected] of [
        ["destroy", [404, "not_found"]],
        ["pause", [409, "invalid_state"]],
        ["stop", [409, "invalid_state"]],
      ] as const) {
        const { api, id, agent, exec } = await setUp();
        const asked = Promise.withResolvers<void>();
        const exit = Promise.withResolvers<Exit>();
        agent.exit = () => {
          asked.resolve();
          return exit.promise;
        };
        const replies = [exec({ cmd: "hang", timeout: 0 }), api.call("GET", `/v1/capsules/${id}/processes/500/exit`)];
        await asked.promise;
        await waitFor("the command runs", () => agent.runs.length === 1);
        if (change === "destroy") await api.service.capsules.destroy("team-red", id);
        else await api.become(id, change === "pause" ? "paused" : "stopped");
        const end = new CapsuleError(code, "the guest's connection was closed");
        agent.runs[0]?.fail(end);
        exit.reject(end);
        for (const { status, json } of await Promise.all(replies)) {
          assert.deepEqual([status, json.error.code], expected, change);
        }
      }
    });
  }

  test("activity is recorded at the start and at the end", async () => {
    const { api, id, exec, agent } = await setUp();
    const answer = exec({ cmd: "hang" });
    await waitFor("the command runs", () => agent.runs.length === 1);
    const began = api.lastActiveAt(id);
    assert.notEqual(began, null);
    api.service.clock.advance(1);
    agent.runs[0]?.exit(0);
    await answer;
    assert.ok(Number(api.lastActiveAt(id)) > Number(began));
  });

  test("a command whose answer nobody reads does not hold the idle timer off", async (t) => {
    const { api, id, agent } = await setUp();
    await api.app.listen({ host: "127.0.0.1", port: 0 });
    t.after(() => api.app.close());
    const { port } = api.app.server.address() as AddressInfo;
    const headers = { "x-api-key": keys.red, "content-type": "application/json" };
    const asked = request({ port, method: "POST", path: `/v1/capsules/${id}/exec`, headers }).on("error", () => {});
    t.after(() => asked.destroy());
    asked.end(JSON.stringify({ cmd: "hang" }));
    await waitFor("the command runs", () => agent.runs.length === 1);
    agent.runs[0]?.print("stdout", Buffer.alloc(15 << 20, "x")); // more than the socket buffers of both ends
    assert.equal(api.isBusy(id), true);
    agent.runs[0]?.exit(0);
    await once(asked, "response");
    await waitFor("the command no longer counts", () => !api.isBusy(id));
  });
});

describe("user", () => {
  test("is the command's, in the foreground and in the background; null is none", async () => {
    const { exec, agent } = await setUp();
    for (const user of ["nobody", "2147483648", null, undefined]) {
      const asked = { cmd: "true", user, envs: { A: "1" }, cwd: "/tmp" };
      assert.equal((await exec(asked)).status, 200);
      assert.equal((await exec({ ...asked, background: true })).status, 202);
      for (const command of [agent.runs.at(-1)?.command, agent.started.at(-1)])
        assert.deepEqual([command?.user, command?.envs, command?.cwd], [user ?? undefined, { A: "1" }, "/tmp"]);
    }
  });

  test("that the guest does not know is 400, and one that a saved agent cannot be 409", async () => {
    const refusals: [Error, number, string][] = [
      [new AgentFailure("invalid", "invalid_request", "no user bob"), 400, "invalid_request"],
      [new CapsuleError("conflict", "no verb EXEC_AS"), 409, "conflict"],
    ];
    for (const [refusal, status, code] of refusals) {
      const { exec } = await setUp({ onRun: (run) => run.fail(refusal) });
      const reply = await exec({ cmd: "hang", user: "bob" });
      assert.deepEqual([reply.status, reply.json.error.code], [status, code]);
    }
  });
});

describe("standard input", () => {
  test("is text or base64, then its end", async () => {
    const { exec, agent } = await setUp({ onRun: (run) => run.exit(0) });
    const bytes = Buffer.from([0, 255, 10]);
    const inputs: [object, Buffer][] = [
      [{ stdin: "grüße\0\n" }, Buffer.from("grüße\0\n")],
      [{ stdin: "" }, Buffer.alloc(0)],
      [{ stdin_base64: bytes.toString("base64") }, bytes],
      [{ stdin: null, stdin_base64: "" }, Buffer.alloc(0)],
    ];
    for (const [fields, expected] of inputs) {
      assert.equal((await exec({ cmd: "hang", ...fields })).status, 200);
      const run = agent.runs.at(-1)!;
      assert.deepEqual([run.command.stdin, run.hasInputEnded], [true, true]);
      assert.deepEqual(Buffer.concat(run.input), expected);
    }
  });

  test("is none by default", async () => {
    const { exec, agent } = await setUp();
    for (const fields of [{}, { stdin: null }, { background: true }, { background: true, stdin: false }])
      await exec({ cmd: "true", ...fields });
    const commands = [...agent.runs.map((run) => run.command), ...agent.started];
    assert.deepEqual(
      commands.map((command) => "stdin" in command),
      [false, false, false, false],
    );
    assert.ok(agent.runs.every((run) => run.input.length === 0 && !run.hasInputEnded));
  });

  test("stays open in the background with true; stdin_base64 is ignored there", async () => {
    const { exec, agent } = await setUp();
    assert.equal((await exec({ cmd: "true", background: true, stdin: true, stdin_base64: "?" })).status, 202);
    assert.equal(agent.started[0]?.stdin, true);
  });

  const bad: [object, string][] = [
    [{ stdin: true }, "stdin"],
    [{ stdin: false }, "stdin"],
    [{ stdin: 1 }, "stdin"],
    [{ stdin: "\ud800" }, "stdin"],
    [{ stdin: "a", background: true }, "stdin"],
    [{ stdin: "", stdin_base64: "" }, "stdin_base64"],
    [{ stdin_base64: "YQ" }, "stdin_base64"],
    [{ stdin_base64: "Y\nQ=" }, "stdin_base64"],
    [{ stdin_base64: "-_8=" }, "stdin_base64"],
    [{ stdin_base64: true }, "stdin_base64"],
  ];
  for (const [fields, field] of bad) {
    test(`${JSON.stringify(fields)} is 400`, async () => {
      const { exec, agent } = await setUp();
      const { status, json } = await exec({ cmd: "true", ...fields });
      assert.deepEqual([status, json.error.code], [400, "invalid_request"]);
      assert.match(JSON.stringify(json.error), new RegExp(field));
      assert.deepEqual([agent.runs.length, agent.started.length], [0, 0]);
    });
  }

  test("of an agent of an earlier release is 409", async () => {
    const { exec } = await setUp({ onRun: (run) => run.fail(new CapsuleError("conflict", "no verb EXEC_STDIN")) });
    const { status, json } = await exec({ cmd: "hang", stdin: "x" });
    assert.deepEqual([status, json.error.code], [409, "conflict"]);
  });
});

describe("background exec", () => {
  test("answers 202 with pid and tag", async () => {
    const { api, id, exec, agent } = await setUp();
    const reply = await exec({ cmd: "hang", args: ["x"], background: true, tag: "mine", timeout: 1 });
    assert.equal(reply.status, 202);
    assert.deepEqual(reply.json, { pid: 500, tag: "mine" });
    assert.deepEqual(agent.started[0]?.args, ["x"]);
    assert.equal(api.isBusy(id), false);
    assert.notEqual(api.lastActiveAt(id), null);
  });

  test("a tag in use is 409, a missing command 400", async () => {
    const { exec } = await setUp();
    await exec({ cmd: "hang", background: true, tag: "mine" });
    const taken = await exec({ cmd: "hang", background: true, tag: "mine" });
    assert.deepEqual([taken.status, taken.json.error.code], [409, "conflict"]);
    const missing = await exec({ cmd: "nope", background: true });
    assert.deepEqual([missing.status, missing.json.error.code], [400, "invalid_request"]);
  });
});

describe("exec with bad input", () => {
  const bad: [string, unknown][] = [
    ["no cmd", {}],
    ["an empty cmd", { cmd: "" }],
    ["a cmd with a NUL", { cmd: "tr\u0000ue" }],
    ["a number for cmd", { cmd: 1 }],
    ["a string for args", { cmd: "true", args: "x" }],
    ["a number in args", { cmd: "true", args: [1] }],
    ["a NUL in args", { cmd: "true", args: ["\u0000"] }],
    ["half a surrogate pair in args, which no bytes stand for", { cmd: "true", args: ["\ud800"] }],
    ["null for cmd", { cmd: null }],
    ["null in args", { cmd: "true", args: [null] }],
    ["null in envs", { cmd: "true", envs: { A: null } }],
    ["a negative timeout", { cmd: "true", timeout: -1 }],
    ["a fractional timeout", { cmd: "true", timeout: 0.5 }],
    ["a timeout as text", { cmd: "true", timeout: "1" }],
    ["a timeout beyond the limit", { cmd: "true", timeout: 604_801 }],
    ["a list for envs", { cmd: "true", envs: [] }],
    ["a number in envs", { cmd: "true", envs: { A: 1 } }],
    ["a NUL in envs", { cmd: "true", envs: { A: "\u0000" } }],
    ["an = in a name of envs", { cmd: "true", envs: { "A=B": "" } }],
    ["half a surrogate pair in a name of envs", { cmd: "true", envs: { "\udc00": "" } }],
    ["an empty name in envs", { cmd: "true", envs: { "": "" } }],
    ["a wrong value behind a newline in envs", { cmd: "true", envs: { "A\n": 1 } }],
    ["a cwd that is too long", { cmd: "true", cwd: "/ä".repeat(1_366) }],
    ["an empty user", { cmd: "true", user: "" }],
    ["a number for user", { cmd: "true", user: 1000 }],
    ["a NUL in user", { cmd: "true", user: "ro\u0000ot" }],
    ["half a surrogate pair in user", { cmd: "true", user: "\ud800", background: true }],
    ["an empty cwd", { cmd: "true", cwd: "", background: true }],
    ["a text for background", { cmd: "true", background: "true" }],
    ["a tag that would be a PID", { cmd: "true", background: true, tag: "123" }],
    ["a tag with a slash", { cmd: "true", background: true, tag: "a/b" }],
  ];
  for (const [what, json] of bad) {
    test(`refuses ${what}`, async () => {
      const { api, id, exec, agent } = await setUp();
      const reply = await exec(json);
      assert.equal(reply.status, 400, reply.text);
      assert.equal(reply.json.error.code, "invalid_request");
      assert.equal(agent.runs.length + agent.started.length, 0);
      assert.equal(api.lastActiveAt(id), null);
    });
  }

  test("whole surrogate pairs are characters like others", async () => {
    const { exec, agent } = await setUp();
    assert.equal((await exec({ cmd: "true", args: ["🙂"], envs: { "🙂": "🙂" }, background: true })).status, 202);
    assert.equal(agent.started.length, 1);
  });

  test("null for an optional field is the same as leaving it out", async () => {
    const { exec, agent } = await setUp({ limits: { exec_timeout_default_sec: 7 } });
    const names = ["args", "timeout", "timeout_sec", "envs", "cwd", "user", "background", "tag"];
    const nulls = Object.fromEntries(names.map((name) => [name, null]));
    assert.equal((await exec({ cmd: "true", ...nulls })).status, 200);
    assert.equal((await exec({ cmd: "true" })).status, 200);
    assert.deepEqual(agent.runs[0]?.command, agent.runs[1]?.command);
  });

  test("an impossible variable name is refused with an explanation", async () => {
    const { exec } = await setUp();
    const { json } = await exec({ cmd: "true", envs: { "A=B": "" } });
    assert.match(json.error.message, /envs\/A=B is not allowed$/);
  });
});
