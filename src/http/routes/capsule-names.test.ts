import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Api, keys } from "../../../test/api.ts";
import { Random } from "../../../test/conformance/random.ts";

async function create(api: Api, json: object, key: string = keys.red) {
  return await api.call("POST", "/v1/capsules", { json, key });
}

describe("a capsule's name", () => {
  test("stands for the id in every path, and in sandbox_id", async () => {
    const api = new Api();
    const { json: made } = await create(api, { name: "web-1" });
    assert.equal(made.name, "web-1");
    assert.equal((await api.call("GET", "/v1/capsules/web-1?wait=running")).json.id, made.id);
    const exec = await api.call("POST", "/v1/capsules/web-1/exec", { json: { cmd: "true" } });
    assert.equal(exec.status, 200);
    assert.equal((await api.call("POST", "/v1/capsules/web-1/ping")).status, 204);
    const captured = await api.call("POST", "/v1/snapshots", { json: { sandbox_id: "web-1", name: "tools" } });
    assert.equal(captured.status, 201);
    assert.equal((await api.call("GET", "/v1/capsules/web-1")).status, 404);
    assert.equal((await create(api, { name: "web-1" })).status, 201, "a captured capsule has freed its name");
  });

  test("is unique in the team, in every status, and free again when the capsule is destroyed", async () => {
    const api = new Api();
    const { json: made } = await create(api, { name: "db" });
    await api.call("GET", "/v1/capsules/db?wait=running");
    await api.call("POST", "/v1/capsules/db/pause");
    const again = await create(api, { name: "db" });
    assert.deepEqual([again.status, again.json.error.code], [409, "name_taken"]);
    assert.equal((await create(api, { name: "db" }, keys.blue)).status, 201, "another team has names of its own");
    assert.equal((await api.call("DELETE", "/v1/capsules/db")).status, 204);
    const next = await create(api, { name: "db" });
    assert.equal(next.status, 201);
    assert.notEqual(next.json.id, made.id);
  });

  test("is no way into another team", async () => {
    const api = new Api();
    await create(api, { name: "secret" });
    for (const [method, path] of [
      ["GET", ""],
      ["DELETE", ""],
      ["PATCH", ""],
      ["POST", "/exec"],
    ] as const) {
      const reply = await api.call(method, `/v1/capsules/secret${path}`, { key: keys.blue });
      assert.equal(reply.status, 404, `${method} ${path}`);
    }
  });

  for (const name of ["", "-a", "a-", "A", "a_b", "cl-a", "a".repeat(64), "ä", "a/b", "a.b", 7, "a\n"]) {
    test(`is refused as ${JSON.stringify(name)}`, async () => {
      const api = new Api();
      const reply = await create(api, { name });
      assert.deepEqual([reply.status, reply.json.error.details], [400, { field: "name" }]);
      assert.equal((await api.call("GET", "/v1/capsules")).json.length, 0);
    });
  }

  test("may have 63 characters, be one digit, and be taken away and given again", async () => {
    const api = new Api();
    for (const name of ["a".repeat(63), "0", "c", "cl"]) assert.equal((await create(api, { name })).status, 201, name);
    const gone = await api.call("PATCH", "/v1/capsules/c", { json: { name: null } });
    assert.deepEqual([gone.status, gone.json.name], [200, null]);
    assert.equal((await api.call("GET", "/v1/capsules/c")).status, 404);
    const taken = await api.call("PATCH", `/v1/capsules/${gone.json.id}`, { json: { name: "0" } });
    assert.deepEqual([taken.status, taken.json.error.code], [409, "name_taken"]);
    assert.equal((await api.call("PATCH", `/v1/capsules/${gone.json.id}`, { json: { name: "c" } })).json.name, "c");
    assert.equal((await api.call("PATCH", "/v1/capsules/c", { json: { name: "c" } })).status, 200, "its own name");
  });
});

