/** Long lists: the bytes of a short one, made in turns of the event loop, and charged like several requests. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Api, keys } from "../../test/api.ts";
import { countTurns } from "../../test/count-turns.ts";
import { sliceItems } from "./list-answers.ts";

function record(api: Api, entries: number, teamId = "team-red"): void {
  for (let made = 0; made < entries; made++) {
    const entry = { keyId: "key-red", keyName: "first", address: "", action: "exec", capsuleId: null } as const;
    api.service.audit.record({ ...entry, teamId, subject: String(made), status: 200 });
  }
}

test("a list of several slices has the bytes of its items, in one array", async () => {
  const api = new Api({ requests_per_sec: 10_000 });
  const ids: string[] = [];
  for (let made = 0; made < 2 * sliceItems + 1; made++) ids.push(await api.capsule());
  const { text, json } = await api.call("GET", "/v1/capsules");
  assert.equal(json.length, ids.length);
  const single: string[] = [];
  for (const { id } of json) single.push((await api.call("GET", `/v1/capsules/${id}`)).text);
  assert.equal(text, `[${single.join(",")}]`);
  assert.deepEqual(new Set(json.map(({ id }: { id: string }) => id)), new Set(ids));
});

test("a page of the audit log is the same entries, however many slices it takes", async () => {
  const api = new Api({ requests_per_sec: 10_000 });
  record(api, 3 * sliceItems);
  const { json: all } = await api.call("GET", "/v1/audit?limit=1000");
  assert.deepEqual([all.entries.length, all.next], [3 * sliceItems, null]);
  for (const limit of [1, sliceItems - 1, sliceItems, sliceItems + 1, 3 * sliceItems - 1, 3 * sliceItems]) {
    const { json } = await api.call("GET", `/v1/audit?limit=${limit}`);
    const next = limit < 3 * sliceItems ? all.entries[limit - 1].id : null;
    assert.deepEqual([json.entries, json.next], [all.entries.slice(0, limit), next], `limit ${limit}`);
  }
});

test("in one turn of the event loop at most one slice of a team's pages is read", async (t) => {
  const api = new Api({ requests_per_sec: 10_000 });
  for (const team of ["team-red", "team-blue"]) record(api, 5 * sliceItems, team);
  const { audit } = api.service;
  const turn = countTurns(t);
  const slices: string[] = [];
  const list = audit.list.bind(audit);
  audit.list = (teamId, query) => {
    slices.push(`${teamId} ${turn()}`);
    assert.ok(query.limit <= sliceItems);
    return list(teamId, query);
  };
  const read = (key: string) => api.call("GET", "/v1/audit?limit=1000", { key });
  await Promise.all([keys.red, keys.red, keys.red, keys.blue].map(read));
  assert.equal(slices.length, 4 * 5);
  assert.equal(new Set(slices).size, slices.length);
});

test("a long list is charged like several requests, a short one like one", async (t) => {
  const now = performance.now();
  t.mock.method(performance, "now", () => now);
  const api = new Api({ requests_per_sec: 1 });
  record(api, 2 * sliceItems);
  const ask = async (url: string) => {
    const { statusCode, headers } = await api.app.inject({ url, headers: { "x-api-key": keys.red } });
    return [statusCode, Number(headers["retry-after"] ?? 0)] as const;
  };
  for (let asked = 0; asked < 3; asked++) assert.equal((await ask("/v1/capsules"))[0], 200);
  assert.equal((await ask("/v1/audit?limit=200"))[0], 200);
  assert.deepEqual(await ask("/v1/capsules"), [429, 6], "5 s of debt at most");
});

test("an entry is on disk before the answer to a change, and not before that to a refusal", async () => {
  const api = new Api();
  const { audit } = api.service;
  let flushes = 0;
  const flush = audit.flush.bind(audit);
  audit.flush = () => {
    flushes++;
    flush();
  };
  const id = await api.capsule();
  flushes = 0;
  const refused: Parameters<Api["call"]>[] = [
    ["DELETE", "/v1/capsules/cl-none"],
    ["POST", "/v1/capsules/cl-none/pause"],
    ["POST", "/v1/capsules", { json: { template: "none" } }],
    ["DELETE", "/v1/keys/key-none"],
    ["DELETE", "/v1/snapshots/none"],
  ];
  for (const call of refused) assert.ok((await api.call(...call)).status >= 400, call.join(" "));
  assert.equal(flushes, 0);
  assert.equal((await api.call("DELETE", `/v1/capsules/${id}`)).status, 204);
  assert.equal(flushes, 1);
  const { json } = await api.call("GET", "/v1/audit?limit=10");
  const statuses = json.entries.map(({ status }: { status: number }) => status);
  assert.deepEqual(statuses.slice(0, 6), [204, 404, 404, 404, 404, 404]);
});
