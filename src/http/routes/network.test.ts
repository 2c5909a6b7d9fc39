/** The network of a capsule over HTTP, and links to its ports. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Api, keys } from "../../../test/api.ts";
import { FakeOutbound } from "../../../test/fakes/fake-outbound.ts";
import { waitFor } from "../../../test/wait-for.ts";
import { parseGrants } from "../../network/grants.ts";
import { checkPortToken } from "../../network/port-tokens.ts";
import type { NetworkDecision } from "../../wire/network.ts";

const none = { egress: "none", allow: [], deny: [], public_ports: [], host_header: null, inject: [] };
const idle = {
  effective: { egress: "none", allow: [], deny: [] },
  counters: { connections_open: 0, connections_total: 0, denied_total: 0, bytes_out: 0, bytes_in: 0 },
  recent: [],
  unsupported: true,
};
const recent: NetworkDecision = {
  ...{
    at: "2026-11-28T12:00:00.000Z",
    verdict: "denied",
    reason: "not listed",
    host: "a.example",
    port: 443,
    count: 3,
  },
};
const asked = {
  egress: "allowlist",
  allow: ["PyPI.org.", "*.example.com:8443", "8.8.8.0/24"],
  deny: ["10.0.0.0/8"],
  public_ports: [8_000],
  host_header: "localhost:{port}",
};
/** Its part that is in effect. */
const effective = {
  egress: "allowlist",
  allow: ["pypi.org", "*.example.com:8443", "8.8.8.0/24"],
  deny: ["10.0.0.0/8"],
};
const kept = { ...asked, allow: ["pypi.org", "*.example.com:8443", "8.8.8.0/24"], inject: [] };

function networkOf(api: Api, id: string) {
  return api.call("GET", `/v1/capsules/${id}/network`);
}

describe("a create", () => {
  test("keeps the network that it asks for, as every answer shows", async () => {
    const api = new Api();
    const { status, json } = await api.call("POST", "/v1/capsules?wait=running", { json: { network: asked } });
    assert.deepEqual([status, json.network], [201, kept]);
    const read = await api.call("GET", `/v1/capsules/${json.id}`);
    assert.deepEqual([read.json.network, read.json.port_url], [kept, json.port_url]);
    const { json: listed } = await api.call("GET", "/v1/capsules");
    assert.deepEqual(listed[0].network, kept);
    assert.deepEqual((await networkOf(api, json.id)).json, { ...kept, ...idle, effective });
  });

  test("has the default where it asks for none", async () => {
    const api = new Api();
    for (const body of [{}, { network: {} }, { network: null }, { network: { allow: null, inject: [] } }]) {
      const { status, json } = await api.call("POST", "/v1/capsules", { json: body });
      assert.deepEqual([status, json.network], [201, none]);
    }
  });

  test("has the operator's default where it names no egress, and keeps it as one that was asked for", async () => {
    const api = new Api({}, {}, { rules: { egress: "public" } });
    for (const network of [undefined, null, {}, { public_ports: [80] }]) {
      const { json } = await api.call("POST", "/v1/capsules", { json: { network } });
      assert.deepEqual(json.network, { ...none, egress: "public", public_ports: network?.public_ports ?? [] });
      const later = new Api({}, {}, { ...(({ host, database, clock }) => ({ host, database, clock }))(api.service) });
      assert.equal((await networkOf(later, json.id)).json.egress, "public", "whatever the default is later");
    }
    const { json } = await api.call("POST", "/v1/capsules", { json: { network: { egress: "none" } } });
    assert.equal((await networkOf(api, json.id)).json.egress, "none");
  });

  test("names reserved destinations only where the operator has granted them", async () => {
    const api = new Api({}, {}, { rules: { grants: parseGrants("10.1.0.0/16:5432,host:11434") } });
    const allow = ["10.1.2.3:5432", "host.capsule.internal:11434"];
    const { status, json } = await api.call("POST", "/v1/capsules", { json: { network: { allow } } });
    assert.deepEqual([status, json.network.allow], [201, allow]);
    const refused = await api.call("PUT", `/v1/capsules/${json.id}/network`, { json: { allow: ["10.2.0.1:5432"] } });
    assert.deepEqual([refused.status, refused.json.error.details.field], [403, "network.allow[0]"]);
    assert.match(refused.json.error.message, /CAPSULE_EGRESS_GRANT/);
  });

  test("makes no capsule of a network that is refused", async () => {
    const api = new Api({ network_entries_max: 4 });
    const refused: [network: unknown, field: string, status?: number][] = [
      ["none", "network"],
      [[], "network"],
      [{ egress: "some" }, "network.egress"],
      [{ allow: ["a", "b", "c", "::1"] }, "network.allow[3]"],
      [{ allow: Array(5).fill("a") }, "network.allow"],
      [{ allow: ["a", 5] }, "network.allow[1]"],
      [{ deny: ["example.com"] }, "network.deny[0]"],
      [{ public_ports: [0] }, "network.public_ports[0]"],
      [{ host_header: "a\r\nb" }, "network.host_header"],
      [{ inject: [{ host: "*.example", headers: {} }] }, "network.inject[0].host"],
      [{ inject: [{ host: "a.example", headers: { "X-Key": null } }] }, "network.inject[0].headers.X-Key"],
      [{ allow: ["10.0.0.1"] }, "network.allow[0]", 403],
    ];
    for (const [network, field, expected = 400] of refused) {
      const { status, json } = await api.call("POST", "/v1/capsules", { json: { network } });
      assert.deepEqual([status, json.error.details?.field], [expected, field], JSON.stringify(network));
    }
    assert.deepEqual((await api.call("GET", "/v1/capsules")).json, []);
  });

  test("from a template has the request's network or the default, never the captured capsule's", async () => {
    const api = new Api();
    const { json } = await api.call("POST", "/v1/capsules?wait=running", { json: { network: asked } });
    await api.call("POST", "/v1/snapshots", { json: { sandbox_id: json.id, name: "tools" } });
    const plain = await api.call("POST", "/v1/capsules", { json: { template: "tools" } });
    assert.deepEqual(plain.json.network, none);
    const own = await api.call("POST", "/v1/capsules", { json: { template: "tools", network: { public_ports: [1] } } });
    assert.deepEqual(own.json.network, { ...none, public_ports: [1] });
  });
});

