import assert from "node:assert/strict";
import { test } from "node:test";
import { PortHosts } from "./port-hosts.ts";

const hosts = new PortHosts("localhost");
const id = "cl-0123456789abcdefghijklmno";
const at = (host: string | string[] | null, url = "/", httpVersion = "1.1") =>
  hosts.destinationOf({ rawHeaders: [host ?? []].flat().flatMap((each) => ["Host", each]), url, httpVersion });
const kindOf = (...of: Parameters<typeof at>) => at(...of).kind;

test("a label of port and id leads to that port, however the host is written", () => {
  for (const host of [
    `80-${id}.localhost`,
    `80-${id.toUpperCase()}.LOCALHOST`,
    `80-${id}.localhost.`,
    `80-${id}.localhost:8080`,
  ]) {
    assert.deepEqual(at(host), { kind: "port", address: { id, port: 80 }, host, path: "/" });
  }
  assert.deepEqual(at(`65535-${id}.localhost.:1`, "//a?b=%2f"), {
    ...{ kind: "port", address: { id, port: 65_535 }, host: `65535-${id}.localhost.:1`, path: "//a?b=%2f" },
  });
});

test("any other label below the domain leads nowhere", () => {
  const labels = [
    ...[`0-${id}`, `080-${id}`, `65536-${id}`, `99999-${id}`, `+80-${id}`, `80-`, "80", id, `-80-${id}`, `80--${id}`],
    ...[
      "80-my-name",
      "80-cl-",
      `80-${id}-x`,
      `80-${id}_`,
      `a.80-${id}`,
      `80-${id}.b`,
      "api",
      "",
      "*",
      `80-${id} `,
      `é80-${id}`,
    ],
  ];
  for (const label of labels) assert.equal(kindOf(`${label}.localhost`), "nothing", label);
});

test("the domain itself and other names are the API's", () => {
  for (const host of [
    "localhost",
    "localhost:8080",
    "LOCALHOST.",
    "127.0.0.1:80",
    "[::1]:80",
    "example.org",
    "",
    `80-${id}`,
  ])
    assert.equal(kindOf(host), "api", host);
  for (const host of [`80-${id}.localhost.example.org`, `80-${id}.xlocalhost`]) assert.equal(kindOf(host), "api", host);
  assert.equal(kindOf(null, "/", "1.0"), "api");
  const none = new PortHosts(undefined);
  assert.equal(
    none.destinationOf({ rawHeaders: ["Host", `80-${id}.localhost`], url: "/", httpVersion: "1.1" }).kind,
    "api",
  );
});

test("a host in doubt is refused before a route is looked at", () => {
  const port = `80-${id}.localhost`;
  assert.equal(kindOf([port, port]), "malformed");
  assert.equal(kindOf(["localhost", port]), "malformed");
  assert.equal(kindOf(null), "malformed");
  const odd = [`${port}:80@evil.org`, `${port}:x`, `${port}:8080:1`, `80-${id}:80.localhost`, `${port}/`, `${port}#`];
  const odder = [
    `x.localhost?`,
    `x:y@${port}`,
    `80-${id}%2elocalhost`,
    `${port}, localhost`,
    "[::1].localhost",
    `${port}\xa0`,
  ];
  for (const host of [...odd, ...odder]) assert.equal(kindOf(host), "malformed", host);
  for (const url of [
    "http://localhost/",
    `http://81-${id}.localhost/`,
    `ftp://${port}/`,
    `http://u@${port}/`,
    `http://${port}:81/`,
  ])
    assert.equal(kindOf(port, url), "malformed", url);
  assert.equal(kindOf("localhost", `http://${port}/`), "malformed");
  assert.equal(kindOf(null, `http://${port}/`, "1.0"), "malformed");
});

test("an absolute target of the same host is its path", () => {
  const cases = [
    ["http://HOST/a?b", "HOST", "/a?b"],
    ["HTTP://HOST:80", "HOST", "/"],
    ["https://HOST.?x", "HOST:443", "/?x"],
    ["http://HOST:8080//a", "HOST:8080", "//a"],
  ] as const;
  for (const [url, host, path] of cases) {
    const named = (text: string) => text.replace("HOST", `80-${id}.localhost`);
    assert.deepEqual(
      at(named(host), named(url)),
      { kind: "port", address: { id, port: 80 }, host: named(host), path },
      url,
    );
  }
  assert.equal(kindOf("example.org", "http://example.org/v1/limits"), "api");
});

test("a host longer than any name is refused before its parts are read", () => {
  const dots = `${".".repeat(15_900)}x`;
  for (const host of [dots, `${dots}.localhost`, `80-${id}.localhost${".".repeat(15_900)}`])
    assert.equal(kindOf(host), "malformed");
  assert.equal(kindOf("localhost", `http://${dots}/`), "malformed");
});
