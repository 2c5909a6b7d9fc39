import assert from "node:assert/strict";
import querystring from "node:querystring";
import { after, before, test } from "node:test";
import fc from "fast-check";
import { Api } from "../../test/api.ts";
import { parseQuery } from "./query.ts";

let api: Api;
let id: string;
let paused: string;
let stopped: string;
before(async () => {
  api = new Api();
  id = await api.capsule();
  paused = await api.capsule("paused");
  stopped = await api.capsule("stopped");
});
after(() => api.app.close());

interface Described {
  parameters?: { in: string; name: string }[];
}

test("every operation of /v1 refuses a parameter that the description does not have", async () => {
  const { paths } = (await api.call("GET", "/openapi.json")).json as {
    paths: Record<string, Record<string, Described>>;
  };
  const isVersioned = ([path]: [string, unknown]) => path.startsWith("/v1/") && !path.endsWith("/signed");
  let asked = 0;
  for (const [path, operations] of Object.entries(paths).filter(isVersioned)) {
    for (const [method, { parameters = [] }] of Object.entries(operations)) {
      const one = path.endsWith("/resume") ? paused : path.endsWith("/start") ? stopped : id;
      const target = path.replace("{id}", one).replace(/\{[a-z_]+\}/g, "x");
      const isForm = path.endsWith("/write");
      const body = { headers: { "content-type": isForm ? "multipart/form-data; boundary=b" : "application/json" } };
      const more =
        method === "get" || method === "delete" ? {} : { ...body, body: Buffer.from(isForm ? "--b--\r\n" : "{}") };
      const { status, json } = await api.call(method.toUpperCase(), `${target}?no_such=1`, more);
      const where = `${method} ${path}`;
      assert.deepEqual([status, json.error.details], [400, { field: "no_such" }], where);
      const known = parameters.filter((each) => each.in === "query").map(({ name }) => name);
      const listed = known.length === 0 ? "takes none" : `takes ${known.join(", ")}`;
      assert.ok(json.error.message.endsWith(listed), `${where}: ${json.error.message}`);
      asked++;
    }
  }
  assert.ok(asked > 30, `${asked} operations`);
});

test("a long name is shown in part, one of no characters too, and an empty query is none", async () => {
  const get = (query: string) => api.call("GET", `/v1/capsules/${id}?${query}`);
  assert.match((await get("a".repeat(1_000))).json.error.message, /"a{59}…"; this path takes wait, timeout$/);
  assert.equal((await get("=1")).status, 400);
  assert.equal((await get("__proto__=1")).status, 400);
  assert.equal((await get("")).status, 200);
});

test("malformed escapes are decoded as querystring does, and none of them by an exception", (t) => {
  const parts = [
    "%",
    "%4",
    "%41",
    "%zz",
    "%c3%a9",
    "%c3",
    "%ff",
    "%ed%a0%80",
    "%f4%8f%bf%bf",
    "%f4%90%80%80",
    "%e0%80%80",
  ];
  const texts = fc.array(fc.constantFrom(...parts, "a", "f", "+", "&", "=", "%20"), { maxLength: 30 });
  fc.assert(
    fc.property(texts, (each) => {
      const text = each.join("");
      assert.deepEqual(parseQuery(text), querystring.parse(text, "&", "=", { maxKeys: 64 }), text);
    }),
    { numRuns: 2_000 },
  );
  const throwing = t.mock.method(querystring, "unescape", querystring.unescape);
  const query = parseQuery(Array.from({ length: 64 }, (_, at) => `%ff${at}=%ff`).join("&"));
  assert.deepEqual(Object.entries(query)[63], ["\ufffd63", "\ufffd"]);
  assert.equal(throwing.mock.callCount(), 0);
  assert.deepEqual({ ...parseQuery(`a=%41${"b".repeat(16_000)}%`) }, { a: `A${"b".repeat(16_000)}%` });
});

test("the key, the capsule and its state are checked before the query", async () => {
  const at = (capsule: string) => `/v1/capsules/${capsule}/files/list?no_such=1`;
  const json = { path: "/" };
  assert.equal((await api.call("POST", at(id), { json, key: "" })).status, 401);
  assert.equal((await api.call("POST", at("cl-none"), { json })).status, 404);
  assert.equal((await api.call("POST", at(paused), { json })).status, 409);
});
