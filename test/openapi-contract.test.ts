/** The check that conformance and unit tests put every answer through: it finds what the document does not describe. */
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { Api, keys } from "./api.ts";
import { type Answer, Contract } from "./openapi-contract.ts";

const api = new Api();
after(() => api.app.close());
const contract = new Contract(await api.document());

async function answerTo(method: "GET" | "PUT", path: string): Promise<Answer> {
  const {
    statusCode: status,
    headers,
    payload,
  } = await api.app.inject({
    method,
    url: path,
    headers: { "x-api-key": keys.red },
  });
  return { method, path, status, headers, body: payload };
}

test("an answer as described passes, and nothing else", async () => {
  const answer = await answerTo("GET", `/v1/capsules/${await api.capsule()}`);
  const body = JSON.parse(answer.body!);
  const withBody = (more: object) => ({ ...answer, body: JSON.stringify({ ...body, ...more }) });
  const withHeaders = (more: object) => ({ ...answer, headers: { ...answer.headers, ...more } });
  contract.check(answer);
  const wrong: [Answer, RegExp][] = [
    [{ ...answer, status: 202 }, /GET .* 202 is not in the document/],
    [withHeaders({ "x-more": "1" }), /header x-more is not in the document/],
    [withHeaders({ "x-request-id": "short" }), /x-request-id.*pattern/i],
    [withHeaders({ "x-content-type-options": undefined }), /nosniff|x-content-type-options/i],
    [withHeaders({ "content-type": "text/plain" }), /text\/plain is not in the document/],
    [withBody({ more: 1 }), /must NOT have additional properties/],
    [withBody({ id: 1 }), /must be string/],
    [withBody({ created_at: "yesterday" }), /must match format "date-time"/],
    [{ ...answer, body: "{}" }, /must have required property/],
    [{ ...answer, path: "/v1/more" }, /\/v1\/more 200 is not in the document/],
  ];
  for (const [each, message] of wrong) assert.throws(() => contract.check(each), message);
});

test("so it is with an answer that belongs to no operation", async () => {
  const answer = await answerTo("PUT", "/v1/limits");
  assert.equal(answer.status, 405);
  contract.check(answer);
  assert.throws(() => contract.check({ ...answer, body: "{}" }), /must have required property/);
  const headers = { ...answer.headers, location: "/" };
  assert.throws(() => contract.check({ ...answer, headers }), /header location is not in the document/);
});

test("and with events and WebSocket messages", () => {
  contract.checkEvent("/v1/events", "capsule-removed", { id: "cl-1" });
  assert.throws(() => contract.checkEvent("/v1/events", "capsule-removed", { id: "cl-1", more: 1 }));
  assert.throws(() => contract.checkEvent("/v1/events", "more", {}), /event more is not in the document/);
  const stream = "/v1/capsules/cl-1/exec/stream";
  contract.checkMessage(stream, { type: "start", pid: 1 });
  assert.throws(() => contract.checkMessage(stream, { type: "start", pid: 1, more: 1 }));
});
