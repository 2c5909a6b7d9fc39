/**
 * Every endpoint of the OpenAPI document × a resource of another team: the answer is identical to that for a resource
 * that does not exist, and the same database statements were run. An endpoint without a row here fails.
 */
import assert from "node:assert/strict";
import type { AddressInfo } from "node:net";
import { after, before, describe, test } from "node:test";
import pino from "pino";
import { loadConfig } from "../../src/config.ts";
import { AuditRows } from "../../src/db/audit-rows.ts";
import { buildServer } from "../../src/http/app.ts";
import type { App } from "../../src/http/route.ts";
import { Audit } from "../../src/teams/audit.ts";
import { type Call, Client, type Reply } from "../client.ts";
import { FakeHost } from "../fakes/fake-host.ts";
import { type FakeService, fakeService, running } from "../fakes/fake-service.ts";
import type { OpenApi } from "../openapi-contract.ts";
import { Statements } from "./statements.ts";

/** The kind of the other team's resource in the request; `ask` makes the request if the resource is not in the path. */
interface Foreign {
  names: "running" | "paused" | "template" | "key";
  ask?: (name: string) => Call & { query?: string };
}

/** The endpoint takes no resource; the reason why its answer contains nothing of other teams. */
interface Own {
  own: string;
}

const path =
  (more: object = {}) =>
  () => ({ json: { path: "/root", ...more } });
const form = () => ({
  form: [
    ["path", "/root/f"],
    ["file", "x"],
  ] as [string, string][],
});

const matrix: Record<string, Foreign | Own> = {
  // First, because the requests of later tests add entries.
  "GET /v1/audit": { names: "paused", ask: (id) => ({ query: `?capsule=${id}` }) },
  "GET /openapi.json": { own: "the same for all clients" },
  "GET /sdk.tgz": { own: "the same for all clients" },
  "GET /healthz": { own: "numbers of the whole service" },
  "POST /v1/capsules": { names: "template", ask: (template) => ({ json: { template } }) },
  "GET /v1/capsules": { own: "a list" },
  "GET /v1/capsules/{id}": { names: "running" },
  "GET /v1/capsules/{id}/metrics": { names: "running" },
  "GET /v1/metrics": { own: "numbers of the asking team" },
  "DELETE /v1/capsules/{id}": { names: "running" },
  "PATCH /v1/capsules/{id}": { names: "running" },
  "POST /v1/capsules/{id}/pause": { names: "running" },
  "POST /v1/capsules/{id}/resume": { names: "paused" },
  "POST /v1/capsules/{id}/stop": { names: "running" },
  "POST /v1/capsules/{id}/start": { names: "paused" },
  "POST /v1/capsules/{id}/ping": { names: "running" },
  "POST /v1/capsules/{id}/exec": { names: "running", ask: () => ({ json: { cmd: "true" } }) },
  "GET /v1/capsules/{id}/exec/stream": { names: "running" },
  "GET /v1/capsules/{id}/processes": { names: "running" },
  "DELETE /v1/capsules/{id}/processes/{selector}": { names: "running" },
  "GET /v1/capsules/{id}/processes/{selector}/exit": { names: "running" },
  "GET /v1/capsules/{id}/processes/{selector}/logs": { names: "running" },
  "GET /v1/capsules/{id}/processes/{selector}/stream": { names: "running" },
  "GET /v1/capsules/{id}/pty": { names: "running" },
  "POST /v1/capsules/{id}/files/read": { names: "running", ask: path() },
  "POST /v1/capsules/{id}/files/stream/read": { names: "running", ask: path() },
  "POST /v1/capsules/{id}/files/write": { names: "running", ask: form },
  "POST /v1/capsules/{id}/files/stream/write": { names: "running", ask: form },
  "POST /v1/capsules/{id}/files/list": { names: "running", ask: path({ depth: 1 }) },
  "POST /v1/capsules/{id}/files/stat": { names: "running", ask: path() },
  "POST /v1/capsules/{id}/files/move": { names: "running", ask: () => ({ json: { from: "/root", to: "/tmp/x" } }) },
  "POST /v1/capsules/{id}/files/chmod": { names: "running", ask: path({ mode: "700" }) },
  "POST /v1/capsules/{id}/files/chown": { names: "running", ask: path({ owner: "0" }) },
  "POST /v1/capsules/{id}/files/url": { names: "running", ask: path() },
  "GET /v1/capsules/{id}/files/signed": { own: "takes no key: a signature opens the one path that it was made for" },
  "PUT /v1/capsules/{id}/files/signed": { own: "takes no key: a signature opens the one path that it was made for" },
  "POST /v1/capsules/{id}/files/mkdir": { names: "running", ask: path() },
  "POST /v1/capsules/{id}/files/remove": { names: "running", ask: path() },
  "POST /v1/capsules/{id}/files/archive": { names: "running", ask: () => ({ json: { paths: ["/root"] } }) },
  "POST /v1/capsules/{id}/files/extract": { names: "running", ask: () => ({ query: "?path=/root" }) },
  "GET /v1/capsules/{id}/files/watch": { names: "running", ask: () => ({ query: "?path=/root" }) },
  "GET /v1/capsules/{id}/ports": { names: "running" },
  "GET /v1/capsules/{id}/ports/{port}/tcp": { names: "running" },
  "GET /v1/capsules/{id}/network": { names: "paused" },
  "PUT /v1/capsules/{id}/network": { names: "running", ask: () => ({ json: { public_ports: [80] } }) },
  "POST /v1/capsules/{id}/ports/{port}/url": { names: "paused" },
  "DELETE /v1/capsules/{id}/ports/tokens": { names: "paused" },
  "GET /v1/snapshots": { own: "a list" },
  "POST /v1/snapshots": { names: "running", ask: (id) => ({ json: { sandbox_id: id, name: "mine-now" } }) },
  "DELETE /v1/snapshots/{name}": { names: "template" },
  "GET /v1/keys": { own: "a list" },
  "POST /v1/keys": { own: "makes one of its own" },
  "DELETE /v1/keys/{id}": { names: "key" },
  "GET /v1/events": { own: "a stream" },
  "POST /v1/sign-in-links": { own: "makes one of its own" },
  "POST /v1/sign-in": { own: "asks for no key, and is given a token" },
  "GET /v1/session": { own: "tells of the key in use" },
  "GET /v1/limits": { own: "numbers of the asking team" },
  "POST /v1/ws-tickets": { own: "a ticket opens no more than its key: the socket's own row counts" },
};

