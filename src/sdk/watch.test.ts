/** Watches of a directory, of a service whose agent is a fake. */
import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import { Api, keys } from "../../test/api.ts";
import { waitFor } from "../../test/wait-for.ts";
import { Client } from "./client.ts";
import { hasCode } from "./errors.ts";
import type { FileChange, Watch } from "./watch.ts";

async function setUp(t: TestContext) {
  const api = new Api({ watches_max: 2 });
  const url = await api.app.listen({ host: "127.0.0.1", port: 0 });
  t.after(() => api.app.close());
  const id = await api.capsule("running");
  const { files } = new Client({ url, apiKey: keys.red, retries: 0 }).capsule(id);
  return { api, id, files, guest: () => api.agent(id).watches.at(-1)! };
}

async function all(watch: Watch): Promise<FileChange[]> {
  const changes: FileChange[] = [];
  for await (const change of watch) changes.push(change);
  return changes;
}

test("changes are told until the directory is gone", async (t) => {
  const { files, guest } = await setUp(t);
  const watch = await files.watch("/work/\u{10f8ff}", { recursive: true });
  assert.deepEqual([guest().request.path, guest().request.recursive], ["/work/\u{10f8ff}", true]);
  const changes = [
    { event: "create", path: "/work/a" },
    { event: "rename", path: "/work/a", to: "/work/b" },
    { event: "remove", path: "/work" },
  ] as const;
  guest().tell(changes[0], changes[1], "overflow", changes[2], "end");
  assert.deepEqual(await all(watch), [changes[0], changes[1], { event: "overflow" }, changes[2]]);
  await assert.rejects(all(watch), TypeError);
});

test("leaving the loop, close and dispose end the watch in the guest", async (t) => {
  const { files, guest } = await setUp(t);
  const left = await files.watch("/work");
  assert.equal(guest().request.recursive, false);
  guest().tell({ event: "write", path: "/work/a" });
  for await (const change of left) {
    assert.equal(change.event, "write");
    break;
  }
  await waitFor("it has ended", () => guest().isCancelled);
  const closed = await files.watch("/work");
  const changes = all(closed);
  closed.close();
  assert.deepEqual(await changes, []);
  await waitFor("it has ended", () => guest().isCancelled);
  await (await files.watch("/work"))[Symbol.asyncDispose]();
  await waitFor("it has ended", () => guest().isCancelled);
});

test("a signal ends it with its reason", async (t) => {
  const { files, guest } = await setUp(t);
  const stop = new AbortController();
  const watch = await files.watch("/work", { signal: stop.signal });
  const changes = all(watch);
  stop.abort(new Error("enough"));
  await assert.rejects(changes, /enough/);
  await waitFor("it has ended", () => guest().isCancelled);
  await assert.rejects(files.watch("/work", { signal: stop.signal }), /enough/);
});

test("a watch that breaks throws", async (t) => {
  const { api, id, files } = await setUp(t);
  const paused = all(await files.watch("/work"));
  const refused = assert.rejects(paused, (error) => hasCode(error, "invalid_state"));
  await api.call("POST", `/v1/capsules/${id}/pause`);
  await refused;
});

test("refusals are errors of the service", async (t) => {
  const { files } = await setUp(t);
  await assert.rejects(files.watch("work"), (error) => hasCode(error, "invalid_request"));
  const open = [await files.watch("/work"), await files.watch("/work")];
  await assert.rejects(files.watch("/work"), (error) => hasCode(error, "quota_exceeded"));
  for (const watch of open) watch.close();
  const options = { depth: 2 } as object;
  await assert.rejects(files.watch("/work", options), /files\.watch has no option "depth"/);
});