describe("PUT network", () => {
  test("replaces the whole object in every status, and is an event", async () => {
    const api = new Api();
    for (const status of ["running", "paused", "stopped", "error"] as const) {
      const id = await api.capsule(status);
      await api.call("PATCH", `/v1/capsules/${id}`, { json: { auto_resume: true } }); // it is not resumed
      const before = (await api.call("GET", `/v1/capsules/${id}`)).json;
      const told: unknown[] = [];
      const off = api.service.capsules.onChange((_team, changed, view) => told.push([changed, view?.network.egress]));
      const without = { ...idle, unsupported: status === "running" || status === "paused" };
      const put = await api.call("PUT", `/v1/capsules/${id}/network`, { json: asked });
      assert.deepEqual([put.status, put.json], [200, { ...kept, ...without, effective }], status);
      const replaced = await api.call("PUT", `/v1/capsules/${id}/network`, { json: { egress: "public" } });
      const open = { egress: "public", allow: [], deny: [] };
      assert.deepEqual(replaced.json, { ...none, egress: "public", ...without, effective: open });
      off();
      assert.deepEqual(told, [
        [id, "allowlist"],
        [id, "public"],
      ]);
      const after = (await api.call("GET", `/v1/capsules/${id}`)).json;
      assert.deepEqual(after, { ...before, network: { ...none, egress: "public" } }, "nothing else changed");
    }
  });

  test("without a body is the default; unknown fields are named and ignored", async () => {
    const api = new Api();
    const id = await api.capsule();
    await api.call("PUT", `/v1/capsules/${id}/network`, { json: asked });
    assert.deepEqual((await api.call("PUT", `/v1/capsules/${id}/network`)).json, { ...none, ...idle });
    const { status, headers } = await api.call("PUT", `/v1/capsules/${id}/network`, { json: { color: 1 } });
    assert.deepEqual([status, headers["x-ignored-fields"]], [200, "color"]);
  });

  test("that is refused changes nothing", async () => {
    const api = new Api();
    const id = await api.capsule();
    await api.call("PUT", `/v1/capsules/${id}/network`, { json: asked });
    const refused: [body: unknown, field: string, status?: number][] = [
      [{ ...asked, allow: ["a", "b", "c", "d e"] }, "network.allow[3]"],
      [{ ...asked, inject: [1] }, "network.inject[0]"],
      [{ ...asked, allow: ["169.254.169.254"] }, "network.allow[0]", 403],
    ];
    for (const [body, field, expected = 400] of refused) {
      const { status, json } = await api.call("PUT", `/v1/capsules/${id}/network`, { json: body });
      assert.deepEqual([status, json.error.details?.field], [expected, field], JSON.stringify(body));
    }
    assert.deepEqual((await networkOf(api, id)).json, { ...kept, ...idle, effective });
  });

  test("is answered when the running capsule obeys it, and shows what only the relay knows", async () => {
    const outbound = new FakeOutbound();
    const api = new Api({}, {}, { outbound, rules: { deny: ["5.6.7.0/24"] } });
    api.service.host.networkSocket = "/nowhere/net.sock";
    const id = await api.capsule();
    outbound.known = { connectionsOpen: 2 };
    api.service.networkDecisions.add(id, [recent]);
    const obeyed = Promise.withResolvers<void>();
    outbound.obeyed = obeyed.promise;
    let answered = false;
    const put = api.call("PUT", `/v1/capsules/${id}/network`, { json: asked }).finally(() => {
      answered = true;
    });
    await waitFor("the policy is on its way", () => outbound.told.length === 2);
    assert.deepEqual(outbound.told[1], ["changed", id, effective]);
    assert.equal((await networkOf(api, id)).json.effective.egress, "allowlist", "the row has it");
    assert.equal(answered, false);
    obeyed.resolve();
    const { status, json } = await put;
    assert.deepEqual([status, json.counters.connections_open, json.recent], [200, 2, [recent]]);
    assert.deepEqual([json.unsupported, json.effective.deny], [false, ["10.0.0.0/8", "5.6.7.0/24"]]);
  });

  test("and GET are 500 while the row's cannot be read; the capsule is shown without one", async () => {
    const api = new Api();
    const id = await api.capsule();
    api.service.database.prepare("UPDATE capsules SET network = '[]' WHERE id = ?").run(id);
    for (const method of ["GET", "PUT"] as const) {
      const { status, json } = await api.call(
        method,
        `/v1/capsules/${id}/network`,
        method === "GET" ? {} : { json: {} },
      );
      assert.deepEqual([status, json.error.code], [500, "internal_error"]);
    }
    assert.deepEqual((await api.call("GET", `/v1/capsules/${id}`)).json.network, none);
  });

  test("survives the end of the server", async () => {
    const first = new Api();
    const id = await first.capsule();
    await first.call("PUT", `/v1/capsules/${id}/network`, { json: asked });
    const { json: link } = await first.call("POST", `/v1/capsules/${id}/ports/80/url`);
    const { host, database, clock } = first.service;
    const second = new Api({}, {}, { host, database, clock });
    assert.deepEqual((await networkOf(second, id)).json.effective, effective);
    const { secret } = second.service.capsules.portAccess(id)!;
    assert.ok(checkPortToken(secret!, link.token, { id, port: 80, now: clock.now() }));
  });
});

