/** Waits of the client at a service whose operator allows shorter ones than it asks for. */
import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import { Api, keys } from "../../test/api.ts";
import { waitFor } from "../../test/wait-for.ts";
import { Client } from "./client.ts";

async function serve(t: TestContext, wait_max_sec: number) {
  const api = new Api({ wait_max_sec });
  const url = await api.app.listen({ host: "127.0.0.1", port: 0 });
  t.after(() => api.app.close());
  const asked: string[] = [];
  const recording: typeof fetch = (input, init) => {
    asked.push(new URL(String(input)).pathname);
    return fetch(input, init);
  };
  return { api, asked, client: new Client({ url, apiKey: keys.red, fetch: recording, retries: 0 }) };
}

for (const waitMaxSec of [300, 5, 0]) {
  test(`waits end as they should where the service holds a request for ${waitMaxSec} s at most`, async (t) => {
    const { api, client, asked } = await serve(t, waitMaxSec);
    for (let round = 0; round < 2; round++) {
      const id = await api.capsule("starting");
      const running = client.capsule(id).until("running");
      if (waitMaxSec > 0) await waitFor("the request waits", () => api.waits === 1);
      await api.become(id, "running");
      assert.equal((await running).status, "running");
      const agent = api.agent(id);
      agent.exit = async () => ({ exitCode: 7, guestDurationUs: 1 });
      assert.equal(await client.capsule(id).process(500).wait(), 7);
    }
    const asksForLimits = asked.filter((path) => path === "/v1/limits").length;
    assert.equal(asksForLimits, waitMaxSec === 300 ? 0 : 1, "once per client, when it is needed");
  });
}

test("a service that holds nothing is not asked in a tight loop", async (t) => {
  const { api, client, asked } = await serve(t, 0);
  const id = await api.capsule("starting");
  await assert.rejects(client.capsule(id).until("running", { timeoutMs: 500 }), { code: "timeout" });
  assert.ok(asked.length < 10, `${asked.length} requests`);
});
