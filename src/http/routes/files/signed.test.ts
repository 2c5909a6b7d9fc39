import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Api, keys, type Reply } from "../../../../test/api.ts";
import { parseProxies } from "../../../network/proxies.ts";
import { originOf } from "../../origin.ts";
import { dispositionOf } from "./signed.ts";

let api: Api;
let id: string;
before(async () => {
  api = new Api();
  id = await api.capsule();
  api.agent(id).files.set("/f", Buffer.from("0123456789"));
});
after(() => api.app.close());

async function mint(json: object, more: object = {}): Promise<Reply> {
  return await api.call("POST", `/v1/capsules/${id}/files/url`, { json, ...more });
}

/** Path and query of a new URL. */
async function made(json: object): Promise<string> {
  const { status, json: answer } = await mint(json);
  assert.equal(status, 200);
  const { pathname, search } = new URL(answer.url);
  return pathname + search;
}

const get = (target: string, headers: Record<string, string> = {}) => api.call("GET", target, { key: null, headers });
const put = (target: string, body: string) =>
  api.call("PUT", target, { key: null, body, headers: { "content-type": "text/html" } });

describe("a signed URL", () => {
  test("reads its file without a key, as an attachment of which a browser runs nothing", async () => {
    const reply = await get(await made({ path: "/f" }));
    assert.deepEqual([reply.status, reply.text], [200, "0123456789"]);
    const { headers } = reply;
    assert.equal(headers["content-type"], "application/octet-stream");
    assert.equal(headers["content-disposition"], "attachment; filename=\"f\"; filename*=UTF-8''f");
    assert.equal(headers["x-content-type-options"], "nosniff");
    assert.equal(headers["content-security-policy"], "sandbox; default-src 'none'");
    assert.equal(headers["cache-control"], "no-store");
    assert.equal(headers["set-cookie"], undefined);
    const part = await get(await made({ path: "/f" }), { range: "bytes=2-4" });
    assert.deepEqual([part.status, part.text, part.headers["content-range"]], [206, "234", "bytes 2-4/10"]);
    assert.equal((await get(await made({ path: "/f" }), { range: "bytes=10-" })).status, 416);
    assert.equal((await get(await made({ path: "/none" }))).status, 404);
  });

  test("writes its file from the raw body", async () => {
    const target = await made({ path: "/put", method: "PUT" });
    for (const content of ["<script>", ""]) {
      assert.equal((await put(target, content)).status, 204);
      assert.equal(String(api.agent(id).files.get("/put")), content);
    }
    assert.equal((await put(await made({ path: "/full/x", method: "PUT" }), "x")).status, 507);
  });

  test("is good for one method, one path, one capsule and one time", async () => {
    const read = await made({ path: "/f" });
    const write = await made({ path: "/f", method: "PUT" });
    const other = await api.capsule();
    const foreign = await api.capsule("running", keys.blue);
    await api.call("POST", `/v1/capsules/${other}/files/url`, { json: { path: "/f" } });
    await api.call("POST", `/v1/capsules/${foreign}/files/url`, { json: { path: "/f" }, key: keys.blue });
    const changed = (name: string, value: string) => {
      const url = new URL(read, "http://x");
      url.searchParams.set(name, value);
      return url.pathname + url.search;
    };
    const without = (name: string) => {
      const url = new URL(read, "http://x");
      url.searchParams.delete(name);
      return url.pathname + url.search;
    };
    const signature = new URL(read, "http://x").searchParams.get("signature")!;
    const last = signature.at(-1)!;
    // The last character has two bits of no meaning.
    const alias =
      signature.slice(0, -1) +
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".charAt(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".indexOf(last) ^ 1,
      );
    const refused: [string, Promise<Reply>][] = [
      ["GET of a PUT", get(write)],
      ["PUT of a GET", put(read, "x")],
      ["another path", get(changed("path", "/g"))],
      ["a path below", get(changed("path", "/f/../g"))],
      ["the same path, otherwise written", get(changed("path", "//f"))],
      ["a later end", get(changed("expires", "9999999999999"))],
      ["an end that is no number", get(changed("expires", "x"))],
      ["another key", get(changed("key", "key-blue"))],
      ["another signature", get(changed("signature", "A".repeat(43)))],
      ["another form of the signature", get(changed("signature", alias))],
      ["no signature", get(without("signature"))],
      ["no path", get(without("path"))],
      ["no key", get(without("key"))],
      ["no end", get(without("expires"))],
      ["two paths", get(`${read}&path=/f`)],
      ["an added parameter", get(`${read}&more=1`)],
      ["an added parameter of a PUT", put(`${write}&more=1`, "x")],
      ["another capsule", get(read.replace(id, other))],
      ["another team's capsule", get(read.replace(id, foreign))],
      ["a key of the team instead", api.call("GET", `/v1/capsules/${id}/files/signed`)],
    ];
    for (const [what, asked] of refused) {
      const { status, json } = await asked;
      assert.deepEqual([status, json?.error.code], [401, "unauthorized"], what);
    }
    assert.equal(String(api.agent(id).files.get("/f")), "0123456789");
    const never = await api.capsule();
    assert.equal((await get(read.replace(id, never))).status, 401, "a capsule without a secret");
  });

  test("ends at its time, with its key, and with its capsule; it waits out a pause", async () => {
    const target = await made({ path: "/f", expires_sec: 60 });
    const { clock, teams } = api.service;
    clock.advance(59_000);
    assert.equal((await get(target)).status, 200);
    clock.advance(1_000);
    assert.equal((await get(target)).status, 401);
    const key = teams.createKey("team-red", "short");
    const byKey = async () => {
      const { json } = await mint({ path: "/f" }, { key: key.key });
      return new URL(json.url);
    };
    const { pathname, search } = await byKey();
    assert.equal((await get(pathname + search)).status, 200);
    await api.call("DELETE", `/v1/keys/${key.id}`);
    assert.equal((await get(pathname + search)).status, 401);
    const paused = await api.capsule();
    const ask = () => api.call("POST", `/v1/capsules/${paused}/files/url`, { json: { path: "/f" } });
    const { json } = await ask();
    await api.become(paused, "paused");
    assert.equal((await ask()).status, 200, "one is made in every status");
    const there = new URL(json.url);
    const refusal = await get(there.pathname + there.search);
    assert.deepEqual([refusal.status, refusal.json.error.code], [409, "invalid_state"]);
    await api.become(paused, "running");
    api.agent(paused).files.set("/f", Buffer.from("x"));
    assert.equal((await get(there.pathname + there.search)).status, 200);
    await api.call("DELETE", `/v1/capsules/${paused}`);
    assert.equal((await get(there.pathname + there.search)).status, 404);
    assert.equal((await ask()).status, 404);
  });

  test("keeps names of any bytes, and leads to that file alone", async () => {
    const path = "/dir/caf\u{10f8e9} ' \" ; %2e ü";
    api.agent(id).files.set(path, Buffer.from("odd"));
    const reply = await get(await made({ path }));
    assert.equal(reply.text, "odd");
    assert.equal(
      reply.headers["content-disposition"],
      "attachment; filename=\"caf_ _ _ _ _2e _\"; filename*=UTF-8''caf%F4%8F%A3%A9%20%27%20%22%20%3B%20%252e%20%C3%BC",
    );
    assert.equal(dispositionOf("/a\r\nb"), "attachment; filename=\"a__b\"; filename*=UTF-8''a%0D%0Ab");
  });

  test("stands in no line of the log and in no audit entry", async () => {
    const url = new URL(await made({ path: "/f" }), "http://x");
    await get(url.pathname + url.search);
    await get(url.pathname + url.search.replace("expires", "expired"));
    await put(url.pathname + url.search, "x");
    const signature = url.searchParams.get("signature")!;
    assert.deepEqual(
      api.log.filter((line) => line.includes(signature)),
      [],
    );
    const { json } = await api.call("GET", "/v1/audit?limit=1000");
    assert.ok(!JSON.stringify(json).includes(signature));
    const seen = json.entries.filter((entry: { action: string }) => entry.action === "file.url");
    assert.equal(seen[0].subject, "GET /f");
    const read = json.entries.find((entry: { action: string }) => entry.action === "file.read");
    assert.deepEqual([read.key_id, read.subject, read.status], ["key-red", "/f", 200]);
  });
});