describe("a link to a port", () => {
  test("has a token that opens it until its end, in every status and without waking", async () => {
    const api = new Api();
    for (const status of ["running", "paused", "stopped", "error"] as const) {
      const id = await api.capsule(status);
      await api.call("PATCH", `/v1/capsules/${id}`, { json: { auto_resume: true } });
      const now = api.service.teams.now();
      for (const [body, sec] of [
        [undefined, 3_600],
        [{}, 3_600],
        [{ expires_sec: 1 }, 1],
        [{ expires_sec: 604_800 }, 604_800],
      ] as const) {
        const {
          status: code,
          json,
          headers,
        } = await api.call("POST", `/v1/capsules/${id}/ports/8000/url`, {
          ...(body === undefined ? {} : { json: body }),
        });
        assert.deepEqual([code, headers["cache-control"]], [200, "no-store"]);
        assert.equal(json.url, `http://8000-${id}.localhost:8080/?capsule_token=${json.token}`);
        assert.match(json.token, /^[A-Za-z0-9._~-]+$/);
        assert.equal(json.expires_at, new Date(now + sec * 1_000).toISOString());
        const secret = api.service.capsules.portAccess(id)!.secret!;
        assert.equal(checkPortToken(secret, json.token, { id, port: 8_000, now }), now + sec * 1_000);
      }
      assert.equal((await api.call("GET", `/v1/capsules/${id}`)).json.status, status);
    }
  });

  test("names the capsule's id where the request has its name, and the domain of the setting", async () => {
    const api = new Api({}, { portDomain: { host: "apps.example", scheme: "https" } });
    const id = await api.capsule();
    await api.call("PATCH", `/v1/capsules/${id}`, { json: { name: "web" } });
    const { json } = await api.call("POST", "/v1/capsules/web/ports/80/url");
    assert.ok(json.url.startsWith(`https://80-${id}.apps.example/?capsule_token=`), json.url);
  });

  test("is refused for a port or a life that is none", async () => {
    const api = new Api({ port_token_max_sec: 60 });
    const id = await api.capsule();
    for (const port of ["0", "080", "65536", "x", "-1", "1.5"]) {
      const { status } = await api.call("POST", `/v1/capsules/${id}/ports/${port}/url`);
      assert.equal(status, 400, port);
    }
    for (const expires_sec of [0, -1, 61, 1.5, "60"]) {
      const { status, json } = await api.call("POST", `/v1/capsules/${id}/ports/80/url`, { json: { expires_sec } });
      assert.deepEqual([status, json.error.details.field], [400, "expires_sec"], String(expires_sec));
    }
    const { json } = await api.call("POST", `/v1/capsules/${id}/ports/80/url`);
    assert.equal(json.expires_at, new Date(api.service.teams.now() + 60_000).toISOString());
  });

  test("dies with all others of its capsule, and of no other, when they are revoked", async () => {
    const api = new Api();
    const [id, other] = [await api.capsule("paused"), await api.capsule()];
    const tokenOf = async (of: string) => (await api.call("POST", `/v1/capsules/${of}/ports/80/url`)).json.token;
    const [token, othersToken] = [await tokenOf(id), await tokenOf(other)];
    const opens = (of: string, each: string) => {
      const { secret } = api.service.capsules.portAccess(of)!;
      return checkPortToken(secret!, each, { id: of, port: 80, now: 0 }) !== undefined;
    };
    assert.deepEqual([opens(id, token), opens(other, othersToken)], [true, true]);
    let told = 0;
    api.service.capsules.onPortsChanged(id, () => told++);
    assert.equal((await api.call("DELETE", `/v1/capsules/${id}/ports/tokens`, { key: keys.blue })).status, 404);
    assert.deepEqual([told, opens(id, token)], [0, true]);
    const { status, text } = await api.call("DELETE", `/v1/capsules/${id}/ports/tokens`);
    assert.deepEqual([status, text, told], [204, "", 1]);
    assert.deepEqual([opens(id, token), opens(other, othersToken)], [false, true]);
    assert.ok(opens(id, await tokenOf(id)), "a new one opens it");
  });
});

