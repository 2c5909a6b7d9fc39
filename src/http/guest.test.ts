/** The HTTP server on the real guest agent without a VM: commands run on this machine. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { request as httpRequest } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, describe, test } from "node:test";
import { WebSocket } from "ws";
import { AgentProcess } from "../../test/agent-process.ts";
import { Api, keys } from "../../test/api.ts";
import { waitFor } from "../../test/wait-for.ts";
import type { Agent } from "../agent/agent.ts";

const api = new Api();
let guest: AgentProcess;
let agent: Agent;
let path = "";
let port = 0;

before(async () => {
  guest = await AgentProcess.start();
  agent = await guest.connect();
  await guest.wake(agent);
  const id = await api.capsule();
  Object.assign(api.service.host.guests.get(id)!, { agent });
  path = `/v1/capsules/${id}`;
  await api.app.listen({ host: "127.0.0.1", port: 0 });
  port = (api.app.server.address() as AddressInfo).port;
});
after(async () => {
  await api.app.close();
  await guest[Symbol.asyncDispose]();
});

const exec = (json: object) => api.call("POST", `${path}/exec`, { json });
const bash = (script: string, more: object = {}) => exec({ cmd: "bash", args: ["-c", script], ...more });

/** Prints its PID, then waits to be killed. */
const waits = "echo $$; exec sleep 1000";

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

const isGone = (pid: number) => waitFor(`process ${pid} is gone`, async () => !isAlive(pid));

describe("foreground exec on the real agent", () => {
  test("output of every size is complete", async () => {
    for (const size of [0, 1, 65_535, 65_536, 65_537, 262_143, 262_144, 262_145, 1_000_000]) {
      const { status, json } = await bash(`head -c ${size} /dev/zero | tr '\\0' x`);
      assert.deepEqual([status, json.stdout.length, json.exit_code], [200, size, 0]);
    }
  });

  test("exit codes, signals, missing commands and directories", async () => {
    assert.equal((await bash("exit 42")).json.exit_code, 42);
    assert.equal((await bash("kill -TERM $$")).json.exit_code, 143);
    const missing = (await exec({ cmd: "no-such-command" })).json;
    assert.deepEqual([missing.exit_code, missing.stdout], [127, ""]);
    assert.match(missing.stderr, /no-such-command/);
    const nowhere = await exec({ cmd: "true", cwd: "/no/such/directory" });
    assert.deepEqual([nowhere.status, nowhere.json.error.code], [400, "invalid_request"]);
  });

  test("environment and arguments are passed unchanged", async () => {
    const args = ["-c", 'printf %s "$A|$0|$1"', "zero", "one\n'\"$ü"];
    assert.equal((await exec({ cmd: "bash", args, envs: { A: "=x y" } })).json.stdout, "=x y|zero|one\n'\"$ü");
  });

  test("a timeout kills the process tree and returns its output", async (t) => {
    const printed = guest.file("printed");
    t.mock.timers.enable({ apis: ["setTimeout"] });
    const reply = bash(`echo $$; sleep 1000 & echo $!; : > ${printed}; wait`, { timeout: 1 });
    await waitFor("both are printed", () => existsSync(printed));
    await agent.probe(); // answered after the output was read
    t.mock.timers.tick(1_000);
    const { status, json } = await reply;
    t.mock.timers.reset();
    assert.deepEqual([status, json.error.code], [504, "timeout"]);
    const pids = json.error.details.stdout.trim().split("\n").map(Number);
    assert.equal(pids.length, 2);
    await Promise.all(pids.map(isGone));
  });

  test("a client's disconnect kills the process tree", async () => {
    const pidFile = guest.file("pid");
    const body = JSON.stringify({
      cmd: "bash",
      args: ["-c", `echo $$ > ${pidFile}; sync; exec sleep 1000`],
      timeout: 0,
    });
    const headers = { "x-api-key": keys.red, "content-type": "application/json" };
    const request = httpRequest({ port, method: "POST", path: `${path}/exec`, headers });
    request.on("error", () => {});
    request.end(body);
    const pid = await waitFor("the command runs", async () => {
      const { stdout } = (await bash(`cat ${pidFile} 2>/dev/null`)).json;
      return stdout !== "" && Number(stdout);
    });
    request.destroy();
    await isGone(pid);
  });
});

describe("exec stream on the real agent", () => {
  async function talk(first: object) {
    const socket = new WebSocket(`ws://127.0.0.1:${port}${path}/exec/stream`, { headers: { "x-api-key": keys.red } });
    await once(socket, "open");
    socket.send(JSON.stringify({ type: "start", ...first }));
    return socket;
  }

  test("a megabyte of characters is complete, however it is chunked", async () => {
    const socket = await talk({ cmd: "bash", args: ["-c", "for i in {1..3500}; do printf '€%.0s' {1..100}; done"] });
    let text = "";
    let last: { type: string; data?: string; exit_code?: number } = { type: "" };
    socket.on("message", (data) => {
      last = JSON.parse(data.toString());
      if (last.type === "stdout") text += last.data;
    });
    const [code] = await once(socket, "close");
    assert.equal(code, 1000);
    assert.deepEqual(last, { type: "exit", exit_code: 0 });
    assert.ok(text === "€".repeat(350_000));
  });

  for (const [how, end] of [
    ["stop", (socket: WebSocket) => socket.send('{"type":"stop"}')],
    ["a client that goes away", (socket: WebSocket) => socket.terminate()],
  ] as const) {
    test(`${how} kills the command`, async () => {
      const socket = await talk({ cmd: "bash", args: ["-c", waits] });
      const pid = await new Promise<number>((resolve) => {
        socket.on("message", (data) => {
          const { type, data: text } = JSON.parse(data.toString());
          if (type === "stdout") resolve(Number(text));
        });
      });
      end(socket);
      await isGone(pid);
      await (socket.readyState === WebSocket.CLOSED || once(socket, "close"));
    });
  }
});
