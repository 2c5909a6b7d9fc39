/** The example of docs/operations/cluster.md in front of two hosts, of which one is ended. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { describe, test } from "node:test";
import { Daemons } from "../cluster/daemons.ts";
import { missing } from "./known-clients.ts";
import { type KnownProxy, proxies, RunningProxy } from "./proxies.ts";

const page = resolve(import.meta.dirname, "../../docs/operations/cluster.md");
const nginx = proxies.find(({ name }) => name === "nginx")!;

/** Two of its hosts, without TLS, at these addresses. */
function balancerOf(addresses: readonly string[]): KnownProxy {
  const [, example = ""] = /^```nginx\n(.*?)^```$/ms.exec(readFileSync(page, "utf8")) ?? [];
  const servers = ["one", "two"].map((name, index) => [`${name}.internal:8080`, addresses[index]!] as const);
  let plain = example.replace(/^ *server three\.internal.*\n/m, "").replace(/^ *proxy_ssl_.*\n/gm, "");
  for (const [named, address] of servers) plain = plain.replace(named, address);
  plain = plain.replace("https://capsules", "http://capsules");
  return { ...nginx, configure: (_, setting) => nginx.configure(plain, setting) };
}

describe("a load balancer in front of two hosts", { skip: missing(nginx) }, () => {
  test("requests are answered by either host, and by the other one once a host has ended", async () => {
    await using daemons = await Daemons.start({ names: ["one", "two"] });
    const [one, two] = daemons.hosts;
    const { apiKey } = one!.server;
    const addresses = daemons.hosts.map(({ server }) => new URL(server.url).host);
    await using proxy = await RunningProxy.start(balancerOf(addresses), one!.server.url, 60);
    const answered = async (status: number, method: string, path: string, body?: object) => {
      const headers = { "x-api-key": apiKey, ...(body && { "content-type": "application/json" }) };
      const answer = await fetch(`${proxy.url}${path}`, {
        method,
        headers,
        ...(body && { body: JSON.stringify(body) }),
      });
      const text = await answer.text();
      assert.equal(answer.status, status, text);
      return text;
    };
    const listed = () => answered(200, "GET", "/v1/capsules");
    for (let asked = 0; asked < 4; asked++) await listed();
    await two!.server.kill("SIGKILL");
    for (let asked = 0; asked < 8; asked++) await listed();
    for (let made = 0; made < 4; made++) {
      const { id } = JSON.parse(await answered(201, "POST", "/v1/keys", { name: `balanced ${made}` })) as {
        id: string;
      };
      await answered(204, "DELETE", `/v1/keys/${id}`);
    }
  });
});
