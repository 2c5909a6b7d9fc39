import assert from "node:assert/strict";
import { once } from "node:events";
import { type IncomingMessage, request } from "node:http";
import { type AddressInfo, connect, type Socket } from "node:net";
import { after, before, describe, test } from "node:test";
import { WebSocket } from "ws";
import { Api, keys } from "../../../test/api.ts";
import type { FakeRun } from "../../../test/fakes/agent.ts";
import { waitFor } from "../../../test/wait-for.ts";
import { parseProxies } from "../../network/proxies.ts";
import { auditActions } from "../../wire/audit.ts";

const api = new Api();
const entryOfRead = {
  keyName: "stolen",
  address: "127.0.0.1",
  action: "file.read",
  capsuleId: null,
  status: 200,
} as const;
const secret = "a-secret-of-the-caller";

async function entries(query = "", key: string = keys.red) {
  const { status, json } = await api.call("GET", `/v1/audit${query}`, { key });
  assert.equal(status, 200);
  return json.entries as Record<string, unknown>[];
}

/** The newest entry. */
async function last(key: string = keys.red) {
  const [{ action, capsule_id, subject, status } = {}] = await entries("?limit=1", key);
  return [action, capsule_id, subject, status];
}

function form(path: string) {
  const part = (name: string, content: string) =>
    `--b\r\nContent-Disposition: form-data; name="${name}"${name === "file" ? '; filename="f"' : ""}\r\n\r\n${content}\r\n`;
  return {
    body: `${part("path", path)}${part("file", secret)}--b--\r\n`,
    headers: { "content-type": "multipart/form-data; boundary=b" },
  };
}

