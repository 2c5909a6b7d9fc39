import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Api } from "../../../test/api.ts";
import { SecretKey } from "../../secret.ts";
import { envsMaxBytes } from "../../wire/capsule.ts";

const secret = "s3cr3t-value";
const envs = { TOKEN: secret, MODE: "test" };

async function create(api: Api, json: object): Promise<string> {
  const { status, json: made } = await api.call("POST", "/v1/capsules?wait=running", { json });
  assert.equal(status, 201);
  return made.id;
}

/** The variables of the last command that was sent to the guest. */
async function variablesOf(api: Api, id: string, own?: object): Promise<unknown> {
  await api.call("POST", `/v1/capsules/${id}/exec`, { json: { cmd: "true", ...(own && { envs: own }) } });
  return api.agent(id).runs.at(-1)?.command.envs;
}

describe("envs of a capsule", () => {
  test("are variables of every command; its own go before them", async () => {
    const api = new Api();
    const id = await create(api, { envs });
    assert.deepEqual(await variablesOf(api, id), envs);
    assert.deepEqual(await variablesOf(api, id, { MODE: "own", MORE: "1" }), { TOKEN: secret, MODE: "own", MORE: "1" });
    await api.call("POST", `/v1/capsules/${id}/exec`, { json: { cmd: "hang", background: true } });
    assert.deepEqual(api.agent(id).started.at(-1)?.envs, envs);
    const plain = await create(api, {});
    assert.equal(await variablesOf(api, plain), undefined);
  });

  test("hold over pause, resume and restart", async () => {
    const api = new Api();
    const id = await create(api, { envs });
    await api.become(id, "paused");
    await api.become(id, "running");
    assert.deepEqual(await variablesOf(api, id), envs);
    await api.become(id, "paused");
    await api.service.settled();
    const { database, clock, host } = api.service;
    const next = new Api({}, {}, { database, clock, host });
    await next.become(id, "running");
    assert.deepEqual(await variablesOf(next, id), envs);
  });

  test("stand in no answer, event, log, audit entry or column in the clear", async () => {
    const api = new Api();
    const events: string[] = [];
    api.service.capsules.onChange((_team, _id, view) => events.push(JSON.stringify(view)));
    const id = await create(api, { envs, name: "web" });
    await variablesOf(api, id);
    await api.call("PATCH", `/v1/capsules/${id}`, { json: { envs: { TOKEN: "other" }, timeout_sec: 9 } });
    const answers = [];
    for (const path of ["/v1/capsules", "/v1/capsules/web", "/v1/audit?limit=100"]) {
      answers.push((await api.call("GET", path)).text);
    }
    assert.deepEqual(await variablesOf(api, id), envs, "PATCH ignores them");
    const tables = api.service.database.prepare("SELECT * FROM capsules").all();
    const textOf = (value: unknown) =>
      value instanceof Uint8Array ? Buffer.from(value).toString("latin1") : String(value);
    const rows = tables.flatMap((row) => Object.values(row)).map(textOf);
    for (const text of [...answers, ...events, ...api.log, ...rows]) assert.ok(!text.includes(secret), text);
  });

  test("are not a template's", async () => {
    const api = new Api();
    const id = await create(api, { envs });
    await api.call("POST", "/v1/snapshots", { json: { sandbox_id: id, name: "tools" } });
    assert.equal(await variablesOf(api, await create(api, { template: "tools" })), undefined);
  });

  test("that cannot be decrypted refuse the resume, and only of capsules that have some", async () => {
    const api = new Api();
    const [needs, needsNone] = [await create(api, { envs }), await create(api, {})];
    for (const id of [needs, needsNone]) await api.become(id, "paused");
    await api.service.settled();
    const { database, clock, host } = api.service;
    const next = new Api({}, {}, { database, clock, host, secret: new SecretKey(Buffer.alloc(32, 9)) });
    const refused = await next.call("POST", `/v1/capsules/${needs}/resume`);
    assert.deepEqual([refused.status, refused.json.error.code], [409, "conflict"]);
    assert.match(refused.json.error.message, /secret\.key/);
    assert.equal((await next.call("GET", `/v1/capsules/${needs}`)).json.status, "paused");
    assert.equal((await next.call("POST", `/v1/capsules/${needsNone}/resume`)).status, 200);
    const found = new Api({}, {}, { database, clock, host });
    assert.equal((await found.call("POST", `/v1/capsules/${needs}/resume`)).status, 200, "the key was found again");
  });

  test("are at most 64 KiB together, of names and values that a process can have", async () => {
    const api = new Api();
    const value = "x".repeat(envsMaxBytes - 1);
    assert.deepEqual(await variablesOf(api, await create(api, { envs: { A: value } })), { A: value });
    for (const bad of [{ A: `${value}x` }, { "A=B": "1" }, { "": "1" }, { A: "\0" }, { A: 1 }, [], "A=1"]) {
      const reply = await api.call("POST", "/v1/capsules", { json: { envs: bad } });
      assert.equal(reply.status, 400, JSON.stringify(bad).slice(0, 40));
      assert.match(String(reply.json.error.details.field), /^envs/);
    }
    assert.equal((await api.call("GET", "/v1/limits")).json.envs_max_bytes, envsMaxBytes);
  });
});
