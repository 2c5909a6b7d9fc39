/** One Idempotency-Key, many creates, and a server that is killed in between. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, type Reply, TestCapsule } from "../client.ts";
import { Server } from "../server.ts";

const creates = 64;

test("64 creates with one key are one capsule, with a kill -9 of the server while they are under way", async () => {
  await using server = await Server.start();
  const headers = { "idempotency-key": "once-for-all" };
  const create = (client: Client) => client.call("POST", "/v1/capsules", { headers, json: { name: "once" } });
  const first = await Client.connect(server.url, server.apiKey);
  const answered = Promise.withResolvers<void>();
  const before = Array.from({ length: creates / 2 }, async (): Promise<Reply | undefined> => {
    try {
      return await create(first);
    } catch {
      return undefined; // its connection ended with the server
    } finally {
      answered.resolve();
    }
  });
  await answered.promise; // one of them has its answer, which the next life has to give again
  await server.kill("SIGKILL");
  const early = await Promise.all(before);
  await server.start();
  const second = await Client.connect(server.url, server.apiKey);
  const late = await Promise.all(Array.from({ length: creates / 2 }, () => create(second)));
  const replies = [...early.filter((reply) => reply !== undefined), ...late];
  assert.ok(replies.length > creates / 2);
  assert.deepEqual([...new Set(replies.map(({ status }) => status))], [201]);
  const ids = new Set(replies.map(({ json }) => json.id));
  assert.equal(ids.size, 1);
  const { json: list } = await second.expect(200, "GET", "/v1/capsules");
  assert.deepEqual(
    list.map(({ id }: { id: string }) => id),
    [...ids],
  );
  const capsule = new TestCapsule(second, list[0].id);
  await capsule.until("running");
  await capsule.destroy();
  first.close();
  second.close();
});
