import assert from "node:assert/strict";
import { once } from "node:events";
import type { IncomingMessage } from "node:http";
import { type AddressInfo, connect, type Socket } from "node:net";
import { PassThrough } from "node:stream";
import { after, before, beforeEach, describe, type TestContext, test } from "node:test";
import { type RawData, WebSocket } from "ws";
import { Api, keys } from "../../../test/api.ts";
import { type FakeAgent, FakePty, type FakeRun } from "../../../test/fakes/agent.ts";
import { waitFor, within } from "../../../test/wait-for.ts";
import type { Command, OutputSink } from "../../agent/agent.ts";
import { AgentFailure } from "../../agent/failure.ts";
import { HoldingRows } from "../../db/holding-rows.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { AttachServerMessage, ExecServerMessage } from "../../wire/exec.ts";
import { PtyServerMessage } from "../../wire/pty-messages.ts";
import { compileCheck } from "../../wire/validation.ts";

// biome-ignore lint/suspicious/noExplicitAny: tests read whatever they expect to be there
type Message = any;

const api = new Api({ sockets_max: 5, socket_message_max_bytes: 65_536 });
const checks = [ExecServerMessage, AttachServerMessage, PtyServerMessage].map((schema) => compileCheck(schema));
let port = 0;
let id = "";
let agent: FakeAgent;

before(async () => {
  await api.app.listen({ host: "127.0.0.1", port: 0 });
  port = (api.app.server.address() as AddressInfo).port;
});
beforeEach(async () => {
  id = await api.capsule();
  agent = api.agent(id);
});
after(() => api.app.close());

/** A client that queues received messages and checks each against the schemas. */
class Client {
  readonly socket: WebSocket;
  readonly closed: Promise<[code: number, reason: string]>;
  readonly #messages: Message[] = [];
  #wake = () => {};
  #isClosed = false;

  constructor(path: string, headers: Record<string, string> = { "x-api-key": keys.red }) {
    this.socket = new WebSocket(`ws://127.0.0.1:${port}${path}`, { headers });
    this.socket.on("message", (data: RawData) => {
      const message = JSON.parse(data.toString());
      assert.ok(
        checks.some((check) => "value" in check(message)),
        data.toString(),
      );
      this.#messages.push(message);
      this.#wake();
    });
    this.closed = new Promise((resolve) => {
      this.socket.on("close", (code, reason) => {
        this.#isClosed = true;
        this.#wake();
        resolve([code, reason.toString()]);
      });
    });
    this.socket.on("error", () => {});
  }

  async opened(): Promise<this> {
    await within("the socket is open", once(this.socket, "open"));
    return this;
  }

  send(message: unknown): void {
    this.socket.send(typeof message === "string" ? message : JSON.stringify(message));
  }

