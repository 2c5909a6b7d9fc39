import assert from "node:assert/strict";
import { connect } from "node:net";
import { text } from "node:stream/consumers";
import { describe, test } from "node:test";
import { Api, keys } from "../../test/api.ts";
import { parseProxies } from "../network/proxies.ts";

class Counted {
  readonly seen: unknown[] = [];
  readonly contentType = "text/plain; version=0.0.4; charset=utf-8";
  socketClosed(): void {}
  requestEnded(method: string, route: string, status: number, seconds: number): void {
    assert.ok(seconds >= 0 && seconds < 60);
    this.seen.push([method, route, status]);
  }
  portRequestEnded(): void {}
  portBytesMoved(): void {}
  portWoke(): void {}
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

  test("is not served through a proxy on this machine that sends no X-Forwarded-For", async () => {
    const api = new Api({}, { metrics: { service: new Counted(), to: "loopback" } });
    const ask = async (headers: Record<string, string>) =>
      (await api.app.inject({ url: "/metrics", headers })).statusCode;
    for (const host of ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "[::1]:8080"])
      assert.equal(await ask({ host }), 200);
    for (const host of ["capsules.example.org", "localhost.example.org", "10.0.0.1:8080"]) {
      assert.equal(await ask({ host }), 403, host);
    }
    for (const name of ["via", "x-real-ip", "x-forwarded-host", "x-forwarded-proto"]) {
      assert.equal(await ask({ host: "localhost", [name]: "x" }), 403, name);
    }
    const declared = new Api(
      {},
      { metrics: { service: new Counted(), to: "loopback" }, proxies: parseProxies("loopback") },
    );
    assert.equal((await declared.app.inject({ url: "/metrics" })).statusCode, 403);
  });

  test("is served to this machine beside a declared proxy, and not to the proxy", async () => {
    const metrics = { service: new Counted(), to: "loopback" } as const;
    const ask = async (proxies: string, remoteAddress: string, headers: Record<string, string> = {}) => {
      const api = new Api({}, { metrics, proxies: parseProxies(proxies) });
      return (await api.app.inject({ url: "/metrics", remoteAddress, headers })).statusCode;
    };
    assert.equal(await ask("10.0.0.5", "127.0.0.1"), 200);
    assert.equal(await ask("10.0.0.5", "10.0.0.5"), 403);
    assert.equal(await ask("10.0.0.5", "10.0.0.5", { "x-forwarded-for": "127.0.0.1" }), 403);
    assert.equal(await ask("127.0.0.2", "127.0.0.2"), 403);
    assert.equal(await ask("127.0.0.2", "::ffff:127.0.0.2"), 403);
    assert.equal(await ask("127.0.0.2", "127.0.0.1"), 200);
  });

  test("is not served to a proxy that speaks HTTP/1.0 and replaces Host, as nginx does by default", async (t) => {
    const api = new Api({}, { metrics: { service: new Counted(), to: "loopback" } });
    const url = new URL(await api.app.listen({ host: "127.0.0.1", port: 0 }));
    t.after(() => api.app.close());
    const ask = async (version: string) => {
      const socket = connect(Number(url.port), url.hostname);
      socket.end(`GET /metrics HTTP/${version}\r\nHost: ${url.host}\r\nConnection: close\r\n\r\n`);
      return Number(String(await text(socket)).split(" ")[1]);
    };
    assert.deepEqual([await ask("1.0"), await ask("1.1")], [403, 200]);
  });

  test("with a token is served to every reader that sends it, and to no other", async () => {
    const token = "0123456789abcdef";
    for (const to of ["loopback", "any"] as const) {
      const api = new Api({}, { metrics: { service: new Counted(), to, token } });
      const ask = async (authorization: string | undefined, remoteAddress: string) => {
        const headers = authorization === undefined ? {} : { authorization };
        return (await api.app.inject({ url: "/metrics", remoteAddress, headers })).statusCode;
      };
      for (const address of ["127.0.0.1", "10.0.0.1"]) {
        assert.equal(await ask(`Bearer ${token}`, address), 200);
        for (const wrong of [undefined, "", "Bearer", `Bearer ${token}0`, `Basic ${token}`, token]) {
          assert.equal(await ask(wrong, address), 401, wrong);
        }
      }
    }
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
