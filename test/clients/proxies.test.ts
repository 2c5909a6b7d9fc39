/** Each proxy of the suite has a read time-out, or silent connections would prove nothing about it. */
import assert from "node:assert/strict";
import { once } from "node:events";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import { after, before, describe, test } from "node:test";
import { missing } from "./known-clients.ts";
import { proxies, RunningProxy } from "./proxies.ts";

const readTimeoutSec = 2;

describe("a proxy passes the Host of a port's URL on, from which the service knows the port", {
  concurrency: true,
}, () => {
  const service = http.createServer(({ headers }, response) => response.end(headers.host));
  before(async () => {
    await once(service.listen(0, "127.0.0.1"), "listening");
  });
  after(() => service.close());
  for (const kind of proxies.filter((each) => missing(each) === false)) {
    test(kind.name, async () => {
      const { port } = service.address() as AddressInfo;
      await using proxy = await RunningProxy.start(kind, `http://127.0.0.1:${port}`, 60);
      const headers = { host: "8000-cl-a.apps.example", connection: "close" };
      const [answer] = (await once(http.get(proxy.url, { headers }), "response")) as [http.IncomingMessage];
      assert.match(await text(answer), /^8000-cl-a\.apps\.example(:\d+)?$/);
    });
  }
});

describe("a proxy gives up on a service that is silent for its read time-out", { concurrency: true }, () => {
  const service = http.createServer(() => {});
  before(async () => {
    await once(service.listen(0, "127.0.0.1"), "listening");
  });
  after(() => {
    service.closeAllConnections();
    service.close();
  });
  for (const kind of proxies.filter((each) => missing(each) === false)) {
    test(kind.name, async () => {
      const { port } = service.address() as AddressInfo;
      await using proxy = await RunningProxy.start(kind, `http://127.0.0.1:${port}`, readTimeoutSec);
      const answer = await fetch(proxy.url, { signal: AbortSignal.timeout(120_000) });
      assert.ok([502, 504].includes(answer.status), `${answer.status}`);
    });
  }
});