  async next(): Promise<Message> {
    return await within("another message", this.#next());
  }

  async #next(): Promise<Message> {
    while (this.#messages.length === 0) {
      if (this.#isClosed) throw new Error("closed without another message");
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    return this.#messages.shift();
  }

  /** All messages until the close, and its code. */
  async rest(): Promise<[Message[], number]> {
    const [code] = await within("the socket is closed", this.closed);
    return [this.#messages, code];
  }
}

/** Counts from now on; the returned wait ends when the server has stopped reading a client. */
function pauseOf(t: TestContext): () => Promise<unknown> {
  const pause = t.mock.method(WebSocket.prototype, "pause");
  return () => waitFor("the server reads no more", () => pause.mock.callCount() > 0);
}

async function refusal(
  path: string,
  headers: Record<string, string> = { "x-api-key": keys.red },
): Promise<[number, string]> {
  const socket = new WebSocket(`ws://127.0.0.1:${port}${path}`, { headers });
  socket.on("error", () => {});
  const refused = within(`${path} is refused`, once(socket, "unexpected-response"));
  const [, response] = (await refused) as [unknown, IncomingMessage];
  let text = "";
  for await (const chunk of response) text += chunk;
  return [response.statusCode as number, JSON.parse(text).error.code];
}

const longPath = `/${"x".repeat(4_096)}`;
const suffixes = ["exec/stream", "pty", "processes/500/stream"];

describe("upgrades are refused as HTTP, in the order of checks", () => {
  for (const suffix of suffixes) {
    test(suffix, async () => {
      const path = `/v1/capsules/${id}/${suffix}`;
      assert.deepEqual(await refusal(path, {}), [401, "unauthorized"]);
      assert.deepEqual(await refusal(path, { "x-api-key": "capk_no" }), [401, "unauthorized"]);
      assert.deepEqual(await refusal(`/v1/capsules/cl-x/${suffix}?encoding=x`), [404, "not_found"]);
      assert.deepEqual(await refusal(path, { "x-api-key": keys.blue }), [404, "not_found"]);
      const paused = await api.capsule("paused");
      assert.deepEqual(await refusal(`/v1/capsules/${paused}/${suffix}?encoding=x`), [409, "invalid_state"]);
      if (suffix !== "pty") assert.deepEqual(await refusal(`${path}?encoding=x`), [400, "invalid_request"]);
      assert.deepEqual(await refusal("/v1/nothing"), [404, "not_found"]);
    });

    test(`${suffix} without an upgrade is 400`, async () => {
      const reply = await api.call("GET", `/v1/capsules/${id}/${suffix}`);
      assert.deepEqual([reply.status, reply.json.error.code], [400, "invalid_request"]);
      assert.equal((await api.call("POST", `/v1/capsules/${id}/${suffix}`)).status, 405);
    });
  }

  test("one pipelined behind another request closes only its own connection", async () => {
    const socket = connect(port, "127.0.0.1");
    const upgrade = "Connection: Upgrade\r\nUpgrade: websocket";
    socket.write(`GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/x HTTP/1.1\r\nHost: x\r\n${upgrade}\r\n\r\n`);
    socket.on("error", () => {});
    socket.resume();
    await once(socket, "close");
    assert.equal((await fetch(`http://127.0.0.1:${port}/healthz`)).status, 200);
  });

  test("one on the connection of an answer that was written is served, though Node hears of the write late", async () => {
    const held: (() => void)[] = [];
    api.app.server.once("connection", (socket: Socket) => {
      const write = socket.write.bind(socket) as (...of: unknown[]) => boolean;
      socket.write = ((...of: unknown[]) => {
        const last = of.at(-1);
        if (typeof last !== "function") return write(...of);
        return write(...of.slice(0, -1), (...done: unknown[]) =>
          held.push(() => (last as () => void)(...(done as []))),
        );
      }) as Socket["write"];
    });
    const client = connect(port, "127.0.0.1");
    let text = "";
    client.setEncoding("latin1").on("data", (chunk: string) => {
      text += chunk;
    });
    client.write("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    await waitFor("the answer", () => text.endsWith("}"));
    const asked = once(api.app.server, "upgrade");
    const key = `X-API-Key: ${keys.red}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ${"A".repeat(22)}==`;
    const upgrade = `Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n${key}\r\n\r\n`;
    client.write(`GET /v1/capsules/${id}/exec/stream HTTP/1.1\r\n${upgrade}`);
    await within("the upgrade", asked);
    for (const tell of held.splice(0)) tell();
    await waitFor("101", () => text.includes("HTTP/1.1 101 "));
    client.destroy();
  });

  test("hostile targets do not end the server", async () => {
    const upgrade = "Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    const targets = [
      "*",
      "//",
      "http://[",
      "/%",
      "/%00",
      "/v1/capsules/%ff/pty",
      `/${"%2e".repeat(4_000)}`,
      "/?ticket=%",
    ];
    for (const target of targets) {
      const socket = connect(port, "127.0.0.1");
      socket.on("error", () => {});
      socket.write(`GET ${target} HTTP/1.1\r\n${upgrade}${"\0".repeat(9)}`);
      socket.resume();
      await once(socket, "close");
    }
    assert.equal((await fetch(`http://127.0.0.1:${port}/healthz`)).status, 200);
  });

  test("one that throws in the server closes only its own connection, and is logged", () => {
    const socket = new PassThrough();
    api.app.server.emit("upgrade", { url: undefined } as never, socket as never, Buffer.alloc(0));
    assert.equal(socket.destroyed, true);
    assert.match(api.log.at(-1) ?? "", /an upgrade request could not be served/);
  });

  test("a client that hangs up before its socket is accepted is no error of the server", async () => {
    const { capsules } = api.service;
    const use = capsules.use.bind(capsules);
    const [asked, gone, refused] = Array.from({ length: 3 }, () => Promise.withResolvers<void>());
    capsules.use = (async (...all: Parameters<typeof use>) => {
      asked!.resolve();
      await gone!.promise;
      return await use(...all).finally(() => refused!.resolve());
    }) as typeof use;
    try {
      const logged = api.log.length;
      const taken = once(api.app.server, "upgrade") as Promise<[unknown, Socket]>;
      const client = new Client(`/v1/capsules/${id}/pty`);
      await within("the request", asked!.promise);
      client.socket.terminate();
      (await taken)[1].destroy(); // as after a reset
      gone!.resolve();
      await within(
        "the refusal",
        refused!.promise.catch(() => {}),
      );
      await new Promise(setImmediate);
      assert.deepEqual(
        api.log.slice(logged).filter((line) => JSON.parse(line).level >= 50),
        [],
      );
    } finally {
      capsules.use = use;
    }
  });

  test("a malformed handshake is 400 in JSON", async () => {
    for (const lines of [
      "Sec-WebSocket-Key: short\r\nSec-WebSocket-Version: 13",
      "Sec-WebSocket-Version: 13",
      "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 12",
    ]) {
      const socket = connect(port, "127.0.0.1");
      const top = `GET /v1/capsules/${id}/pty HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket`;
      socket.write(`${top}\r\nX-API-Key: ${keys.red}\r\n${lines}\r\n\r\n`);
      let text = "";
      for await (const chunk of socket) text += chunk;
      assert.match(text, /^HTTP\/1\.1 400 .*"code":"invalid_request"/s);
    }
  });

  test("an upgrade to another protocol is served as a plain request", async () => {
    const socket = connect(port, "127.0.0.1");
    socket.write(
      "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n",
    );
    assert.match(String((await once(socket, "data"))[0]), /^HTTP\/1\.1 200 /);
    socket.destroy();
  });

  test("attaching to an unknown process is 404", async () => {
    for (const selector of ["499", "1", "nope"]) {
      assert.deepEqual(await refusal(`/v1/capsules/${id}/processes/${selector}/stream`), [404, "not_found"]);
    }
  });

  test("a team has a bounded number", async () => {
    const clients = Array.from({ length: 5 }, () => new Client(`/v1/capsules/${id}/pty`));
    await Promise.all(clients.map((client) => client.opened()));
    assert.deepEqual(await refusal(`/v1/capsules/${id}/pty`), [429, "quota_exceeded"]);
    for (const client of clients) client.socket.close();
    await Promise.all(clients.map((client) => client.closed));
    const again = await new Client(`/v1/capsules/${id}/pty`).opened();
    again.socket.close();
    await again.closed;
  });
});

describe("a revoked key", () => {
  test("closes the sockets it opened, with an error message and a clean close; its tickets are invalid", async (t) => {
    const { teams } = api.service;
    const { id: keyId, key } = teams.issueKey({ teamId: "team-red", keyId: "key-red" }, "to be revoked");
    const headers = { "x-api-key": key };
    const path = `/v1/capsules/${id}/exec/stream`;
    const { json } = await api.call("POST", "/v1/ws-tickets", { json: { path }, key });
    let listeners = 0;
    const onRevoked = teams.onRevoked.bind(teams);
    t.mock.method(teams, "onRevoked", (...asked: Parameters<typeof onRevoked>) => {
      listeners++;
      const remove = onRevoked(...asked);
      return () => {
        listeners--;
        remove();
      };
    });
    const exec = await new Client(path, headers).opened();
    const pty = await new Client(`/v1/capsules/${id}/pty`, headers).opened();
    const other = await new Client(path).opened();
    assert.equal(listeners, 3);
    teams.revokeKey(keyId);
    const error = { type: "error", data: "the API key is no longer valid" };
    assert.deepEqual(await exec.rest(), [[error], 4401]);
    assert.deepEqual(await pty.rest(), [[{ ...error, fatal: true }], 4401]);
    assert.deepEqual(await refusal(path, headers), [401, "unauthorized"]);
    assert.deepEqual(await refusal(`${path}?ticket=${json.ticket}`, {}), [401, "unauthorized"]);
    other.send({ type: "start", cmd: "true" });
    await waitFor("the command runs", () => agent.runs.length === 1);
    other.socket.close();
    await other.closed;
    await waitFor("no socket listens for revocations", () => listeners === 0);
  });
});

describe("tickets", () => {
  const ticketFor = async (path: string) =>
    (await api.call("POST", "/v1/ws-tickets", { json: { path } })).json.ticket as string;

  test("open one socket, once, of one team and path", async () => {
    const path = `/v1/capsules/${id}/pty`;
    const ticket = await ticketFor(path);
    const client = await new Client(`${path}?ticket=${ticket}`, {}).opened();
    assert.deepEqual(await refusal(`${path}?ticket=${ticket}`, {}), [401, "unauthorized"]);
    client.socket.close();
    await client.closed;
    const other = await ticketFor(`/v1/capsules/${id}/exec/stream`);
    assert.deepEqual(await refusal(`${path}?ticket=${other}`, {}), [401, "unauthorized"]);
    assert.ok(!api.log.join("").includes(ticket));
  });

  test("expire, and are valid for sockets only", async (t) => {
    const own = new Api(); // its rates are measured by the clock that the test moves
    const path = `/v1/capsules/${await own.capsule()}/pty`;
    const ticketFor = async (path: string) =>
      (await own.call("POST", "/v1/ws-tickets", { json: { path } })).json.ticket as string;
    const statusWith = async (path: string, ticket: string) =>
      (await own.app.inject(`${path}?ticket=${ticket}`)).statusCode;
    const [early, late] = [await ticketFor(path), await ticketFor(path)];
    assert.notEqual(await statusWith(path, early), 401);
    const after = performance.now() + 30_000;
    t.mock.method(performance, "now", () => after);
    assert.equal(await statusWith(path, late), 401);
    assert.equal(await statusWith("/v1/capsules", await ticketFor("/v1/capsules")), 401);
  });

  test("are for paths of this API only", async () => {
    for (const path of ["", "/healthz", "v1/x", "/v1/x?y", 1]) {
      assert.equal((await api.call("POST", "/v1/ws-tickets", { json: { path } })).status, 400);
    }
  });
});

describe("exec stream", () => {
  const open = (query = "") => new Client(`/v1/capsules/${id}/exec/stream${query}`).opened();
  const running = async (client: Client): Promise<FakeRun> => {
    client.send({ type: "start", cmd: "hang", args: [] });
    assert.equal((await client.next()).type, "start");
    return agent.runs.at(-1) as FakeRun;
  };

  test("starts, streams, exits, closes", async () => {
    const client = await open();
    const asked = { cmd: "hang", args: ["a"], envs: { A: "1" }, cwd: "/tmp", user: "nobody", tag: "mine" };
    client.send({ type: "start", ...asked });
    assert.deepEqual(await client.next(), { type: "start", pid: 101 });
    assert.equal(api.isBusy(id), true);
    const run = agent.runs[0] as FakeRun;
    assert.deepEqual(run.command, asked);
    run.print("stdout", "out");
    run.print("stderr", "err");
    run.exit(3);
    assert.deepEqual(await client.rest(), [
      [
        { type: "stdout", data: "out" },
        { type: "stderr", data: "err" },
        { type: "exit", exit_code: 3 },
      ],
      1000,
    ]);
    await waitFor("all output is consumed", () => run.consumedBytes === 6);
    assert.equal(api.isBusy(id), false);
  });

  test("a user or a tag that the guest refuses is told with its code", async () => {
    const refusals = [
      new AgentFailure("invalid", "invalid_request", "no user bob"),
      new CapsuleError("conflict", "taken"),
    ];
    for (const refusal of refusals) {
      agent.onRun = (run) => run.fail(refusal);
      const client = await open();
      client.send({ type: "start", cmd: "hang", user: "bob", tag: "mine" });
      const [messages] = await client.rest();
      const { message: data, code } = refusal;
      assert.deepEqual(messages.at(-1), { type: "error", data, code });
    }
    agent.onRun = () => {};
  });

  test("args are optional", async () => {
    const client = await open();
    client.send({ type: "start", cmd: "true" });
    assert.deepEqual((await client.rest())[0].at(-1), { type: "exit", exit_code: 0 });
  });

  test("a character cut in two is whole; invalid bytes are U+FFFD", async () => {
    const client = await open();
    const run = await running(client);
    const text = Buffer.from("€ü");
    for (const byte of text) run.print("stdout", Buffer.from([byte]));
    run.print("stderr", Buffer.from([0x41, 0xff, 0x42]));
    run.print("stdout", Buffer.from([0xe2, 0x82]));
    run.exit(0);
    const [messages] = await client.rest();
    const joined = (type: string) => messages.filter((each) => each.type === type).map((each) => each.data);
    assert.deepEqual(joined("stdout"), ["€", "ü", "\ufffd"]);
    assert.deepEqual(joined("stderr"), ["A\ufffdB"]);
    await waitFor("all output is consumed", () => run.consumedBytes === 10);
  });

  test("?encoding=base64 keeps every byte", async () => {
    const client = await open("?encoding=base64");
    const run = await running(client);
    run.print("stdout", Buffer.from([0xe2, 0x82]));
    run.exit(0);
    const [messages] = await client.rest();
    assert.equal(messages[0].data, Buffer.from([0xe2, 0x82]).toString("base64"));
  });

  test("a missing command is an error, then the close", async () => {
    const client = await open();
    client.send({ type: "start", cmd: "nope", args: [] });
    const [messages, code] = await client.rest();
    assert.equal(messages.length, 1);
    assert.equal(messages[0].type, "error");
    assert.match(messages[0].data, /nope: command not found/);
    assert.deepEqual([messages[0].code, code], ["command_not_found", 1000]);
  });

  test("an error of a process that cannot be started has the code that it has as an HTTP answer", async () => {
    const client = await open();
    const run = await running(client);
    run.fail(new AgentFailure("too_many", "quota_exceeded", "too many processes"));
    const error = { type: "error", data: "too many processes", code: "quota_exceeded" };
    assert.deepEqual(await client.rest(), [[error], 1000]);
  });

  test("a start that the capsule's older agent cannot serve has the code of its HTTP answer too", async () => {
    const client = await open();
    const run = await running(client);
    run.fail(new CapsuleError("conflict", "the agent lacks the verb"));
    assert.deepEqual(await client.rest(), [
      [{ type: "error", data: "the agent lacks the verb", code: "conflict" }],
      1000,
    ]);
  });

  test("stop kills, and the exit follows", async () => {
    const client = await open();
    const run = await running(client);
    client.send({ type: "stop" });
    assert.deepEqual(await client.rest(), [[{ type: "exit", exit_code: 137 }], 1000]);
    assert.ok(run.stopped);
  });

  test("a client's disconnect kills its command", async () => {
    const client = await open();
    const run = await running(client);
    client.socket.terminate();
    await waitFor("the command is cancelled", () => run.cancelled && !api.isBusy(id));
  });

  test("bad messages before the start close it with 4400", async () => {
    const bad: unknown[] = [
      "",
      "{",
      "null",
      "[]",
      '"start"',
      {},
      { type: "begin" },
      { type: "stop" },
      { type: "start" },
      { type: "start", cmd: "" },
      { type: "start", cmd: 1 },
      { type: "start", cmd: "true", args: "x" },
      { type: "start", cmd: "true", args: [null] },
      { type: "start", cmd: "tr\u0000ue" },
      { type: "start", cmd: "true", envs: { A: 1 } },
      { type: "start", cmd: "true", cwd: longPath },
      { type: "start", cmd: "true", cwd: "" },
      { type: "start", cmd: "true", user: "" },
      { type: "start", cmd: "true", user: 0 },
      { type: "start", cmd: "true", user: "ro\u0000ot" },
      { type: "start", cmd: "true", tag: "123" },
      { type: "start", cmd: "true", tag: "a/b" },
      { type: "start", cmd: "true", stdin: "text" },
      { type: "stdin", data: "x" },
      { type: "stdin_end" },
      { type: "__proto__" },
      { type: ["start"] },
    ];
    for (const message of bad) {
      const client = await open();
      client.send(message);
      const [messages, code] = await client.rest();
      assert.deepEqual([messages.map(({ type }) => type), code], [["error"], 4400], JSON.stringify(message));
    }
    assert.equal(agent.runs.length, 0);
  });

  const reading = async (): Promise<{ client: Client; run: FakeRun }> => {
    const client = await open();
    client.send({ type: "start", cmd: "hang", stdin: true });
    await client.next();
    return { client, run: agent.runs.at(-1) as FakeRun };
  };

  test("standard input: text, base64, the end", async () => {
    const { client, run } = await reading();
    assert.equal(run.command.stdin, true);
    client.send({ type: "stdin", data: "grüße\0" });
    client.send({ type: "stdin", data: "/wA=", encoding: "base64" });
    client.send({ type: "stdin", data: "YQ==", encoding: "utf-8" });
    client.send({ type: "stdin", data: "" });
    client.send({ type: "stdin_end" });
    await waitFor("the end", () => run.hasInputEnded);
    const expected = [Buffer.from("grüße\0"), Buffer.from([0xff, 0]), Buffer.from("YQ==")];
    assert.deepEqual(Buffer.concat(run.input), Buffer.concat(expected));
    run.exit(0);
    assert.deepEqual(await client.rest(), [[{ type: "exit", exit_code: 0 }], 1000]);
  });

  test("input that is sent before the start is answered reaches the command", async () => {
    const client = await open();
    client.send({ type: "start", cmd: "hang", stdin: true });
    client.send({ type: "stdin", data: "early" });
    client.send({ type: "stdin_end" });
    await waitFor("the end", () => agent.runs[0]?.hasInputEnded === true);
    assert.equal(Buffer.concat(agent.runs[0]?.input ?? []).toString(), "early");
    client.socket.close();
  });

  test("input that cannot be used is answered and changes nothing", async () => {
    const { client, run } = await reading();
    const refuses = async (messages: unknown[], of = client) => {
      for (const message of messages) {
        of.send(message);
        assert.equal((await of.next()).type, "error", JSON.stringify(message));
      }
    };
    await refuses([
      { type: "stdin" },
      { type: "stdin", data: 1 },
      { type: "stdin", data: "\ud800" },
      { type: "stdin", data: "YQ==", encoding: "hex" },
      ...["a", "YQ", "YQ=", "Y Q=", "-_8=", "YQ==YQ==", "===="].map((data) => ({
        ...{ type: "stdin", data },
        encoding: "base64",
      })),
    ]);
    assert.equal(run.input.length, 0);
    client.send({ type: "stdin", data: "good" });
    client.send({ type: "stdin_end" });
    await refuses([{ type: "stdin", data: "late" }, { type: "stdin_end" }]);
    assert.deepEqual([Buffer.concat(run.input).toString(), run.hasInputEnded], ["good", true]);
    run.exit(4);
    assert.deepEqual((await client.rest())[0], [{ type: "exit", exit_code: 4 }]);

    const without = await open();
    const other = await running(without);
    assert.equal("stdin" in other.command, false);
    await refuses([{ type: "stdin", data: "x" }, { type: "stdin_end" }], without);
    assert.deepEqual([other.input.length, other.hasInputEnded], [0, false]);
    other.exit(0);
    await without.rest();
  });

  test("a program that does not read its input stops the client's sending; a stop close behind it gets through", async (t) => {
    const paused = pauseOf(t);
    const { client, run } = await reading();
    run.isFull = true;
    const data = "x".repeat(30_000);
    for (let i = 0; i < 400; i++) client.send({ type: "stdin", data });
    await paused();
    assert.ok(run.input.length < 100, `${run.input.length} messages were taken`);
    run.drain();
    await waitFor("all input", () => run.input.length === 400);
    run.isFull = true;
    client.send({ type: "stdin", data });
    client.send({ type: "stop" });
    assert.deepEqual(await client.rest(), [[{ type: "exit", exit_code: 137 }], 1000]);
  });

  test("a client that leaves with its input unread is noticed, and its command killed", async (t) => {
    t.mock.timers.enable({ apis: ["setInterval"] });
    const { client, run } = await reading();
    run.isFull = true;
    for (let i = 0; i < 400; i++) client.send({ type: "stdin", data: "x".repeat(30_000) });
    await waitFor("much input", () => run.input.length >= 35);
    client.socket.terminate();
    await waitFor("the command is cancelled", () => {
      t.mock.timers.tick(5_000);
      return run.cancelled;
    });
  });

  test("bad messages while it runs are answered, and it runs on", async () => {
    const client = await open();
    const run = await running(client);
    for (const message of ["{", { type: "start", cmd: "true" }, { type: "input" }]) {
      client.send(message);
      assert.equal((await client.next()).type, "error");
    }
    client.socket.send(Buffer.from("{}"), { binary: true });
    assert.equal((await client.next()).type, "error");
    run.exit(0);
    assert.deepEqual((await client.rest())[0], [{ type: "exit", exit_code: 0 }]);
  });

  test("binary frames and oversized messages are refused with a close frame", async () => {
    const binary = await open();
    binary.socket.send(Buffer.from("{}"), { binary: true });
    assert.equal((await binary.rest())[1], 4400);
    const large = await open();
    large.send({ type: "start", cmd: "x".repeat(65_536) });
    assert.equal((await large.rest())[1], 1009);
  });

  test("pause and destroy send the reason and close with their codes", async () => {
    const paused = await open();
    const run = await running(paused);
    await api.become(id, "paused");
    assert.deepEqual(await paused.rest(), [[{ type: "error", data: "the capsule was paused" }], 4409]);
    await waitFor("the command is cancelled", () => run.cancelled);
    await api.become(id, "running");
    agent = api.agent(id);
    const destroyed = await open();
    await running(destroyed);
    await api.call("DELETE", `/v1/capsules/${id}`);
    assert.deepEqual(await destroyed.rest(), [[{ type: "error", data: "the capsule was destroyed" }], 4404]);
  });

  test("a capsule that is moved to another host closes with 1001, and no error", async () => {
    const client = await open();
    await running(client);
    const mark = () => new HoldingRows(api.service.database).setMoving(id, true);
    assert.equal(await api.service.pauses.toMove(id, mark), true);
    assert.deepEqual(await client.rest(), [[], 1001]);
    assert.equal(new HoldingRows(api.service.database).isMoving(id), true);
  });

  test("when the guest ends first, the close waits for the reason", async () => {
    const client = await open();
    const run = await running(client);
    run.fail(new CapsuleError("agent_error", "the guest's connection was lost"));
    await api.become(id, "paused");
    assert.deepEqual(await client.rest(), [[{ type: "error", data: "the capsule was paused" }], 4409]);
  });

  test("a slow reader slows the process down; nothing is dropped or buffered without bound", async () => {
    const client = await open("?encoding=base64");
    const run = await running(client);
    client.socket.pause();
    const chunk = Buffer.alloc(65_536, "x");
    const windowBytes = 262_144;
    let printed = 0;
    const total = 40 * 1024 * 1024;
    const print = () => {
      while (printed < total && printed - run.consumedBytes < windowBytes) {
        run.print("stdout", chunk);
        printed += chunk.length;
      }
    };
    const consumed = run.consumed.bind(run);
    run.consumed = (bytes) => {
      consumed(bytes);
      queueMicrotask(print);
    };
    print();
    for (let turns = 0; turns < 300; turns++) await new Promise(setImmediate);
    assert.ok(printed < total, `${printed} bytes were taken from the process`);
    let received = 0;
    client.socket.on("message", (data: RawData) => {
      const { type, data: text } = JSON.parse(data.toString());
      if (type === "stdout") received += Buffer.from(text, "base64").length;
    });
    client.socket.resume();
    await waitFor("all output is consumed", () => printed >= total && run.consumedBytes >= total);
    run.exit(0);
    await client.closed;
    assert.equal(received, total);
  });
});

test("a slow reader of small chunks stays connected and gets them joined", async () => {
  for (const suffix of ["exec/stream", "pty"]) {
    const client = await new Client(`/v1/capsules/${id}/${suffix}`).opened();
    client.send({ type: "start", cmd: "hang" });
    await client.next();
    const run = (suffix === "pty" ? agent.ptys[0] : agent.runs[0]) as FakeRun;
    const channel = suffix === "pty" ? "pty" : "stdout";
    client.socket.pause();
    const large = Buffer.alloc(65_536, "x");
    let printed = 0; // until no buffer on the way accepts more
    for (let chunk = 0; chunk < 2_000 && printed - run.consumedBytes < 4 * large.length; chunk++) {
      run.print(channel, large);
      printed += large.length;
      await new Promise(setImmediate);
    }
    assert.ok(run.consumedBytes < printed, `${printed} bytes were taken`);
    for (let i = 0; i < 262_144; i++) run.print(channel, "y");
    run.exit(0);
    client.socket.resume();
    const [messages, code] = await client.rest();
    assert.equal(code, 1000);
    const text = messages.map(({ type, data = "" }) => (type === "output" ? Buffer.from(data, "base64") : data));
    assert.equal(text.join(""), `${"x".repeat(printed)}${"y".repeat(262_144)}`);
    assert.ok(messages.length < printed / large.length + 10, `${messages.length} messages`);
  }
});

describe("attach", () => {
  const attached = async (): Promise<Client> => {
    const client = await new Client(`/v1/capsules/${id}/processes/500/stream`).opened();
    await client.next();
    return client;
  };

  test("messages that cannot be used are answered, text or binary", async () => {
    const client = await attached();
    client.socket.send(Buffer.from("{}"), { binary: true });
    for (const message of ["anything", { type: "stop" }, { type: "stdin", data: "a", encoding: "base64" }])
      client.send(message);
    for (let i = 0; i < 4; i++) assert.equal((await client.next()).type, "error");
    assert.equal(agent.inputs.length, 0);
    agent.attached[0]?.exit(0);
    assert.deepEqual(await client.rest(), [[{ type: "exit", exit_code: 0 }], 1000]);
  });

  test("standard input is opened by the first message, and left open by the client's leaving", async () => {
    const [client, other] = [await attached(), await attached()];
    client.send({ type: "stdin", data: "one" });
    client.send({ type: "stdin", data: "AP8=", encoding: "base64" });
    await waitFor("both messages", () => agent.inputs[0]?.input.length === 2);
    const [input] = agent.inputs;
    assert.deepEqual(input?.selector, { pid: 500 });
    assert.deepEqual(Buffer.concat(input?.input ?? []), Buffer.from("one\0\xff", "latin1"));
    client.socket.close();
    await waitFor("it is released", () => input?.isReleased === true);
    assert.equal(input?.hasInputEnded, false);
    other.send({ type: "stdin_end" });
    await waitFor("the end", () => agent.inputs[1]?.hasInputEnded === true);
    other.send({ type: "stdin", data: "late" });
    assert.match((await other.next()).data, /stdin_end was sent/);
    agent.attached[1]?.exit(0);
    await other.rest();
  });

  test("each message for a process without open standard input is an error, and the client stays", async () => {
    agent.inputRefusal = new AgentFailure("conflict", "conflict", "standard input is not open");
    const client = await attached();
    const error = { type: "error", data: "standard input is not open", code: "conflict" };
    for (let round = 0; round < 2; round++) {
      for (let i = 0; i < 3; i++) client.send({ type: "stdin", data: "x" });
      for (let i = 0; i < 3; i++) assert.deepEqual(await client.next(), error);
    }
    client.send({ type: "stdin_end" });
    assert.deepEqual(await client.next(), error);
    agent.attached[0]?.exit(0);
    assert.deepEqual(await client.rest(), [[{ type: "exit", exit_code: 0 }], 1000]);
  });

  test("input of a process that is gone is thrown away", async () => {
    agent.inputRefusal = new AgentFailure("not_found", "not_found", "no process 500");
    const client = await attached();
    client.send({ type: "stdin", data: "x" });
    client.send({ type: "stdin_end" });
    await waitFor("it is tried", () => agent.inputs.length > 0);
    agent.attached[0]?.exit(0);
    assert.deepEqual(await client.rest(), [[{ type: "exit", exit_code: 0 }], 1000]);
  });

  test("a program that does not read stops the client's sending, until another client ends its input", async (t) => {
    const paused = pauseOf(t);
    const client = await attached();
    client.send({ type: "stdin", data: "x" });
    await waitFor("it is open", () => agent.inputs.length === 1);
    const [input] = agent.inputs;
    input!.isFull = true;
    for (let i = 0; i < 400; i++) client.send({ type: "stdin", data: "x".repeat(30_000) });
    await paused();
    assert.ok(input!.input.length < 100, `${input!.input.length} messages were taken`);
    agent.inputRefusal = new AgentFailure("conflict", "conflict", "standard input is not open");
    input!.sink.ended();
    assert.equal((await client.next()).code, "conflict");
    client.socket.terminate();
  });

  test("sends output from now on; the process survives the client", async () => {
    const client = await new Client(`/v1/capsules/${id}/processes/proc-0123abcd/stream`).opened();
    assert.deepEqual(await client.next(), { type: "start", pid: 500 });
    const run = agent.attached[0] as FakeRun;
    run.print("stdout", "later");
    assert.deepEqual(await client.next(), { type: "stdout", data: "later" });
    run.print("stderr", "still");
    assert.deepEqual(await client.next(), { type: "stderr", data: "still" });
    assert.equal(run.stopped, false);
    client.socket.close();
    await waitFor("the command is cancelled", () => run.cancelled);
    assert.equal(api.lastActiveAt(id), null);
  });

  test("sends the exit and closes", async () => {
    const client = await new Client(`/v1/capsules/${id}/processes/500/stream`).opened();
    await client.next();
    agent.attached[0]?.exit(9);
    assert.deepEqual(await client.rest(), [[{ type: "exit", exit_code: 9 }], 1000]);
  });

  test("a reader that is too slow for the guest is closed with an error", async () => {
    const client = await new Client(`/v1/capsules/${id}/processes/500/stream`).opened();
    await client.next();
    agent.attached[0]?.fail(new AgentFailure("slow_reader", "quota_exceeded", "the reader fell behind"));
    assert.deepEqual(await client.rest(), [[{ type: "error", data: "the reader fell behind" }], 1008]);
  });
});

describe("kept output", () => {
  const path = (query: string) => `/v1/capsules/${id}/processes/500/stream?${query}`;
  const attached = async (query: string): Promise<Client> => {
    const client = await new Client(path(query)).opened();
    assert.deepEqual(await client.next(), { type: "start", pid: 500 });
    return client;
  };

  test("`from` is passed on; without it and `offsets`, agents of earlier releases do", async () => {
    agent.kept.written = 100;
    for (const query of ["", "from=now", "from=now&offsets=0", "from=start", "from=7", "offsets=1", "from=100"]) {
      const client = await attached(query);
      client.socket.close();
      await client.closed;
    }
    assert.deepEqual(agent.starts, ["start", 7, "now", 100]);
  });

  test("dropped bytes are announced before any output", async () => {
    Object.assign(agent.kept, { first: 40, written: 100 });
    for (const [query, dropped] of [
      ["from=start", 40],
      ["from=15&encoding=base64", 25],
      ["from=40", 0],
      ["from=now&offsets=1", 0],
    ] as const) {
      const client = await attached(query);
      agent.attached.at(-1)?.print("stdout", "x");
      const message = await client.next();
      if (dropped > 0) {
        assert.deepEqual(message, { type: "dropped", bytes: dropped }, query);
        assert.equal((await client.next()).type, "stdout");
      } else assert.equal(message.type, "stdout", query);
      agent.attached.at(-1)?.exit(0);
      await client.rest();
    }
  });

  for (const query of ["from=", "from=begin", "from=-1", "from=1.5", "from=0x1", "from=101", `from=${"9".repeat(16)}`])
    test(`?${query} is 400`, async () => {
      agent.kept.written = 100;
      assert.deepEqual(await refusal(path(query)), [400, "invalid_request"]);
    });

  test("offsets count both streams, and data is base64 whatever the encoding", async () => {
    Object.assign(agent.kept, { first: 0, written: 100 });
    const attaching = await attached("from=90&offsets=1&encoding=utf-8");
    const running = await new Client(`/v1/capsules/${id}/exec/stream?offsets=1`).opened();
    running.send({ type: "start", cmd: "hang" });
    await running.next();
    for (const [client, run, offset] of [
      [attaching, agent.attached[0], 90],
      [running, agent.runs[0], 0],
    ] as const) {
      run?.print("stdout", "\xe4");
      run?.print("stderr", "bc");
      run?.print("stdout", "d");
      run?.exit(0);
      assert.deepEqual((await client.rest())[0], [
        { type: "stdout", data: Buffer.from("\xe4").toString("base64"), offset },
        { type: "stderr", data: "YmM=", offset: offset + 2 },
        { type: "stdout", data: "ZA==", offset: offset + 4 },
        { type: "exit", exit_code: 0 },
      ]);
      assert.equal(run?.consumedBytes, 5);
    }
  });

  test("a stream that survives tells its tag", async () => {
    for (const [survive, rest] of [
      [true, { tag: "" }],
      [false, {}],
    ] as const) {
      const client = await new Client(`/v1/capsules/${id}/exec/stream`).opened();
      client.send({ type: "start", cmd: "hang", tag: "mine", survive });
      const { pid, ...start } = await client.next();
      assert.deepEqual(start, { type: "start", ...rest });
      assert.deepEqual(agent.runs.at(-1)?.command, {
        ...{ cmd: "hang", args: [], envs: undefined, cwd: undefined, user: undefined, tag: "mine" },
        ...(survive && { survive }),
      });
      client.socket.close();
      await client.closed;
    }
  });

  test("of a saved agent that lacks the verb is 409", async () => {
    agent.attachFrom = (_selector, _start, sink) => {
      queueMicrotask(() => sink.failed(new CapsuleError("conflict", "this agent has no ATTACH_FROM")));
      return { consumed() {}, stop() {}, cancel() {} } as unknown as FakeRun;
    };
    assert.deepEqual(await refusal(path("from=start")), [409, "conflict"]);
  });
});

test("a cwd that is too long is refused in the same words by every start of a command", async () => {
  const message = { type: "start", cmd: "true", cwd: longPath };
  const answers = await Promise.all(
    ["exec/stream", "pty"].map(async (suffix) => {
      const client = await new Client(`/v1/capsules/${id}/${suffix}`).opened();
      client.send(message);
      return (await client.next()).data;
    }),
  );
  const { json } = await api.call("POST", `/v1/capsules/${id}/exec`, { json: message });
  assert.equal(json.error.message, "cwd is longer than 4096 bytes");
  assert.deepEqual(answers, [json.error.message, json.error.message]);
  assert.deepEqual([agent.runs.length, agent.ptys.length], [0, 0]);
});

describe("pty", () => {
  const open = () => new Client(`/v1/capsules/${id}/pty`).opened();
  const started = async (client: Client, message: object = { type: "start" }): Promise<FakePty> => {
    client.send(message);
    assert.deepEqual(await client.next(), { type: "started", tag: "pty-0123abcd", pid: 600 });
    return agent.ptys.at(-1) as FakePty;
  };
  const base64 = (text: string) => Buffer.from(text).toString("base64");

  test("start has defaults for everything", async () => {
    const client = await open();
    const pty = await started(client);
    const defaults = { envs: undefined, cwd: undefined, user: undefined, tag: undefined };
    assert.deepEqual(pty.command, { cmd: "/bin/bash", args: [], ...defaults });
    assert.deepEqual(pty.size, { cols: 80, rows: 24 });
    client.socket.close();
  });

  test("start passes its fields", async () => {
    const client = await open();
    const asked = { cmd: "sh", args: ["-l"], envs: { A: "1" }, cwd: "/tmp", user: "nobody" };
    const pty = await started(client, { type: "start", ...asked, cols: 132, rows: 50 });
    assert.deepEqual(pty.command, { ...asked, tag: undefined });
    assert.deepEqual(pty.size, { cols: 132, rows: 50 });
    client.socket.close();
  });

  test("input, output, resize, kill, exit", async () => {
    const client = await open();
    const pty = await started(client);
    client.send({ type: "input", data: base64("ls\n") });
    assert.deepEqual(await client.next(), { type: "output", data: base64("ls\n") });
    await waitFor("all output is consumed", () => pty.consumedBytes === 3);
    client.send({ type: "resize", cols: 100, rows: 30 });
    client.send({ type: "kill" });
    assert.deepEqual(await client.rest(), [[{ type: "exit", exit_code: 137 }], 1000]);
    assert.deepEqual(pty.size, { cols: 100, rows: 30 });
  });

  test("`connect` takes `from: start`, and nothing else", async () => {
    for (const from of [undefined, "start"]) {
      const client = await open();
      await started(client, { type: "connect", tag: "pty-0123abcd", from });
      client.socket.close();
      await client.closed;
    }
    assert.deepEqual(agent.joins, [false, true]);
    const client = await open();
    client.send({ type: "connect", tag: "pty-0123abcd", from: "now" });
    assert.equal((await client.next()).type, "error");
    client.socket.close();
    await client.closed;
  });

  test("a session survives its client's disconnect and is rejoined by its tag", async () => {
    const first = await open();
    const pty = await started(first);
    first.socket.terminate();
    await waitFor("the session is left", () => pty.cancelled);
    assert.equal(pty.stopped, false);
    const second = await open();
    await started(second, { type: "connect", tag: "pty-0123abcd" });
    second.socket.close();
  });

  test("a user that the guest refuses is told with its code", async (t) => {
    t.mock.method(agent, "pty", (command: Command, size: { cols: number; rows: number }, sink: OutputSink) => {
      queueMicrotask(() => sink.failed(new AgentFailure("invalid", "invalid_request", `no user ${command.user}`)));
      return new FakePty(command, size, sink);
    });
    const client = await open();
    client.send({ type: "start", user: "bob" });
    const error = { type: "error", data: "no user bob", fatal: true, code: "invalid_request" };
    assert.deepEqual(await client.rest(), [[error], 1000]);
  });

  test("an unknown tag is a fatal error", async () => {
    const client = await open();
    client.send({ type: "connect", tag: "pty-ffffffff" });
    const [messages, code] = await client.rest();
    assert.deepEqual(messages, [{ type: "error", data: "no such session", fatal: true, code: "not_found" }]);
    assert.equal(code, 1000);
  });

  test("a program that does not read its input stops the client's sending", async (t) => {
    const paused = pauseOf(t);
    const client = await open();
    const pty = await started(client);
    pty.isFull = true;
    pty.echoes = false;
    const line = base64("x".repeat(30_000));
    for (let i = 0; i < 400; i++) client.send({ type: "input", data: line });
    await paused();
    assert.ok(pty.input.length < 100, `${pty.input.length} messages were taken`);
    pty.drain();
    await waitFor("all input", () => pty.input.length === 400);
    client.socket.close();
  });

  test("a kill or a resize behind input that the program does not read gets through", async () => {
    const client = await open();
    const pty = await started(client);
    pty.isFull = true;
    pty.echoes = false;
    for (let i = 0; i < 10; i++) client.send({ type: "input", data: base64("x".repeat(30_000)) });
    client.send({ type: "resize", cols: 9, rows: 8 });
    client.send({ type: "kill" });
    assert.deepEqual(await client.rest(), [[{ type: "exit", exit_code: 137 }], 1000]);
    assert.deepEqual(pty.size, { cols: 9, rows: 8 });
  });

  test("a client whose input waits for its program is not dropped", async (t) => {
    const paused = pauseOf(t);
    t.mock.timers.enable({ apis: ["setInterval"] });
    const client = await open();
    const pty = await started(client);
    pty.isFull = true;
    pty.echoes = false;
    const line = base64("x".repeat(30_000));
    for (let i = 0; i < 400; i++) client.send({ type: "input", data: line });
    await paused();
    assert.ok(pty.input.length < 100, `${pty.input.length} messages were taken`);
    t.mock.timers.tick(90_000);
    pty.drain();
    t.mock.timers.tick(30_000);
    await Promise.race([
      waitFor("all input", () => pty.input.length === 400),
      client.closed.then(([code]) => assert.fail(`closed with ${code}`)),
    ]);
    client.socket.close();
    await client.closed;
  });

  test("bad messages: fatal before a session, answered within one", async () => {
    const bad = [
      "{",
      { type: "input", data: "YQ==" },
      { type: "resize", cols: 1, rows: 1 },
      { type: "kill" },
      { type: "connect" },
      { type: "connect", tag: 1 },
      { type: "start", cols: 0 },
      { type: "start", cols: 65_536 },
      { type: "start", rows: 1.5 },
      { type: "start", cols: "80" },
      { type: "start", envs: [] },
      { type: "start", user: "" },
      { type: "start", cwd: longPath },
    ];
    for (const message of bad) {
      const client = await open();
      client.send(message);
      const [messages, code] = await client.rest();
      const isRefused = messages.at(-1)?.type === "error" && messages.at(-1)?.fatal === true && code === 4400;
      assert.ok(isRefused, `${JSON.stringify(message)}: ${JSON.stringify(messages)} ${code}`);
    }
    const client = await open();
    const pty = await started(client);
    const slips = [
      "{",
      { type: "input", data: "?" },
      { type: "input", data: "YQ=" },
      { type: "start" },
      { type: "resize", cols: 0, rows: 1 },
    ];
    for (const slip of slips) {
      client.send(slip);
      const answer = await client.next();
      assert.deepEqual([answer.type, answer.fatal], ["error", false], JSON.stringify(slip));
    }
    assert.equal(pty.cancelled, false);
    client.socket.close();
  });

  test("pause is fatal, with its code", async () => {
    const client = await open();
    await started(client);
    await api.become(id, "paused");
    const end = [[{ type: "error", data: "the capsule was paused", fatal: true }], 4409];
    assert.deepEqual(await client.rest(), end);
  });
});

describe("keepalive", () => {
  test("a terminal is pinged in JSON, every socket by protocol; one that does not answer is dropped", async (t) => {
    t.mock.timers.enable({ apis: ["setInterval"] });
    const client = await new Client(`/v1/capsules/${id}/pty`).opened();
    const ponged = once(client.socket, "ping");
    t.mock.timers.tick(30_000);
    await ponged;
    assert.deepEqual(await client.next(), { type: "ping" });
    const silent = new WebSocket(`ws://127.0.0.1:${port}/v1/capsules/${id}/exec/stream`, {
      headers: { "x-api-key": keys.red },
      autoPong: false,
    });
    silent.on("error", () => {});
    await once(silent, "open");
    const pinged = once(silent, "ping");
    t.mock.timers.tick(30_000);
    await pinged;
    const dropped = once(silent, "close");
    t.mock.timers.tick(30_000);
    assert.equal((await dropped)[0], 1006);
    client.socket.close();
    await client.closed;
  });
});

test("a server that stops closes its sockets with 1001", async () => {
  const other = new Api();
  await other.app.listen({ host: "127.0.0.1", port: 0 });
  const { port: otherPort } = other.app.server.address() as AddressInfo;
  const capsule = await other.capsule();
  const socket = new WebSocket(`ws://127.0.0.1:${otherPort}/v1/capsules/${capsule}/pty`, {
    headers: { "x-api-key": keys.red },
  });
  await once(socket, "open");
  const closed = once(socket, "close");
  await other.app.close();
  assert.equal((await closed)[0], 1001);
});