describe("the audit log", () => {
  let id = "";
  before(async () => {
    await api.app.listen({ host: "127.0.0.1", port: 0 });
    id = await api.capsule();
  });
  after(() => api.app.close());

  test("has the key, action, capsule, address and status", async () => {
    await api.call("POST", `/v1/capsules/${id}/exec`, { json: { cmd: "true", args: [secret], envs: { A: secret } } });
    const [entry] = await entries("?limit=1");
    assert.match(String(entry?.at), /^\d{4}-\d\d-\d\dT.*Z$/);
    const { id: _, at: __, ...rest } = entry ?? {};
    assert.deepEqual(rest, {
      key_id: "key-red",
      key_name: "first",
      address: "127.0.0.1",
      action: "exec",
      capsule_id: id,
      subject: "true",
      status: 200,
      exit_code: 0,
    });
  });

  test("every change, and every read of what is in a capsule, leaves an entry", async () => {
    const seen: unknown[] = [];
    const path = `/v1/capsules/${id}`;
    const doing = async (expected: unknown[], ...call: Parameters<Api["call"]>) => {
      const reply = await api.call(...call);
      assert.deepEqual(await last(call[2]?.key ?? keys.red), expected, call.join(" "));
      seen.push(expected[0]);
      return reply;
    };
    const { json: made } = await api.call("POST", "/v1/capsules");
    assert.deepEqual(await last(), ["capsule.create", made.id, "minimal", 201]);
    await doing(["exec", id, "true", 202], "POST", `${path}/exec`, { json: { cmd: "true", background: true } });
    await doing(["file.write", id, "/root/a", 204], "POST", `${path}/files/write`, form("/root/a"));
    await doing(["file.write", id, "/root/b", 204], "POST", `${path}/files/stream/write`, form("/root/b"));
    await doing(["file.read", id, "/root/a", 200], "POST", `${path}/files/read`, { json: { path: "/root/a" } });
    await doing(["file.read", id, "/root/c", 404], "POST", `${path}/files/stream/read`, { json: { path: "/root/c" } });
    await doing(["file.list", id, "/root", 404], "POST", `${path}/files/list`, { json: { path: "/root" } });
    await doing(["process.list", id, null, 200], "GET", `${path}/processes`);
    await doing(["port.list", id, null, 200], "GET", `${path}/ports`);
    await doing(["file.mkdir", id, "/root/d", 200], "POST", `${path}/files/mkdir`, { json: { path: "/root/d" } });
    await doing(["file.remove", id, "/root/d", 404], "POST", `${path}/files/remove`, { json: { path: "/root/d" } });
    await doing(["process.logs", id, "1", 404], "GET", `${path}/processes/1/logs`);
    const pack = { json: { paths: ["/root/a"] } };
    await doing(["file.archive", id, "/root/a", 200], "POST", `${path}/files/archive`, pack);
    const tar = { body: Buffer.from("tar") };
    await doing(["file.extract", id, "/root", 204], "POST", `${path}/files/extract?path=/root`, tar);
    const move = { json: { from: "/root/b", to: "/root/e" } };
    await doing(["file.move", id, "/root/b → /root/e", 200], "POST", `${path}/files/move`, move);
    const mode = { json: { path: "/root/e", mode: "600" } };
    await doing(["file.chmod", id, "/root/e", 204], "POST", `${path}/files/chmod`, mode);
    const owner = { json: { path: "/root/e", owner: "0" } };
    await doing(["file.chown", id, "/root/e", 204], "POST", `${path}/files/chown`, owner);
    await doing(["file.url", id, "GET /root/e", 200], "POST", `${path}/files/url`, { json: { path: "/root/e" } });
    await doing(["file.watch", id, "/root", 400], "GET", `${path}/files/watch?path=/root`); // no WebSocket
    await doing(["port.connect", id, "80", 502], "GET", `${path}/ports/80/tcp`); // nothing listens
    await doing(["port.url", id, "80", 200], "POST", `${path}/ports/80/url`, { json: { expires_sec: 60 } });
    await doing(["port.revoke", id, null, 204], "DELETE", `${path}/ports/tokens`);
    const network = { json: { deny: ["1.1.1.1"], egress: "public", other: 1 } };
    await doing(["network.update", id, "egress, deny", 200], "PUT", `${path}/network`, network);
    await doing(["network.update", id, "deny", 400], "PUT", `${path}/network`, { json: { deny: [secret] } });
    await doing(["process.kill", id, "1", 404], "DELETE", `${path}/processes/1`);
    const change = { json: { name: "web", labels: {}, other: 1 } };
    await doing(["capsule.update", id, "name, labels", 200], "PATCH", path, change);
    await doing(["capsule.pause", id, null, 200], "POST", `${path}/pause`);
    await doing(["capsule.pause", id, null, 409], "POST", `${path}/pause`);
    await doing(["capsule.resume", id, null, 200], "POST", `${path}/resume`);
    await doing(["capsule.stop", id, null, 200], "POST", `${path}/stop`);
    await doing(["capsule.start", id, null, 200], "POST", `${path}/start`);
    await doing(["capsule.start", id, null, 409], "POST", `${path}/start`);
    const other = await api.capsule();
    const capture = { json: { sandbox_id: other, name: "kept" } };
    await doing(["template.create", other, "kept", 201], "POST", "/v1/snapshots", capture);
    await doing(["template.delete", null, "kept", 204], "DELETE", "/v1/snapshots/kept");
    await doing(["capsule.destroy", made.id, null, 204], "DELETE", `/v1/capsules/${made.id}`);
    await doing(["capsule.destroy", "cl-nobody", null, 404], "DELETE", "/v1/capsules/cl-nobody");
    const { json: key } = await api.call("POST", "/v1/keys", { json: { name: "second" } });
    assert.deepEqual(await last(), ["key.create", null, key.id, 201]);
    await doing(["key.revoke", null, key.id, 204], "DELETE", `/v1/keys/${key.id}`);
    const link = await doing(["sign-in-link.create", null, null, 201], "POST", "/v1/sign-in-links");
    const { json: session } = await api.call("POST", "/v1/sign-in", { key: null, json: { token: link.json.token } });
    const [signIn] = await entries("?limit=1");
    assert.deepEqual([signIn?.action, signIn?.key_id, signIn?.subject], ["sign-in", "key-red", session.key_id]);
    const ticket = { json: { path: `${path}/pty` } };
    await doing(["ticket.create", null, `${path}/pty`, 201], "POST", "/v1/ws-tickets", ticket);
    const others = [
      "capsule.create",
      "capsule.update",
      "key.create",
      "sign-in",
      "pty",
      "process.attach",
      "capsule.end",
      "capsule.reboot",
      "disk.throttle",
      "disk.unthrottle",
    ];
    assert.deepEqual(
      auditActions.filter((action) => ![...seen, ...others].includes(action)),
      [],
    );
  });

  test("a command or terminal over a WebSocket leaves an entry when it starts", async () => {
    const { port } = api.app.server.address() as AddressInfo;
    const conversations = [
      ["exec/stream", { type: "start", cmd: "true", args: [secret] }, ["exec", id, "true", 101]],
      ["pty", { type: "start", envs: { A: secret } }, ["pty", id, "/bin/bash", 101]],
      ["pty", { type: "connect", tag: "pty-0badc0de" }, ["pty", id, "pty-0badc0de", 101]],
    ] as const;
    for (const [suffix, message, expected] of conversations) {
      const socket = new WebSocket(`ws://127.0.0.1:${port}/v1/capsules/${id}/${suffix}`, {
        headers: { "x-api-key": keys.red },
      });
      await new Promise((resolve) => socket.once("open", resolve));
      socket.send(JSON.stringify(message));
      await new Promise((resolve) => socket.once("message", resolve));
      assert.deepEqual(await last(), expected);
      socket.terminate();
    }
  });

  test("the entry of a command or terminal over a WebSocket has the exit code once it has ended", async () => {
    const { port } = api.app.server.address() as AddressInfo;
    for (const suffix of ["exec/stream", "pty"]) {
      const headers = { "x-api-key": keys.red };
      const socket = new WebSocket(`ws://127.0.0.1:${port}/v1/capsules/${id}/${suffix}`, { headers });
      await once(socket, "open");
      socket.send(JSON.stringify({ type: "start", cmd: "hang" }));
      await once(socket, "message");
      const { runs, ptys } = api.agent(id);
      const isEnded = once(socket, "close");
      ((suffix === "pty" ? ptys : runs).at(-1) as FakeRun).exit(7);
      await isEnded;
      const [entry] = await entries("?limit=1");
      assert.deepEqual([entry?.status, entry?.exit_code], [101, 7], suffix);
    }
  });

  test("attaching to a process leaves an entry, also when it is refused", async () => {
    const { port } = api.app.server.address() as AddressInfo;
    const path = `/v1/capsules/${id}/processes`;
    const socket = new WebSocket(`ws://127.0.0.1:${port}${path}/500/stream`, { headers: { "x-api-key": keys.red } });
    await new Promise((resolve) => socket.once("open", resolve));
    assert.deepEqual(await last(), ["process.attach", id, "500", 101]);
    socket.terminate();
    const refused = await api.call("GET", `${path}/init/stream`);
    assert.equal(refused.status, 400);
    assert.deepEqual(await last(), ["process.attach", id, "init", 400]);
  });

  test("a read that is repeated within a minute leaves one entry; with another answer, path or key, another one", async () => {
    const count = async () => (await entries("?limit=1000")).filter(({ action }) => action === "file.read").length;
    const { json: second } = await api.call("POST", "/v1/keys", { json: { name: "reader" } });
    const before = await count();
    for (const path of ["/root/polled", "/root/another"]) api.agent(id).files.set(path, Buffer.from("x"));
    const read = (path: string, key: string = keys.red, capsule = id) =>
      api.call("POST", `/v1/capsules/${capsule}/files/read`, { json: { path }, key });
    for (let i = 0; i < 20; i++) await read("/root/polled");
    assert.equal(await count(), before + 1);
    await read("/root/another");
    await read("/root/polled", second.key);
    assert.equal(await count(), before + 3);
  });

  test("a flood of refused requests and of reads displaces no entry of keys, sign-ins, lifecycle and templates", async () => {
    const small = new Api({ requests_per_sec: 100_000 }, {}, { auditEntriesMax: 1_000 });
    const { audit } = small.service;
    const { json: made } = await small.call("POST", "/v1/keys", { json: { name: "stolen" } });
    const { json: link } = await small.call("POST", "/v1/sign-in-links");
    await small.call("POST", "/v1/sign-in", { key: null, json: { token: link.token } });
    const [first, captured] = [await small.capsule(), await small.capsule()];
    await small.call("POST", "/v1/snapshots", { json: { sandbox_id: captured, name: "t1" } });
    small.agent(first).files.set("/a", Buffer.from("x"));
    const teamId = "team-red";
    const entriesNow = () => audit.list(teamId, { limit: 100_000 }).entries;
    const lasting = entriesNow().map((entry) => entry.id);
    assert.equal(lasting.length, 6);
    const headers = { "x-api-key": made.key };
    for (let i = 0; i < 3_400; i++) {
      const url = `/v1/capsules/${i % 2 === 0 ? first : `cl-${i}`}/files/read`;
      await small.app.inject({ method: "POST", url, headers, payload: { path: `/${i}` } });
      await small.app.inject({ method: "DELETE", url: `/v1/keys/key-${i}`, headers });
      audit.record({ ...entryOfRead, teamId, keyId: made.id, subject: `/${i}` }, "read");
    }
    const left = new Set(entriesNow().map((entry) => entry.id));
    assert.deepEqual(
      lasting.filter((each) => !left.has(each)),
      [],
      "displaced",
    );
    assert.ok(left.size < 3_000, "the reads were displaced");
  });

  test("a request that never was whole counts as a refused one", async () => {
    const { audit } = api.service;
    const { port } = api.app.server.address() as AddressInfo;
    const halves = async () =>
      (await entries("?limit=1000")).filter(({ action, status }) => action === "capsule.create" && status === 499);
    for (let i = 0; i < 3; i++) {
      const accepted = once(api.app.server, "connection") as Promise<[Socket]>;
      const requested = once(api.app.server, "request");
      const socket = connect(port, "127.0.0.1");
      const [served] = await accepted;
      socket.write(
        `POST /v1/capsules HTTP/1.1\r\nHost: x\r\nX-API-Key: ${keys.red}\r\n` +
          "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
      );
      await requested;
      const closed = once(served, "close");
      socket.destroy();
      await closed;
      await new Promise(setImmediate);
    }
    audit.close();
    assert.deepEqual(
      (await halves()).map(({ subject }) => subject),
      ["2 more such requests within a minute, of which this is the last", null],
    );
  });

  test("a command whose client disconnects has status 499", { timeout: 60_000 }, async () => {
    const { port } = api.app.server.address() as AddressInfo;
    const controller = new AbortController();
    const runs = api.agent(id).runs.length;
    const gone = fetch(`http://127.0.0.1:${port}/v1/capsules/${id}/exec`, {
      method: "POST",
      headers: { "x-api-key": keys.red, "content-type": "application/json" },
      body: JSON.stringify({ cmd: "hang" }),
      signal: controller.signal,
    });
    await waitFor("the command runs", () => api.agent(id).runs.length > runs);
    controller.abort();
    await assert.rejects(gone);
    const found = await waitFor("the command's entry", async () => {
      const entry = await last();
      return entry[2] === "hang" && entry;
    });
    assert.deepEqual(found, ["exec", id, "hang", 499]);
  });

  test("has the team's own entries only; reading records of the service, and requests without a key, leave none", async () => {
    const before = (await entries("?limit=1"))[0];
    await api.call("DELETE", `/v1/capsules/${id}`, { key: keys.blue });
    assert.deepEqual(await last(keys.blue), ["capsule.destroy", id, null, 404]);
    await api.call("DELETE", `/v1/capsules/${id}`, { key: null });
    for (const path of ["/v1/capsules", `/v1/capsules/${id}`, "/v1/audit", "/v1/snapshots"])
      await api.call("GET", path);
    assert.deepEqual((await entries("?limit=1"))[0], before);
  });

  test("has the client's address behind a trusted proxy, and the peer's otherwise", async () => {
    const headers = { "x-forwarded-for": "127.0.0.1, 203.0.113.7" };
    for (const [proxies, address] of [
      ["no", "127.0.0.1"],
      ["loopback", "203.0.113.7"],
      ["127.0.0.2", "127.0.0.1"],
    ] as const) {
      const behind = new Api({}, { proxies: parseProxies(proxies) });
      await behind.call("DELETE", "/v1/capsules/cl-nobody", { headers });
      assert.equal((await behind.call("GET", "/v1/audit")).json.entries[0].address, address);
    }
  });

  test("has the client's address behind a proxy of a trusted address, and of no other one", async (t) => {
    const behind = new Api({}, { proxies: parseProxies("127.0.0.2,203.0.113.0/24") });
    const url = new URL(await behind.app.listen({ host: "127.0.0.1", port: 0 }));
    t.after(() => behind.app.close());
    for (const [localAddress, address] of [
      ["127.0.0.2", "198.51.100.9"],
      ["127.0.0.1", "127.0.0.1"],
      ["127.0.0.3", "127.0.0.3"],
    ] as const) {
      const of = await behind.capsule();
      const headers = { "x-api-key": keys.red, "x-forwarded-for": "10.0.0.1, 198.51.100.9, 203.0.113.7" };
      const sent = request(new URL(`/v1/capsules/${of}`, url), { method: "DELETE", localAddress, headers });
      const [answer] = (await once(sent.end(), "response")) as [IncomingMessage];
      assert.equal(answer.resume().statusCode, 204);
      const { entries } = (await behind.call("GET", `/v1/audit?capsule=${of}`)).json;
      assert.deepEqual([entries[0].action, entries[0].address], ["capsule.destroy", address], localAddress);
    }
  });

  test("is read in pages and by capsule; malformed queries are 400", async () => {
    const all = await entries("?limit=1000");
    const first = await api.call("GET", "/v1/audit?limit=3");
    assert.equal(first.json.next, first.json.entries[2].id);
    const second = await api.call("GET", `/v1/audit?limit=3&before=${first.json.next}`);
    assert.deepEqual([...first.json.entries, ...second.json.entries], all.slice(0, 6));
    const ofCapsule = await entries(`?limit=1000&capsule=${id}`);
    assert.deepEqual(
      ofCapsule,
      all.filter((entry) => entry.capsule_id === id),
    );
    assert.ok(ofCapsule.length > 5);
    for (const query of [
      "?limit=0",
      "?limit=1001",
      "?limit=x",
      "?before=-1",
      "?before=x",
      `?capsule=${"x".repeat(65)}`,
    ]) {
      assert.equal((await api.call("GET", `/v1/audit${query}`)).status, 400, query);
    }
  });

  test("contains no argument, variable or content", async () => {
    assert.ok(!JSON.stringify(await entries("?limit=1000")).includes(secret));
  });

  test("a durable entry is written before the response; if that fails, the response is sent all the same", async () => {
    const { audit } = api.service;
    const flush = audit.flush.bind(audit);
    let flushes = 0;
    audit.flush = () => {
      flushes += 1;
      throw new Error("disk full");
    };
    const doomed = await api.capsule();
    assert.equal(flushes, 1);
    await api.call("POST", `/v1/capsules/${doomed}/exec`, { json: { cmd: "true" } });
    assert.equal(flushes, 1);
    assert.equal((await api.call("DELETE", `/v1/capsules/${doomed}`)).status, 204);
    assert.equal(flushes, 2);
    audit.flush = flush;
    assert.deepEqual(await last(), ["capsule.destroy", doomed, null, 204]);
  });
});