describe("labels", () => {
  test("are kept as they are, and merged by PATCH", async () => {
    const api = new Api();
    const labels = { my_key: "a=b", "Team.x/y-z": "", "0": "é" };
    const { json: made } = await create(api, { labels });
    assert.deepEqual(made.labels, labels);
    const change = { labels: { my_key: null, added: "1", "0": "2", absent: null } };
    const changed = await api.call("PATCH", `/v1/capsules/${made.id}`, { json: change });
    assert.deepEqual(changed.json.labels, { "Team.x/y-z": "", added: "1", "0": "2" });
    assert.deepEqual((await api.call("GET", `/v1/capsules/${made.id}`)).json.labels, changed.json.labels);
  });

  const many = (count: number) => Object.fromEntries(Array.from({ length: count }, (_, at) => [`k${at}`, "v"]));
  for (const [what, labels, field] of [
    ["33 labels", many(33), "labels"],
    ["a value of 257 bytes", { a: `${"é".repeat(128)}x` }, "labels/a"],
    ["an empty key", { "": "v" }, "labels"],
    ["a key with a space", { "a b": "v" }, "labels"],
    ["a key of 64 characters", { ["k".repeat(64)]: "v" }, "labels"],
    ["a number for a value", { a: 1 }, "labels/a"],
    ["a NUL", { a: "\u0000" }, "labels/a"],
    ["a list", ["a"], "labels"],
    ["a text", "a=b", "labels"],
  ] as const) {
    test(`are refused: ${what}`, async () => {
      const api = new Api();
      const reply = await create(api, { labels });
      assert.equal(reply.status, 400);
      assert.match(reply.json.error.details.field, new RegExp(`^${field}`));
      const { json: made } = await create(api, { labels: { kept: "1" } });
      const change = await api.call("PATCH", `/v1/capsules/${made.id}`, {
        json: { labels, timeout_sec: 9, name: "x" },
      });
      assert.equal(change.status, 400);
      const now = (await api.call("GET", `/v1/capsules/${made.id}`)).json;
      assert.deepEqual([now.labels, now.timeout_sec, now.name], [{ kept: "1" }, 0, null], "nothing is changed");
    });
  }

  test("are at most 32 after a PATCH too, with values of 256 bytes", async () => {
    const api = new Api();
    const { json: made } = await create(api, { labels: { ...many(32), k0: "é".repeat(128) } });
    const more = await api.call("PATCH", `/v1/capsules/${made.id}`, { json: { labels: { more: "1" } } });
    assert.equal(more.status, 400);
    const swap = await api.call("PATCH", `/v1/capsules/${made.id}`, { json: { labels: { more: "1", k1: null } } });
    assert.equal(Object.keys(swap.json.labels).length, 32);
  });
});

describe("PATCH /v1/capsules/{id}", () => {
  test("works in every status and moves last_updated in none", async () => {
    const api = new Api();
    for (const status of ["starting", "running", "paused", "stopped", "error"] as const) {
      const id = await api.capsule(status);
      const before = (await api.call("GET", `/v1/capsules/${id}`)).json;
      const reply = await api.call("PATCH", `/v1/capsules/${id}`, { json: { timeout_sec: 77, name: null } });
      assert.deepEqual([reply.status, reply.json], [200, { ...before, timeout_sec: 77 }], status);
    }
  });

  test("leaves a change under way alone", async () => {
    const api = new Api();
    const id = await api.capsule("running");
    const pausing = api.call("POST", `/v1/capsules/${id}/pause`);
    const patched = await api.call("PATCH", `/v1/capsules/${id}`, { json: { name: "meanwhile" } });
    assert.equal(patched.status, 200);
    assert.deepEqual([(await pausing).status, (await pausing).json.status], [200, "paused"]);
    assert.equal((await api.call("GET", "/v1/capsules/meanwhile")).json.status, "paused");
  });

  test("an empty body, and fields that it does not know, change nothing", async () => {
    const api = new Api();
    const id = await api.capsule("running");
    const before = (await api.call("GET", `/v1/capsules/${id}`)).json;
    assert.deepEqual((await api.call("PATCH", `/v1/capsules/${id}`, { json: {} })).json, before);
    const reply = await api.call("PATCH", `/v1/capsules/${id}`, { json: { vcpus: 4, labels: null } });
    assert.deepEqual([reply.status, reply.json, reply.headers["x-ignored-fields"]], [200, before, "vcpus"]);
  });
});