/** A valid name of this kind without a resource. */
const never = {
  running: `cl-${"0".repeat(25)}`,
  paused: `cl-${"0".repeat(25)}`,
  template: "no-such-thing",
  key: "key-000000000000",
};

const sockets = ["/exec/stream", "/{selector}/stream", "/pty", "/files/watch", "/tcp"];
const others = { team: "red", template: "their-thing-1" };

describe("another team's resources", () => {
  const statements = new Statements();
  const host = new FakeHost();
  let service: FakeService;
  let app: App;
  let client: Client;
  let document: OpenApi;
  let foreign: Record<Foreign["names"], string>;
  /** The other team's resources, as that team sees them. */
  let belongings: () => unknown;

  before(async () => {
    service = fakeService({ host, database: statements.database });
    const { teams, capsules, templates, idempotency, team, other } = service;
    const audit = new Audit({
      ...{ rows: new AuditRows(statements.database), clock: service.clock },
      entriesMax: 100_000,
      keepMs: Number.POSITIVE_INFINITY,
      onLoss: () => {},
    });
    const { limits } = loadConfig({});
    const options = { limits, logger: pino({ level: "silent" }), version: "0.0.0", web: "/nowhere" };
    app = buildServer({ teams, capsules, templates, idempotency, health: service.health, audit }, options);
    await app.listen({ host: "127.0.0.1", port: 0 });
    const { port } = app.server.address() as AddressInfo;
    client = await Client.connect(`http://127.0.0.1:${port}`, teams.createKey(team, "mine").key);
    document = (await client.call("GET", "/openapi.json")).json;

    const theirs = { ...service, team: other };
    const [up, paused, captured] = [await running(theirs), await running(theirs), await running(theirs)];
    await capsules.pause(other, paused);
    await templates.capture(other, { capsuleId: captured, name: others.template, overwrite: false });
    foreign = { running: up, paused, template: others.template, key: teams.createKey(other, "theirs").id };
    const own = client.as(teams.createKey(other, "theirs, of old").key);
    await own.expect(409, "POST", `/v1/capsules/${paused}/pause`); // adds an entry to that team's log
    own.close();
    belongings = () => [capsules.list(other), templates.list(other), teams.keysOf(other).map((key) => key.id)];
  });
  after(async () => {
    client?.close();
    await app?.close();
  });

  /** Requests the resource of this name; returns the answer and the statements that were run. */
  async function ask(endpoint: string, { ask: say }: Foreign, name: string) {
    const [method = "", pattern = ""] = endpoint.split(" ");
    const { query = "", ...call } = say?.(name) ?? {};
    const target = pattern
      .replace(/\{(id|name)\}/, encodeURIComponent(name))
      .replace("{selector}", "proc-00000000")
      .replace("{port}", "80");
    statements.take();
    const isSocket = sockets.some((suffix) => pattern.endsWith(suffix));
    const reply = isSocket
      ? await client.upgrade(target + query, call)
      : await client.call(method, target + query, call);
    return { reply, took: statements.take() };
  }

  test("every endpoint of the document has a row, and every row an endpoint", () => {
    const endpoints = Object.entries(document.paths).flatMap(([pattern, operations]) =>
      Object.keys(operations).map((method) => `${method.toUpperCase()} ${pattern}`),
    );
    assert.deepEqual(Object.keys(matrix).sort(), endpoints.sort());
  });

  for (const [endpoint, row] of Object.entries(matrix)) {
    if (!("names" in row)) continue;
    test(`${endpoint}: the same answer and statements as for a missing resource`, async () => {
      const before = belongings();
      const [theirs, missing] = [foreign[row.names], never[row.names]];
      await ask(endpoint, row, missing); // runs statements that only the first request needs
      const unknown = await ask(endpoint, row, missing);
      const known = await ask(endpoint, row, theirs);
      assert.deepEqual(steady(known.reply, theirs), steady(unknown.reply, missing));
      assert.ok(known.reply.status === 404 || endpoint === "GET /v1/audit", known.reply.text);
      assert.deepEqual(known.took, unknown.took);
      assert.ok(known.took.length > 0, "statements are counted");
      assert.deepEqual(belongings(), before);
    });
  }

  test("a team's own resources give other answers, so that the rows above can fail", async () => {
    const own = client.as(service.teams.createKey(service.other, "theirs, too").key);
    assert.equal((await own.call("GET", `/v1/capsules/${foreign.running}`)).status, 200);
    assert.equal((await own.call("POST", `/v1/capsules/${foreign.paused}/ping`)).status, 409);
    const made = await own.call("POST", "/v1/capsules", { json: { template: others.template } });
    assert.equal(made.status, 201);
    assert.equal((await own.call("DELETE", `/v1/capsules/${made.json.id}`)).status, 204);
    own.close();
  });

  test("no list, number or log of a team contains another team's resources", async () => {
    const names = Object.values(foreign);
    for (const target of ["/v1/capsules", "/v1/snapshots", "/v1/keys", "/v1/session", "/v1/limits"]) {
      const { status, text } = await client.call("GET", target);
      assert.equal(status, 200);
      assert.deepEqual(
        names.filter((name) => text.includes(name)),
        [],
        target,
      );
    }
    assert.deepEqual((await client.call("GET", "/v1/limits")).json.usage.capsules, 0);
    // A team's requests for other teams' resources are in its own log only.
    const log = (await client.call("GET", "/v1/audit?limit=1000")).json.entries;
    assert.ok(log.length > 10);
    const own = client.as(service.teams.createKey(service.other, "reader").key);
    const theirs = (await own.call("GET", "/v1/audit?limit=1000")).json.entries;
    assert.ok(theirs.every((entry: { status: number }) => entry.status !== 404));
    own.close();
  });

  test("one name is two templates in two teams", async () => {
    const { templates, team, other } = service;
    const capsuleId = await running(service);
    await templates.capture(team, { capsuleId, name: others.template, overwrite: false });
    await client.expect(204, "DELETE", `/v1/snapshots/${others.template}`);
    assert.equal(templates.list(other, "snapshot").length, 1);
    assert.equal((await client.call("DELETE", `/v1/snapshots/${others.template}`)).status, 404);
  });
});

/** The answer without the parts that must differ: time, request id and requested name. */
function steady({ status, headers, text }: Reply, name: string) {
  const { date: _, "x-request-id": __, ...rest } = headers;
  return { status, headers: rest, text: text.replaceAll(name, "{name}") };
}