test("without a valid signature requests count as those with a wrong key do", async (t) => {
  t.mock.method(performance, "now", () => 1_000); // no bucket is refilled meanwhile
  const limited = new Api({ refused_keys_per_sec: 1 });
  const capsule = await limited.capsule();
  const statuses = new Set<number>();
  for (const target of [`/v1/capsules/${capsule}/files/signed`, "/v1/capsules/cl-none/files/signed"])
    for (let count = 0; count < 25; count++) statuses.add((await limited.call("GET", target, { key: null })).status);
  assert.deepEqual([...statuses].sort(), [401, 429]);
  await limited.app.close();
});

test("with one they count against the rate of its key", async (t) => {
  t.mock.method(performance, "now", () => 1_000);
  const limited = new Api({ requests_per_sec: 1 });
  const capsule = await limited.capsule();
  limited.agent(capsule).files.set("/f", Buffer.alloc(0));
  const { json } = await limited.call("POST", `/v1/capsules/${capsule}/files/url`, { json: { path: "/f" } });
  const { pathname, search } = new URL(json.url);
  const statuses = new Set<number>();
  for (let count = 0; count < 10; count++)
    statuses.add((await limited.call("GET", pathname + search, { key: null })).status);
  assert.deepEqual([...statuses].sort(), [200, 429]);
  await limited.app.close();
});

