import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Api, keys } from "../../../test/api.ts";
import { EventStream } from "../../../test/event-stream.ts";

describe("GET /v1/events", () => {
  test("sends each change in the form of the resource's own endpoint", async () => {
    const api = new Api();
    const url = await api.app.listen({ host: "127.0.0.1", port: 0 });
    await using events = await EventStream.open({ url, key: keys.red });
    assert.equal((await events.next())?.name, "reset");

    await api.capsule("running", keys.blue);
    const id = await api.capsule("running");
    const seen = [await events.next(), await events.next()];
    assert.deepEqual(
      seen.map((event) => [event?.name, event?.data.id, event?.data.status]),
      [
        ["capsule", id, "starting"],
        ["capsule", id, "running"],
      ],
    );
    assert.deepEqual(seen[1]?.data, (await api.call("GET", `/v1/capsules/${id}`)).json);

    const capture = await api.call("POST", "/v1/snapshots", { json: { sandbox_id: id, name: "tools" } });
    assert.deepEqual((await events.next())?.data, { id });
    const template = await events.next();
    assert.deepEqual([template?.name, template?.data], ["template", capture.json]);
    await api.call("DELETE", "/v1/snapshots/tools");
    const removed = await events.next();
    assert.deepEqual([removed?.name, removed?.data], ["template-removed", { name: "tools" }]);
    await api.app.close();
  });

  test("resumes after Last-Event-ID", async () => {
    const api = new Api();
    const url = await api.app.listen({ host: "127.0.0.1", port: 0 });
    const first = await EventStream.open({ url, key: keys.red });
    const reset = await first.next();
    await first[Symbol.asyncDispose]();
    const id = await api.capsule("running");
    await using second = await EventStream.open({ url, key: keys.red }, reset?.id);
    assert.deepEqual((await second.next())?.data.status, "starting");
    assert.deepEqual((await second.next())?.data.id, id);
    await api.app.close();
  });

  test("ends when the server stops, which does not wait for the drain time", async () => {
    const api = new Api({}, { drainMs: 60_000 });
    const url = await api.app.listen({ host: "127.0.0.1", port: 0 });
    await using events = await EventStream.open({ url, key: keys.red });
    await events.next();
    const closed = api.app.close();
    assert.equal(await events.next(), undefined);
    await closed;
  });

  test("ends when its key is revoked", async () => {
    const api = new Api();
    const url = await api.app.listen({ host: "127.0.0.1", port: 0 });
    const { json } = await api.call("POST", "/v1/keys", { json: { name: "short-lived" } });
    await using events = await EventStream.open({ url, key: json.key });
    await events.next();
    await api.call("DELETE", `/v1/keys/${json.id}`);
    assert.equal(await events.next(), undefined);
    await api.app.close();
  });

  test("needs a key, and does not support HEAD", async () => {
    const api = new Api();
    assert.equal((await api.call("GET", "/v1/events", { key: null })).status, 401);
    assert.equal((await api.call("HEAD", "/v1/events")).status, 405);
  });
});
