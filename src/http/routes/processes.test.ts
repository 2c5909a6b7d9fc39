import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Api } from "../../../test/api.ts";
import { CapsuleError } from "../../wire/errors.ts";

async function setUp() {
  const api = new Api();
  const id = await api.capsule();
  const path = `/v1/capsules/${id}/processes`;
  return { api, id, path, agent: api.agent(id) };
}

describe("processes", () => {
  test("lists all, also those of init", async () => {
    const { api, path } = await setUp();
    assert.deepEqual((await api.call("GET", path)).json, {
      processes: [
        { pid: 1, tag: "", cmd: "/init", args: [] },
        { pid: 500, tag: "proc-0123abcd", cmd: "sleep", args: ["100"] },
      ],
    });
  });

  test("tells user, start and kind where the agent does", async () => {
    const { api, path, agent } = await setUp();
    const told = {
      pid: 7,
      tag: "",
      cmd: "cat",
      args: [],
      user: "ada",
      startedAtMs: 1_767_225_600_123,
      kind: "other" as const,
    };
    agent.running = [told];
    const { startedAtMs, ...rest } = told;
    assert.deepEqual((await api.call("GET", path)).json, { processes: [{ ...rest, started_at: startedAtMs }] });
  });

  test("kill takes a PID or a tag, and sends SIGKILL by default", async () => {
    const { api, path, agent } = await setUp();
    for (const selector of ["500", "proc-0123abcd", "500?signal=SIGTERM"]) {
      const reply = await api.call("DELETE", `${path}/${selector}`);
      assert.deepEqual([reply.status, reply.text], [204, ""]);
    }
    assert.deepEqual(agent.signals, [
      [{ pid: 500 }, "SIGKILL"],
      [{ tag: "proc-0123abcd" }, "SIGKILL"],
      [{ pid: 500 }, "SIGTERM"],
    ]);
  });

  for (const selector of [
    "0",
    "00",
    "1",
    "499",
    "4194305",
    "9".repeat(400),
    "nope",
    "-1",
    "%00",
    "1e3",
    "x".repeat(1_000),
  ]) {
    test(`the selector ${selector.slice(0, 20)} is 404`, async () => {
      const { api, path, agent } = await setUp();
      const reply = await api.call("DELETE", `${path}/${selector}`);
      assert.deepEqual([reply.status, reply.json.error.code], [404, "not_found"]);
      assert.equal(agent.signals.length, 0);
    });
  }

  for (const signal of ["SIGHUP", "9", "", "sigkill", "SIGKILL&signal=SIGTERM"]) {
    test(`the signal ${JSON.stringify(signal)} is 400`, async () => {
      const { api, path } = await setUp();
      assert.equal((await api.call("DELETE", `${path}/500?signal=${signal}`)).status, 400);
    });
  }

  test("neither counts as activity", async () => {
    const { api, id, path } = await setUp();
    await api.call("GET", path);
    await api.call("DELETE", `${path}/500`);
    assert.equal(api.lastActiveAt(id), null);
  });
});

describe("the exit of a process", () => {
  test("is awaited until the timeout", async () => {
    const { api, path, agent } = await setUp();
    agent.onExitAsked = () => agent.exits.at(-1)!.tell({ exitCode: 7, guestDurationUs: 1 });
    for (const selector of ["500", "proc-0123abcd"]) {
      const reply = await api.call("GET", `${path}/${selector}/exit`);
      assert.deepEqual([reply.status, reply.json], [200, { exit_code: 7 }]);
    }
    assert.deepEqual(
      agent.exits.map(({ selector }) => selector),
      [{ pid: 500 }, { tag: "proc-0123abcd" }],
    );
    agent.onExitAsked = () => {};
    assert.deepEqual((await api.call("GET", `${path}/500/exit?timeout=1`)).json, { exit_code: null });
  });

  test("of an unknown process is 404, of a capsule paused meanwhile 409", async () => {
    const { api, id, path, agent } = await setUp();
    for (const selector of ["1", "nope"])
      assert.equal((await api.call("GET", `${path}/${selector}/exit`)).status, 404, selector);
    agent.exit = async () => {
      await api.become(id, "paused");
      throw new CapsuleError("agent_error", "the connection to the guest agent was closed");
    };
    const { status, json } = await api.call("GET", `${path}/500/exit`);
    assert.deepEqual([status, json.error.code], [409, "invalid_state"]);
  });

  for (const timeout of ["0", "-1", "301", "x", ""])
    test(`?timeout=${timeout} is 400`, async () => {
      const { api, path } = await setUp();
      assert.equal((await api.call("GET", `${path}/500/exit?timeout=${timeout}`)).status, 400);
    });
});

describe("the kept output", () => {
  test("is bytes, with the number of dropped ones", async () => {
    const { api, path, agent } = await setUp();
    agent.kept.first = 5_000_000_000;
    for (const query of ["", "?stream=stderr&tail=0", "?stream=both&tail=12"]) {
      const { status, text, headers } = await api.call("GET", `${path}/500/logs${query}`);
      assert.deepEqual([status, text], [200, "one\ntwo\n"]);
      assert.equal(headers["content-type"], "application/octet-stream");
      assert.equal(headers["x-dropped-bytes"], "5000000000");
    }
    assert.deepEqual(agent.logsAsked, [
      { stream: "both", tail: undefined },
      { stream: "stderr", tail: 0 },
      { stream: "both", tail: 12 },
    ]);
  });

  test("of an unknown process is 404, of a saved agent without the verb 409", async () => {
    const { api, path, agent } = await setUp();
    for (const selector of ["1", "nope"])
      assert.equal((await api.call("GET", `${path}/${selector}/logs`)).status, 404, selector);
    agent.logs = async () => {
      throw new CapsuleError("conflict", "this agent has no LOGS");
    };
    assert.equal((await api.call("GET", `${path}/500/logs`)).status, 409);
  });

  for (const query of ["stream=all", "stream=", "tail=-1", "tail=x", "tail=1.5", "tail="])
    test(`?${query} is 400`, async () => {
      const { api, path } = await setUp();
      assert.equal((await api.call("GET", `${path}/500/logs?${query}`)).status, 400);
    });
});

test("a guest that does not answer within a minute is an error", async (t) => {
  const api = new Api();
  const id = await api.capsule();
  const agent = api.agent(id);
  const asked = Promise.withResolvers<void>();
  Object.assign(agent, {
    processes: (_sink: unknown, signal: AbortSignal) =>
      new Promise((_, reject) => {
        signal.addEventListener("abort", () => reject(signal.reason));
        asked.resolve();
      }),
  });
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const reply = api.call("GET", `/v1/capsules/${id}/processes`);
  await asked.promise;
  t.mock.timers.tick(60_000);
  assert.equal((await reply).json.error.code, "agent_error");
});