describe("inject", () => {
  const value = "s3cret-of-the-test";
  const rule = (given: string | null) => [{ host: "api.example", headers: { "X-Key": given } }];
  const shown = rule(null);

  test("is shown with null for each value, to no other team, and in no audit entry, replay or error", async () => {
    const api = new Api();
    const headers = { "idempotency-key": "once" };
    const json = { network: { egress: "public", inject: rule(value) } };
    const created = await api.call("POST", "/v1/capsules?wait=running", { json, headers });
    assert.equal(created.status, 201);
    assert.deepEqual(created.json.network.inject, shown);
    const url = `/v1/capsules/${created.json.id}/network`;
    const put = { json: { egress: "public", inject: rule(value) } };
    const bad = { json: { inject: [...rule(value), { host: "b.example", headers: { "X-Key": `${value}\n` } }] } };
    const answers = [
      created,
      await api.call("POST", "/v1/capsules?wait=running", { json, headers }),
      await api.call("GET", `/v1/capsules/${created.json.id}`),
      await api.call("GET", "/v1/capsules"),
      await api.call("PUT", url, put),
      await api.call("PUT", url, bad),
      await api.call("GET", url),
      await api.call("GET", "/v1/audit"),
    ];
    assert.deepEqual(
      answers.map(({ status }) => status),
      [201, 201, 200, 200, 200, 400, 200, 200],
    );
    assert.equal(JSON.stringify([answers, api.log]).includes(value), false);
    assert.deepEqual(answers.at(-2)?.json.inject, shown);
    for (const [method, body] of [["GET"], ["PUT", put]] as const)
      assert.equal((await api.call(method, url, { ...body, key: keys.blue })).status, 404);
  });

  test("keeps a value for null, removes a rule that is left out, and then has nothing to keep", async () => {
    const api = new Api();
    const id = await api.capsule();
    const url = `/v1/capsules/${id}/network`;
    assert.equal((await api.call("PUT", url, { json: { inject: rule(value) } })).status, 200);
    assert.deepEqual((await api.call("PUT", url, { json: { inject: shown } })).json.inject, shown);
    assert.deepEqual((await api.call("PUT", url, { json: {} })).json.inject, []);
    const { status, json } = await api.call("PUT", url, { json: { inject: shown } });
    assert.deepEqual([status, json.error.details], [400, { field: "network.inject[0].headers.X-Key" }]);
  });
});
