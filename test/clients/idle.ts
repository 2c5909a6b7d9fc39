/** How long a proxy keeps an idle connection to a service that never closes one. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { existsSync, readFileSync } from "node:fs";
import http from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { gunzipSync } from "node:zlib";
import { type IdleLimit, idleLimits } from "../idle-limits.ts";
import { type KnownProxy, RunningProxy } from "./proxies.ts";

/** The row of the table in docs/operations/expose.md. */
export function statedIdle({ name }: KnownProxy): IdleLimit {
  const row = idleLimits().find((each) => each.name.includes(name));
  assert.ok(row, `docs/operations/expose.md says nothing of ${name}`);
  return row;
}

/** HAProxy's own manual, where Debian has installed it. */
const haproxyManual = "/usr/share/doc/haproxy/configuration.txt.gz";

/** As the manual says; undefined where there is none to read. */
export function documentedIdleSec({ name }: KnownProxy): number | undefined {
  if (name !== "HAProxy" || !existsSync(haproxyManual)) return undefined;
  const text = gunzipSync(readFileSync(haproxyManual)).toString("latin1");
  return Number(/^pool-purge-delay <delay>\n(?:.*\n){1,4}? *The default is (\d+)s\.$/m.exec(text)?.[1]);
}

/** Resolves with the seconds from the end of an answer to the end of the connection that brought it. */
export async function measureIdleSec(kind: KnownProxy): Promise<number> {
  const service = http.createServer((_request, response) => response.end("{}"));
  service.keepAliveTimeout = 0; // never
  const connected = once(service, "connection");
  await once(service.listen(0, "127.0.0.1"), "listening");
  try {
    const { port } = service.address() as AddressInfo;
    await using proxy = await RunningProxy.start(kind, `http://127.0.0.1:${port}`, 60);
    await (await fetch(`${proxy.url}/`)).text();
    const answered = performance.now();
    const [connection] = (await connected) as [Socket];
    connection.on("error", () => {}); // HAProxy's reset
    await new Promise((resolve) => connection.once("close", resolve));
    return (performance.now() - answered) / 1_000;
  } finally {
    service.closeAllConnections();
    service.close();
  }
}
