import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Api } from "../../test/api.ts";
import { keys } from "../../test/fakes/services.ts";

class Counted {
  readonly seen: unknown[] = [];
  readonly contentType = "text/plain; version=0.0.4; charset=utf-8";
  requestEnded(method: string, route: string, status: number, seconds: number): void {
    assert.ok(seconds >= 0 && seconds < 60);
    this.seen.push([method, route, status]);
  }
  async text(): Promise<string> {
    return "figures 1\n";
  }
}

describe("GET /metrics", () => {
  test("is served to this machine without a key, and not to other addresses", async () => {
    const api = new Api({}, { metrics: { service: new Counted(), to: "loopback" } });
    const ask = (remoteAddress: string, headers = {}) => api.app.inject({ url: "/metrics", remoteAddress, headers });
    for (const address of ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"]) {
      const { statusCode, payload } = await ask(address);
      assert.deepEqual([statusCode, payload], [200, "figures 1\n"], address);
    }
    for (const address of ["10.0.0.1", "::ffff:10.0.0.1", "2001:db8::1", "::ffff:1.127.0.1"]) {
      assert.equal((await ask(address)).statusCode, 403, address);
    }
    assert.equal((await ask("127.0.0.1", { "x-forwarded-for": "10.0.0.1" })).statusCode, 403);
    assert.equal((await ask("127.0.0.1", { forwarded: "for=10.0.0.1" })).statusCode, 403);
  });

  test("is served to every address with `any`, and 404 with `off`", async () => {
    const open = new Api({}, { metrics: { service: new Counted(), to: "any" } });
    assert.equal((await open.app.inject({ url: "/metrics", remoteAddress: "10.0.0.1" })).statusCode, 200);
    assert.equal((await open.call("GET", "/metrics", { key: null })).status, 200);
    assert.equal((await new Api().call("GET", "/metrics")).status, 404);
  });

  test("requests are counted by their declared route, also refused ones", async () => {
    const service = new Counted();
    const api = new Api({}, { metrics: { service, to: "any" } });
    const id = await api.capsule("running");
    await api.call("GET", `/v1/capsules/${id}`);
    await api.call("GET", `/v1/capsules/${id}`, { key: keys.blue });
    await api.call("GET", `/v1/capsules/${id}`, { key: null });
    await api.call("GET", "/v1/anything/else");
    assert.deepEqual(service.seen, [
      ["GET", "/openapi.json", 200],
      ["POST", "/v1/capsules", 201],
      ["GET", "/v1/capsules/:id", 200],
      ["GET", "/v1/capsules/:id", 404],
      ["GET", "/v1/capsules/:id", 401],
      ["GET", "none", 404],
    ]);
  });
});
