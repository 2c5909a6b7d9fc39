import assert from "node:assert/strict";
import { test } from "node:test";
import { type PortUrlBase, parsePortDomain, portUrl } from "./port-domain.ts";

test("a domain, or a URL of one that has scheme and port of the URLs", () => {
  assert.deepEqual(parsePortDomain("localhost"), { host: "localhost" });
  assert.deepEqual(parsePortDomain("Apps.Example.Org."), { host: "apps.example.org" });
  assert.deepEqual(parsePortDomain("bücher.example"), { host: "xn--bcher-kva.example" });
  assert.deepEqual(parsePortDomain("https://apps.example:8443"), {
    host: "apps.example",
    scheme: "https",
    port: 8_443,
  });
  assert.deepEqual(parsePortDomain("https://apps.example:443/"), { host: "apps.example", scheme: "https" });
  assert.deepEqual(parsePortDomain("http://Apps.example"), { host: "apps.example", scheme: "http" });
});

const noDomains = [
  ...["", ".", "a..b", "a b", "*.example", "apps.example:8443", "apps.example/", "127.0.0.1", "[::1]", "1.2", "a.0x7f"],
  ...[
    "ftp://apps.example",
    "https://",
    "https://127.0.0.1",
    "https://[::1]:1",
    "https://a.example/b",
    "https://a.example?b",
  ],
  ...[
    "https://a.example#b",
    "https://u@a.example",
    "https://u:p@a.example",
    "https://a.example:0x1",
    "https://a.example:65536",
  ],
  ...[`${"a".repeat(64)}.example`, `${"a.".repeat(95)}example`, "https:apps.example", "//apps.example"],
];
for (const text of noDomains) {
  test(`${JSON.stringify(text.slice(0, 30))} is none`, () => {
    assert.throws(() => parsePortDomain(text), /^Error: must be a domain such as /);
  });
}

test("URLs have the server's scheme and port, unless the domain's URL has others; a scheme's own port is left out", () => {
  const of = (domain: string, hasTls: boolean, listenPort: number) => {
    const base: PortUrlBase = { domain: parsePortDomain(domain), hasTls, listenPort };
    return portUrl(base, "cl-a");
  };
  assert.equal(of("localhost", false, 8_080), "http://{port}-cl-a.localhost:8080");
  assert.equal(of("localhost", false, 80), "http://{port}-cl-a.localhost");
  assert.equal(of("localhost", false, 443), "http://{port}-cl-a.localhost:443");
  assert.equal(of("a.example", true, 443), "https://{port}-cl-a.a.example");
  assert.equal(of("a.example", true, 8_443), "https://{port}-cl-a.a.example:8443");
  assert.equal(of("https://a.example", false, 8_080), "https://{port}-cl-a.a.example");
  assert.equal(of("https://a.example:80", false, 8_080), "https://{port}-cl-a.a.example:80");
  assert.equal(of("http://a.example:8000", true, 443), "http://{port}-cl-a.a.example:8000");
});
