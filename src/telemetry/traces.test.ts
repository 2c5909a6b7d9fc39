import assert from "node:assert/strict";
import { test } from "node:test";
import { Api } from "../../test/api.ts";
import { attributesOf, Collector } from "../../test/collector.ts";
import { CapsuleError } from "../wire/errors.ts";
import { Traces } from "./traces.ts";

test("a request and its operation on a VM are spans of one trace; commands have a span, too", async () => {
  await using collector = await Collector.start();
  const traces = new Traces(collector.url, "1.2.3");
  const api = new Api({}, { tracing: traces });
  const { capsules } = api.service;
  const pause = capsules.pause.bind(capsules);
  capsules.pause = (team, id) => traces.observe("pause", id, () => pause(team, id));

  const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const id = await api.capsule();
  traces.execStarted(id)();
  await api.call("POST", `/v1/capsules/${id}/pause`, { headers: { traceparent } });
  await api.call("GET", "/v1/capsules", { key: null });
  await traces.close(10_000);

  const request = collector.named("POST /v1/capsules/:id/pause");
  assert.equal(request.traceId, "0af7651916cd43dd8448eb211c80319c");
  assert.equal(request.parentSpanId, "b7ad6b7169203331");
  assert.equal(attributesOf(request)["capsule.id"], id);
  assert.equal(attributesOf(request)["http.response.status_code"], 200);
  assert.equal(attributesOf(collector.named("GET /v1/capsules"))["http.response.status_code"], 401);
  const work = collector.named("capsule pause");
  assert.deepEqual([work.traceId, work.parentSpanId], [request.traceId, request.spanId]);
  assert.equal(attributesOf(collector.named("capsule exec"))["capsule.id"], id);
});

test("a failed span carries the error's code, not its message", async () => {
  await using collector = await Collector.start();
  const traces = new Traces(collector.url, "1.2.3");
  const error = new CapsuleError("no_space", "no room for /secret/path");
  await assert.rejects(
    traces.observe("boot", "cl-1", async () => {
      throw error;
    }),
    (thrown) => thrown === error,
  );
  await traces.close(10_000);
  const span = collector.named("capsule boot");
  assert.equal(span.status.code, 2);
  assert.equal(attributesOf(span)["error.type"], "no_space");
  assert.ok(!JSON.stringify(collector.spans).includes("secret"));
});

test("an unreachable collector delays nothing", async () => {
  const traces = new Traces("http://127.0.0.1:1", "1.2.3");
  assert.equal(await traces.observe("boot", "cl-1", async () => "made"), "made");
  await traces.close(10_000);
});