describe("files/url", () => {
  test("is absolute, at the address that the request came to", async () => {
    for (const host of ["capsule.example", "10.0.0.7:8080", "[::1]:8080"]) {
      const { json } = await mint({ path: "/f" }, { headers: { host } });
      assert.equal(new URL(json.url).host, host);
      assert.equal(new URL(json.url).protocol, "http:");
    }
    for (const host of ["a b", "a/b", "a@b", "a:99999999", "a?b", "evil\\x"]) {
      const { status, json } = await mint({ path: "/f" }, { headers: { host } });
      assert.deepEqual([status, json.error.code], [400, "invalid_request"], host);
    }
    const socket = { localAddress: "::1", localPort: 8080 } as never;
    assert.equal(originOf({ protocol: "https", host: "", socket }), "https://[::1]:8080");
    const proxied = { ...{ host: "inside:1" }, "x-forwarded-proto": "https", "x-forwarded-host": "outside.example" };
    assert.match((await mint({ path: "/f" }, { headers: proxied })).json.url, /^http:\/\/inside:1\//);
    const behind = new Api({}, { proxies: parseProxies("loopback") });
    const capsule = await behind.capsule();
    const asked = { json: { path: "/f" }, headers: proxied };
    const { json } = await behind.call("POST", `/v1/capsules/${capsule}/files/url`, asked);
    assert.match(json.url, /^https:\/\/outside\.example\/v1\/capsules\//);
    await behind.app.close();
  });

  test("expires in an hour unless told otherwise", async () => {
    const now = api.service.teams.now();
    const at = (reply: Reply) => Date.parse(reply.json.expires_at) - now;
    assert.equal(at(await mint({ path: "/f" })), 3_600_000);
    assert.equal(at(await mint({ path: "/f", expires_sec: 604_800 })), 604_800_000);
    const { json } = await api.call("GET", "/v1/limits");
    assert.equal(json.url_max_sec, 604_800);
  });

  for (const [json, field] of [
    [{ path: "/f", expires_sec: 0 }, "expires_sec"],
    [{ path: "/f", expires_sec: 604_801 }, "expires_sec"],
    [{ path: "/f", expires_sec: 1.5 }, "expires_sec"],
    [{ path: "/f", method: "POST" }, "method"],
    [{ path: "f" }, "path"],
  ] as const) {
    test(`${JSON.stringify(json)} is 400`, async () => {
      const reply = await mint(json);
      assert.deepEqual([reply.status, reply.json.error.details.field], [400, field]);
    });
  }
});