describe("GET /v1/capsules with conditions", () => {
  test("all conditions must hold", async () => {
    const api = new Api();
    const a = (await create(api, { name: "a", labels: { env: "prod", tier: "1=2" } })).json.id;
    const b = (await create(api, { labels: { env: "prod" } })).json.id;
    await create(api, { name: "a" }, keys.blue);
    await api.call("GET", `/v1/capsules/${a}?wait=running`);
    await api.call("GET", `/v1/capsules/${b}?wait=running`);
    await api.call("POST", `/v1/capsules/${b}/pause`);
    const ids = async (query: string) =>
      (await api.call("GET", `/v1/capsules?${query}`)).json.map(({ id }: { id: string }) => id);
    assert.deepEqual(await ids("label=env=prod"), [b, a]);
    assert.deepEqual(await ids("label=env%3Dprod&label=tier=1=2"), [a]);
    assert.deepEqual(await ids("status=paused"), [b]);
    assert.deepEqual(await ids("status=running,paused&template=minimal"), [b, a]);
    assert.deepEqual(await ids("name=a"), [a]);
    assert.deepEqual(await ids("name=a&status=paused"), []);
    assert.deepEqual(await ids("template=other"), []);
    assert.deepEqual(await ids("label=env="), []);
  });

  for (const query of [
    "status=",
    "status=asleep",
    "status=running,",
    "label=x",
    "label==x",
    "label=a%20b=x",
    "limit=0",
    "limit=1001",
    "limit=x",
    "cursor=",
    "cursor=1-",
    "cursor=zzzzzzzzzzzz-AAAAAAAAAAAAAAAA",
    "color=red",
  ]) {
    test(`refuses ?${query}`, async () => {
      const reply = await new Api().call("GET", `/v1/capsules?${query}`);
      assert.deepEqual([reply.status, reply.json.error.code], [400, "invalid_request"]);
    });
  }

  test("a cursor belongs to its conditions", async () => {
    const api = new Api();
    for (let at = 0; at < 3; at++) await create(api, { labels: { a: "1" } });
    const first = await api.call("GET", "/v1/capsules?limit=1&label=a=1");
    const cursor = String(first.headers["x-next-cursor"]);
    const under = async (query: string) => (await api.call("GET", `/v1/capsules?cursor=${cursor}&${query}`)).status;
    assert.equal(await under("limit=2&label=a=1"), 200);
    assert.equal(await under("limit=2&label=a=2"), 400);
    assert.equal(await under("limit=2"), 400);
    const altered = cursor.replace(/.$/, (last) => (last === "A" ? "B" : "A"));
    assert.equal((await api.call("GET", `/v1/capsules?label=a=1&limit=1&cursor=${altered}`)).status, 400);
  });

  test("the order and number of a cursor's conditions mean nothing", async () => {
    const api = new Api();
    for (let at = 0; at < 2; at++) await create(api, { labels: { a: "1", b: "2" } });
    const first = await api.call("GET", "/v1/capsules?limit=1&status=starting,running&label=a=1&label=b=2");
    const cursor = String(first.headers["x-next-cursor"]);
    const query = `status=running,starting,running&label=b=2&label=a=1&limit=1&cursor=${cursor}`;
    const second = await api.call("GET", `/v1/capsules?${query}`);
    assert.deepEqual([second.status, second.json.length], [200, 1]);
  });

  test("a turn of the loop reads labels of at most 64 KiB and one capsule, and the whole list is the same", async () => {
    const api = new Api();
    const labels = Object.fromEntries(Array.from({ length: 32 }, (_, at) => [`k${at}`, "\u0001".repeat(256)]));
    const made: string[] = [];
    for (let at = 0; at < 12; at++) made.push((await create(api, { labels })).json.id);
    const turns: number[] = [];
    const { capsuleRows } = api.service;
    const page = capsuleRows.page.bind(capsuleRows);
    capsuleRows.page = (...asked) => {
      const read = page(...asked);
      turns.push(read.rows.length);
      return read;
    };
    const { json } = await api.call("GET", "/v1/capsules");
    assert.deepEqual(
      json.map(({ id }: { id: string }) => id),
      made.toReversed(),
    );
    assert.deepEqual(json[0].labels, labels);
    assert.ok(Math.max(...turns) <= 2, `${turns}`);
    assert.equal(
      turns.reduce((sum, rows) => sum + rows),
      12,
    );
  });

  test("a list beyond the budget of large answers is 503, and its pages are not", async () => {
    const api = new Api({ answers_max_bytes: 64 * 1024 });
    const labels = Object.fromEntries(Array.from({ length: 32 }, (_, at) => [`k${at}`, "\u0001".repeat(256)]));
    for (let at = 0; at < 100; at++) await create(api, { labels }); // of 50 KiB each; 4 MiB of a team do not count
    const reply = await api.call("GET", "/v1/capsules");
    assert.deepEqual([reply.status, reply.json.error.code], [503, "no_capacity"]);
    assert.equal((await api.call("GET", "/v1/capsules?limit=70")).json.length, 70);
  });

  test("pages show none twice and leave out none that was there all the time", async (t) => {
    const random = new Random(t);
    const api = new Api();
    const made: string[] = [];
    const add = async () => {
      made.push((await create(api, { labels: { even: String(made.length % 2) } })).json.id);
    };
    for (let at = 0; at < 60; at++) await add();
    const stayed = new Set(made.filter((_, at) => at % 2 === 0));
    const seen: string[] = [];
    let query = "label=even=0&limit=7";
    for (let page = 0; ; page++) {
      assert.ok(page < 100, "the pages come to an end");
      const { json, headers } = await api.call("GET", `/v1/capsules?${query}`);
      seen.push(...json.map(({ id }: { id: string }) => id));
      if (headers["x-next-cursor"] === undefined) break;
      query = `label=even=0&limit=7&cursor=${headers["x-next-cursor"]}`;
      await add();
      const gone = made[random.below(made.length)]!;
      stayed.delete(gone);
      await api.call("DELETE", `/v1/capsules/${gone}`);
    }
    assert.equal(new Set(seen).size, seen.length, "none is shown twice");
    assert.deepEqual(
      [...stayed].filter((id) => !seen.includes(id)),
      [],
      "none is left out",
    );
    const places = seen.map((id) => made.indexOf(id));
    assert.deepEqual(
      places,
      places.toSorted((a, b) => b - a),
      "newest first",
    );
  });
});

describe("POST /v1/capsules?wait=running", () => {
  test("is answered when it runs, and at once without it", async () => {
    const api = new Api();
    const waited = await api.call("POST", "/v1/capsules?wait=running");
    assert.deepEqual([waited.status, waited.json.status], [201, "running"]);
    api.service.host.isHanging = true;
    const late = await api.call("POST", "/v1/capsules?wait=running&timeout=0");
    assert.deepEqual([late.status, late.json.status], [201, "starting"]);
    api.service.host.isHanging = false;
    assert.equal((await api.call("POST", "/v1/capsules?wait=paused")).status, 400);
    assert.equal((await api.call("POST", "/v1/capsules?wait=running&timeout=301")).status, 400);
  });
});

describe("fields that an operation does not know", () => {
  test("are named, at most 20, in the answer's header", async () => {
    const api = new Api();
    const reply = await create(api, { "a b": 1, "é,": 2, vcpus: 1, "x-y_z.~": 3, "'(!*)": 4 });
    assert.equal(reply.headers["x-ignored-fields"], "a%20b,%C3%A9%2C,x-y_z.~,%27%28%21%2A%29");
    const many = Object.fromEntries(Array.from({ length: 30 }, (_, at) => [`f${at}`, 1]));
    assert.equal(String((await create(api, many)).headers["x-ignored-fields"]).split(",").length, 20);
    assert.equal((await create(api, { vcpus: 1 })).headers["x-ignored-fields"], undefined);
    assert.equal(
      (await create(api, { vcpus: 0, other: 1 })).headers["x-ignored-fields"],
      undefined,
      "an error has none",
    );
    const long = await create(api, { ["\ud800".repeat(9_000)]: 1, ["x".repeat(2_100)]: 1, labls: {} });
    assert.deepEqual([long.status, long.headers["x-ignored-fields"]], [201, "labls"]);
  });
});

describe("Authorization: Bearer", () => {
  test("is a key as X-API-Key, which counts where both are sent", async () => {
    const api = new Api();
    const status = async (headers: Record<string, string>) =>
      (await api.call("GET", "/v1/capsules", { key: null, headers })).status;
    assert.equal(await status({ authorization: `Bearer ${keys.red}` }), 200);
    assert.equal(await status({ authorization: `bearer ${keys.red}` }), 200);
    assert.equal(await status({ authorization: `Basic ${keys.red}` }), 401);
    assert.equal(await status({ authorization: keys.red }), 401);
    assert.equal(await status({ authorization: "Bearer " }), 401);
    assert.equal(await status({ authorization: `Bearer ${keys.red}`, "x-api-key": "capk_wrong" }), 401);
    assert.equal(await status({ authorization: "Bearer capk_wrong", "x-api-key": keys.red }), 200);
    const health = await api.call("GET", "/healthz", { key: null, headers: { authorization: `Bearer ${keys.red}` } });
    assert.equal(typeof health.json.creates, "boolean");
  });
});
