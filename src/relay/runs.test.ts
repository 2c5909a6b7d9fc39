/** The relay with one gateway peer or more: decisions, names, limits, messages, by what the peer sees and what is dialled. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { describe, test } from "node:test";
import { setImmediate as turn } from "node:timers/promises";
import { connect as connectTls } from "node:tls";
import { EchoDialler } from "../../test/relay/echo-dialler.ts";
import { Relayed, type Zone } from "../../test/relay/relayed.ts";
import { waitFor } from "../../test/wait-for.ts";

const zone: Zone = {
  "a.example": ["9.9.9.1", "9.9.9.2"],
  "b.example": ["9.9.9.3"],
  "private.example": ["10.0.0.1"],
  "mixed.example": ["10.0.0.1", "9.9.9.4"],
  "broken.example": "failed",
};
const head = (host: string) => `GET / HTTP/1.1\r\nHost: ${host}\r\n\r\n`;
const forbidden = /^HTTP\/1\.1 403 /;

function relayed(options: { grants?: string[]; reserved?: string[]; limits?: object } = {}) {
  const dialler = new EchoDialler();
  const { grants = [], reserved = [], limits = {} } = options;
  const all = { connectionsMax: 100, teamConnectionsMax: 100, connectionsPerSec: 0, connectionsBurst: 1_000 };
  const more = { namesPerSec: 1_000, namesInFlightMax: 64, heldMaxBytes: 1 << 24 };
  const relay = new Relayed(zone, { grants, reserved, limits: { ...all, ...more, ...limits } }, dialler);
  return { relay, dialler };
}

describe("a connection to an address", () => {
  test("is opened under public, and passed on both ways", async () => {
    const { relay, dialler } = relayed();
    await using _ = relay;
    const { peer, run } = await relay.attach({ egress: "public" });
    const stream = await peer.connected("9.9.9.9", 22);
    stream.end("hello");
    assert.equal(await stream.text(), "hello");
    assert.deepEqual(dialler.dialled, ["9.9.9.9:22"]);
    assert.deepEqual(relay.recent(run), ["allowed 9.9.9.9 22"]);
  });

  const shut: [policy: object, address: string, port: number, reason: string][] = [
    [{ egress: "none" }, "9.9.9.9", 80, "egress none"],
    [{ egress: "public" }, "10.0.0.1", 80, "reserved"],
    [{ egress: "public" }, "169.254.169.254", 80, "reserved"],
    [{ egress: "public" }, "127.0.0.1", 80, "reserved"],
    [{ egress: "public" }, "192.0.0.1", 80, "reserved"],
    [{ egress: "public" }, "9.9.9.9", 25, "reserved"],
    [{ egress: "public" }, "5.6.7.8", 80, "reserved"],
    [{ egress: "public", deny: ["9.9.9.0/24:80"] }, "9.9.9.9", 80, "deny"],
    [{ allow: ["9.9.9.9:80"] }, "9.9.9.9", 81, "not listed"],
    [{ allow: ["a.example"] }, "9.9.9.1", 22, "not listed"],
    [{ allow: ["a.example:22"] }, "9.9.9.3", 22, "not listed"],
    [{ allow: ["9.9.9.9"] }, "9.9.9.8", 80, "not listed"],
  ];
  for (const [policy, address, port, reason] of shut) {
    test(`${address}:${port} under ${JSON.stringify(policy)}: ${reason}`, async () => {
      const { relay, dialler } = relayed({ reserved: ["5.6.7.0/24"] });
      await using _ = relay;
      const { peer, run } = await relay.attach(policy);
      assert.equal(await peer.connect(address, port), `denied: ${reason}`);
      assert.deepEqual(dialler.dialled, []);
      assert.deepEqual(relay.recent(run), [`denied ${reason} ${address} ${port}`]);
    });
  }

  test("tells refused, unreachable and timeout", async () => {
    const { relay, dialler } = relayed();
    await using _ = relay;
    const { peer, run } = await relay.attach({ egress: "public" });
    for (const failure of ["refused", "unreachable", "timeout"] as const) {
      dialler.failure = failure;
      assert.equal(await peer.connect("9.9.9.9", 22), `${failure}: ${failure}`);
      assert.equal(relay.recent(run).at(-1), `failed ${failure} 9.9.9.9 22`);
    }
    dialler.failure = "own address";
    assert.equal(await peer.connect("9.9.9.9", 22), "denied: reserved");
    dialler.failure = "limit";
    assert.equal(await peer.connect("9.9.9.9", 22), "denied: limit");
  });

  test("this machine's loopback is dialled for its name's address, where granted and listed", async () => {
    const { relay, dialler } = relayed({ grants: ["host:11434", "10.1.0.0/16:5432"] });
    await using _ = relay;
    const allow = ["host.capsule.internal:11434", "10.1.0.5:5432"];
    const { peer, run } = await relay.attach({ egress: "public", allow });
    assert.deepEqual(await peer.addresses("host.capsule.internal"), ["192.0.0.1"]);
    for (const [address, port] of [
      ["192.0.0.1", 11_434],
      ["10.1.0.5", 5_432],
    ] as const)
      (await peer.connected(address, port)).destroy();
    assert.deepEqual(dialler.dialled, ["127.0.0.1:11434 granted", "10.1.0.5:5432 granted"]);
    const noted = ["allowed host.capsule.internal 192.0.0.1 11434", "allowed 10.1.0.5 5432"];
    assert.deepEqual(relay.recent(run), noted);
    assert.equal(await peer.connect("192.0.0.1", 80), "denied: reserved");
    assert.equal(await peer.connect("10.1.0.6", 5_432), "denied: reserved");
    const other = await relay.attach({ egress: "public" });
    assert.equal(await other.peer.connect("192.0.0.1", 11_434), "denied: reserved");
    assert.equal(await other.peer.addresses("host.capsule.internal"), 3);
  });
});

describe("ports 80 and 443 of a listed domain", () => {
  test("the name decides, and is resolved by the relay: the asked address where it has it, else the first", async () => {
    const { relay, dialler } = relayed();
    await using _ = relay;
    const { peer, run } = await relay.attach({ allow: ["a.example"] });
    for (const address of ["9.9.9.2", "8.8.8.8"]) {
      const stream = await peer.connected(address, 80);
      stream.end(head("A.example"));
      assert.equal(await stream.text(), head("A.example"));
    }
    assert.deepEqual(dialler.dialled, ["9.9.9.2:80", "9.9.9.1,9.9.9.2:80"]);
    assert.deepEqual(relay.recent(run), ["allowed a.example 9.9.9.2 80", "allowed a.example 9.9.9.1 80"]);
  });

  test("a name that is not listed gets 403 with the reason, and nothing is asked or dialled", async () => {
    const { relay, dialler } = relayed();
    await using _ = relay;
    const { peer, run } = await relay.attach({ allow: ["a.example", "b.example:443"] });
    for (const host of ["c.example", "b.example", "x.a.example"]) {
      const stream = await peer.connected("9.9.9.1", 80);
      stream.end(head(host));
      const answer = await stream.text();
      assert.match(answer, forbidden);
      assert.ok(answer.includes(`${host} is not listed`), answer);
    }
    assert.deepEqual([dialler.dialled, relay.resolver.asked], [[], []]);
    assert.equal(relay.recent(run)[0], "denied not listed c.example 9.9.9.1 80");
  });

  for (const [what, bytes] of [
    ["two Hosts", "GET / HTTP/1.1\r\nHost: a.example\r\nHost: a.example\r\n\r\n"],
    ["an absolute target", "GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"],
    ["a Host of another port", head("a.example:8080")],
    ["CONNECT", "CONNECT a.example:80 HTTP/1.1\r\nHost: a.example\r\n\r\n"],
  ] as const) {
    test(`${what}: 403`, async () => {
      const { relay, dialler } = relayed();
      await using _ = relay;
      const { peer } = await relay.attach({ allow: ["a.example"] });
      const stream = await peer.connected("9.9.9.1", 80);
      stream.end(bytes);
      assert.match(await stream.text(), forbidden);
      assert.deepEqual(dialler.dialled, []);
    });
  }

  test("bytes that are neither TLS nor HTTP, and an end before a name, end it without a word", async () => {
    const { relay, dialler } = relayed();
    await using _ = relay;
    const { peer } = await relay.attach({ allow: ["a.example"] });
    for (const bytes of ["\0\0", "ssh", "", "\x16\x03"]) {
      const stream = await peer.connected("9.9.9.1", 443);
      stream.end(bytes);
      assert.equal(await stream.text(), bytes.startsWith("\x16") ? "\x15\x03\x03\0\x02\x02\x31" : "");
    }
    assert.deepEqual(dialler.dialled, []);
  });

  test("a connection that is silent, or half silent, for 10 seconds is ended", async (t) => {
    const { relay, dialler } = relayed();
    await using _ = relay;
    const { peer, run } = await relay.attach({ allow: ["a.example", "a.example:22"] });
    await peer.addresses("a.example"); // the relay has the WELCOME, and no timer of its own
    t.mock.timers.enable({ apis: ["setTimeout"] });
    const streams = [await peer.connected("9.9.9.1", 80), await peer.connected("9.9.9.1", 443)];
    streams[0]!.write("GET / HTTP/1.1\r\nHost: a.exam");
    const checked = await peer.connected("9.9.9.1", 22);
    checked.write("\x16\x03");
    const spoken = await peer.connected("9.9.9.1", 22);
    spoken.write("\x17");
    await once(spoken, "readable");
    t.mock.timers.tick(9_999);
    assert.ok(streams.every((stream) => stream.readableLength === 0));
    t.mock.timers.tick(1);
    assert.match(await streams[0]!.text(), forbidden);
    assert.equal(await streams[1]!.text(), "");
    assert.equal(await checked.text(), "\x15\x03\x03\0\x02\x02\x31");
    assert.deepEqual(dialler.dialled, ["9.9.9.1:22", "9.9.9.1:22"]);
    t.mock.timers.tick(5_000); // for a program to close after it was refused
    const hasMore = () => relay.connectionsOpen(run) > 1;
    for (let questions = 0; questions < 100 && hasMore(); questions++) await peer.addresses("a.example");
    assert.equal(relay.connectionsOpen(run), 1, "the one that may be silent");
  });

  test("a name whose addresses are all reserved or denied gets 502; of others those are left out", async () => {
    const { relay, dialler } = relayed();
    await using _ = relay;
    const { peer, run } = await relay.attach({ allow: ["*.example"], deny: ["9.9.9.3"] });
    for (const host of ["private.example", "b.example", "unknown.example", "broken.example"]) {
      const stream = await peer.connected("9.9.9.1", 80);
      stream.end(head(host));
      assert.match(await stream.text(), /^HTTP\/1\.1 502 /, host);
    }
    assert.deepEqual(dialler.dialled, []);
    assert.deepEqual(relay.recent(run), [
      "denied reserved private.example 10.0.0.1 80",
      "denied deny b.example 9.9.9.3 80",
      "failed dns unknown.example 9.9.9.1 80",
      "failed dns broken.example 9.9.9.1 80",
    ]);
    const stream = await peer.connected("9.9.9.1", 80);
    stream.end(head("mixed.example"));
    await stream.text();
    assert.deepEqual(dialler.dialled, ["9.9.9.4:80"]);
  });

  test("over TLS a name that is not listed gets alert 49, and one without an address 80", async () => {
    const { relay, dialler } = relayed();
    await using _ = relay;
    const { peer } = await relay.attach({ allow: ["private.example", "unknown.example"] });
    for (const [servername, alert] of [
      ["b.example", "ACCESS_DENIED"],
      ["private.example", "INTERNAL_ERROR"],
      ["unknown.example", "INTERNAL_ERROR"],
    ] as const) {
      const socket = connectTls({ socket: await peer.connected("9.9.9.1", 443), servername });
      const [error] = (await once(socket, "error")) as [NodeJS.ErrnoException];
      assert.equal(error.code, `ERR_SSL_TLSV1_ALERT_${alert}`, servername);
    }
    assert.deepEqual(dialler.dialled, []);
  });

  test("the head may come byte by byte, and what follows it at once is passed on", async () => {
    const { relay } = relayed();
    await using _ = relay;
    const { peer } = await relay.attach({ allow: ["a.example"] });
    const stream = await peer.connected("9.9.9.1", 80);
    const bytes = `${head("a.example")}${"x".repeat(100_000)}`;
    for (const byte of head("a.example")) stream.write(byte);
    stream.end("x".repeat(100_000));
    assert.equal(await stream.text(), bytes);
  });
});

describe("other ports of a listed domain", () => {
  test("an address that it has, resolved now or answered before", async () => {
    const { relay, dialler } = relayed();
    await using _ = relay;
    const { peer, run } = await relay.attach({ allow: ["a.example:22", "*.example:23"] });
    (await peer.connected("9.9.9.2", 22)).destroy();
    assert.equal(await peer.connect("9.9.9.3", 23), "denied: not listed");
    assert.deepEqual(await peer.addresses("b.example"), ["9.9.9.3"]);
    (await peer.connected("9.9.9.3", 23)).destroy();
    assert.deepEqual(dialler.dialled, ["9.9.9.2:22", "9.9.9.3:23"]);
    assert.deepEqual(relay.recent(run), [
      "allowed a.example 9.9.9.2 22",
      "denied not listed 9.9.9.3 23",
      "allowed b.example 9.9.9.3 23",
    ]);
  });

  test("of more names than may be asked at once or in a second are found, and a name is asked once", async () => {
    const names = Array.from({ length: 200 }, (_, index) => `n${index}.example`);
    const { relay, dialler } = relayed({ limits: { namesPerSec: 220, namesInFlightMax: 64 } });
    await using _ = relay;
    names.forEach((name, index) => {
      relay.resolver.zone[name] = [`9.9.8.${index}`];
    });
    const { peer, run } = await relay.attach({ allow: names.map((name) => `${name}:5432`) });
    const streams = await Promise.all([199, 150, 0, 80, 199].map((at) => peer.connected(`9.9.8.${at}`, 5_432)));
    for (const stream of streams) stream.destroy();
    assert.equal(relay.resolver.asked.length, new Set(relay.resolver.asked).size);
    assert.equal(dialler.dialled.length, 5);
    assert.equal(await peer.connect("9.9.7.1", 5_432), "denied: not listed");
    assert.equal(relay.recent(run).at(-1), "denied not listed 9.9.7.1 5432");
  });

  test("of more names than there are questions is denied by the limit, and found with the next ones", async (t) => {
    let nowMs = 1_000;
    t.mock.method(performance, "now", () => nowMs);
    const names = Array.from({ length: 40 }, (_, index) => `n${index}.example`);
    const { relay } = relayed({ limits: { namesPerSec: 25, namesInFlightMax: 64 } });
    await using _ = relay;
    for (const name of names) relay.resolver.zone[name] = ["9.9.8.1"];
    relay.resolver.zone["n39.example"] = ["9.9.8.39"];
    const { peer } = await relay.attach({ allow: names.map((name) => `${name}:5432`) });
    assert.equal(await peer.connect("9.9.8.39", 5_432), "denied: limit");
    assert.equal(await peer.connect("9.9.8.39", 5_432), "denied: limit");
    nowMs += 1_000;
    (await peer.connected("9.9.8.39", 5_432)).destroy();
    assert.deepEqual(relay.resolver.asked, names);
  });

  test("bytes without TLS are passed on; a server may speak first", async () => {
    const { relay, dialler } = relayed();
    await using _ = relay;
    dialler.greeting = "220 ready\r\n";
    const { peer } = await relay.attach({ allow: ["a.example:22"] });
    const stream = await peer.connected("9.9.9.1", 22);
    stream.end("hello");
    assert.equal(await stream.text(), "220 ready\r\nhello");
  });
});

describe("questions", () => {
  test("of a listed name are asked; addresses that are reserved are dropped", async () => {
    const { relay } = relayed();
    await using _ = relay;
    const { peer, run } = await relay.attach({ allow: ["*.example"] });
    assert.deepEqual(await peer.addresses("a.example"), ["9.9.9.1", "9.9.9.2"]);
    assert.deepEqual(await peer.addresses("MIXED.example"), ["9.9.9.4"]);
    assert.equal(await peer.addresses("private.example"), 3);
    assert.equal(await peer.addresses("unknown.example"), 3);
    assert.equal(await peer.addresses("broken.example"), 2);
    assert.deepEqual((await peer.resolve("a.example")).records[0]!.ttl, 30);
    assert.deepEqual(relay.recent(run), [
      "denied reserved private.example 10.0.0.1",
      "failed dns unknown.example",
      "failed dns broken.example",
    ]);
  });

  test("of a name whose addresses are all denied are NXDOMAIN, with that reason", async () => {
    const { relay } = relayed();
    await using _ = relay;
    const { peer, run } = await relay.attach({ egress: "public", deny: ["9.9.9.0/24"] });
    assert.equal(await peer.addresses("b.example"), 3);
    assert.deepEqual(relay.recent(run), ["denied deny b.example 9.9.9.3"]);
  });

  const types = [1, 2, 5, 6, 12, 15, 16, 28, 33, 64, 65, 255, 257, 65_535];
  test("of a name that is not listed are NXDOMAIN in every type, and not asked", async () => {
    const { relay } = relayed();
    await using _ = relay;
    const { peer, run } = await relay.attach({ allow: ["a.example:443", "1.2.3.4"] });
    for (const type of types) assert.equal((await peer.resolve("secret.b.example", type)).rcode, 3, `${type}`);
    assert.deepEqual(relay.resolver.asked, []);
    assert.deepEqual(relay.recent(run), [`denied not listed secret.b.example ×${types.length}`]);
  });

  test("under none are REFUSED", async () => {
    const { relay } = relayed();
    await using _ = relay;
    const { peer, run } = await relay.attach({ egress: "none", allow: ["a.example"] });
    for (const type of types) assert.equal((await peer.resolve("a.example", type)).rcode, 5, `${type}`);
    assert.deepEqual(relay.resolver.asked, []);
    assert.deepEqual(relay.recent(run), [`denied egress none a.example ×${types.length}`]);
  });

  test("of types that are never asked are empty; the others are asked", async () => {
    const { relay } = relayed();
    await using _ = relay;
    const { peer } = await relay.attach({ egress: "public" });
    for (const type of [28, 64, 65, 255, 0, 41, 65_535])
      assert.deepEqual(await peer.resolve("a.example", type), { rcode: 0, records: [] }, `${type}`);
    assert.deepEqual(relay.resolver.asked, []);
    for (const type of [2, 5, 6, 12, 15, 16, 33, 257]) await peer.resolve("a.example", type);
    const asked = ["NS", "CNAME", "SOA", "PTR", "MX", "TXT", "SRV", "CAA"].map((type) => `${type} a.example`);
    assert.deepEqual(relay.resolver.asked, asked);
  });

  test("of local and odd names are answered here, also under public", async () => {
    const { relay } = relayed({ reserved: ["5.6.7.0/24"] });
    const zones = [
      "1.0.0.10",
      "10",
      "168.192",
      "16.172",
      "a.1.0.0.10",
      "7.1.168.192",
      "9.1.0.0.10",
      "7.6.5",
      "8.7.6.5",
      "254.169",
    ];
    const loopback = `1${".0".repeat(31)}`;
    const ipv6 = ["1.0.d.f", "c.f", "0.8.e.f", "b.e.f", loopback].map((zone) => `${zone}.ip6.arpa`);
    const reverse = [...zones.map((zone) => `${zone}.in-addr.arpa`), ...ipv6];
    await using _ = relay;
    const { peer, run } = await relay.attach({ egress: "public" });
    assert.deepEqual(await peer.addresses("localhost"), ["127.0.0.1"]);
    assert.deepEqual(relay.recent(run), []);
    for (const name of ["router", "printer.local", "1.2.3.4", "host.capsule.internal", ...reverse])
      for (const type of name.endsWith("arpa") ? [2, 6, 12, 16] : [1])
        assert.equal((await peer.resolve(name, type)).rcode, 3, name);
    const failed = relay.recent(run).map((line) => line.replace(/ ×\d+$/, ""));
    const asked = ["router", "printer.local", "1.2.3.4", "host.capsule.internal", ...reverse];
    assert.deepEqual(
      failed,
      asked.map((name) => `failed dns ${name}`),
    );
    for (const name of ["a b.example", "a..example", `${"a".repeat(64)}.example`, "é.example", "a.example."])
      assert.equal((await peer.resolve(name)).rcode, 5, name);
    assert.equal((await peer.resolve("", 2)).rcode, 0);
    assert.deepEqual(relay.resolver.asked, []);
  });
});

describe("limits", () => {
  test("of connections of a capsule and of a team", async () => {
    const { relay } = relayed({ limits: { connectionsMax: 2, teamConnectionsMax: 3 } });
    await using _ = relay;
    const [one, two, other] = [
      await relay.attach({ egress: "public" }),
      await relay.attach({ egress: "public" }),
      await relay.attach({ egress: "public" }, "other"),
    ];
    const first = await one.peer.connected("9.9.9.9", 22);
    await one.peer.connected("9.9.9.9", 22);
    assert.equal(await one.peer.connect("9.9.9.9", 22), "denied: limit");
    await two.peer.connected("9.9.9.9", 22);
    assert.equal(await two.peer.connect("9.9.9.9", 22), "denied: limit");
    await other.peer.connected("9.9.9.9", 22);
    first.end();
    await first.text();
    await two.peer.connected("9.9.9.9", 22);
    assert.equal(relay.recent(one.run).at(-1), "denied limit 9.9.9.9 22");
    const last = await relay.attach({ egress: "public" });
    assert.equal(await last.peer.connect("9.9.9.9", 22), "denied: limit");
    relay.runs.take({ kind: "detach", run: one.run });
    await last.peer.connected("9.9.9.9", 22);
  });

  test("of connections at once, of names at once and in flight", async () => {
    const limits = { connectionsBurst: 2, connectionsPerSec: 0, namesPerSec: 5, namesInFlightMax: 2 };
    const { relay } = relayed({ limits });
    await using _ = relay;
    const { peer, run } = await relay.attach({ egress: "public" });
    for (const _of of [1, 2]) (await peer.connected("9.9.9.9", 22)).destroy();
    assert.equal(await peer.connect("9.9.9.9", 22), "denied: limit");
    const asked = await Promise.all([1, 2, 3, 4].map(() => peer.addresses("a.example")));
    assert.deepEqual(asked.map(String).sort(), ["2", "2", "9.9.9.1,9.9.9.2", "9.9.9.1,9.9.9.2"]);
    assert.equal(relay.recent(run).at(-1), "denied limit a.example ×2");
  });
});

describe("messages", () => {
  test("a new policy resets what it forbids, and new connections obey it", async () => {
    const { relay } = relayed();
    await using _ = relay;
    const { peer, run } = await relay.attach({ allow: ["a.example", "9.9.9.9", "b.example:22"] });
    const named = await peer.connected("9.9.9.1", 80);
    named.write(head("a.example"));
    const byAddress = await peer.connected("9.9.9.9", 22);
    const byName = await peer.connected("9.9.9.3", 22);
    const reading = await peer.connected("9.9.9.1", 443);
    relay.setPolicy(run, { allow: ["*.example", "9.9.9.9:22", "b.example:22"] });
    relay.setPolicy(run, { allow: ["b.example:22", "c.example:443"] });
    await waitFor("both apply", () => relay.sent.filter(({ kind }) => kind === "applied").length === 2);
    assert.deepEqual([await named.outcome(), await byAddress.outcome()], ["reset", "reset"]);
    for (const stream of [byName, reading]) assert.ok(!stream.isClosed);
    assert.equal(await peer.connect("9.9.9.9", 22), "denied: not listed");
    relay.setPolicy(run, { egress: "none", allow: ["b.example:22"] });
    assert.deepEqual([await byName.outcome(), await reading.outcome()], ["reset", "reset"]);
    assert.equal(relay.connectionsOpen(run), 0);
  });

  test("a new policy is compared with a few connections in a turn of the event loop, and applies when all are", async () => {
    const { relay, dialler } = relayed({ limits: { connectionsMax: 300, teamConnectionsMax: 300 } });
    await using _ = relay;
    const { peer, run } = await relay.attach({ egress: "public" });
    await Promise.all(Array.from({ length: 300 }, () => peer.connected("9.9.9.9", 22)));
    const deny = ["9.9.9.9", ...Array.from({ length: 511 }, (_, index) => `9.8.${index >> 8}.${index & 255}`)];
    const applied = () => relay.sent.some(({ kind }) => kind === "applied");
    relay.setPolicy(run, { egress: "public", deny });
    const inTurns = [dialler.ends.length];
    assert.equal(await peer.connect("9.9.9.9", 22), "denied: deny", "new connections obey it at once");
    while (!applied()) {
      const before = dialler.ends.length;
      await turn();
      inTurns.push(dialler.ends.length - before);
    }
    assert.deepEqual([dialler.ends.length, relay.connectionsOpen(run)], [300, 0]);
    assert.ok(
      inTurns.every((count) => count <= 32),
      `${inTurns}`,
    );
  });

  test("a change of the operator's rules resets what it forbids", async () => {
    const { relay } = relayed();
    await using _ = relay;
    const { peer } = await relay.attach({ egress: "public" });
    const stream = await peer.connected("9.9.9.9", 22);
    relay.runs.take({ kind: "settings", settings: { ...relay.settings, reserved: ["9.9.9.0/24"] } });
    assert.equal(await stream.outcome(), "reset");
    assert.equal(await peer.connect("9.9.9.9", 22), "denied: reserved");
  });

  test("detach ends the port's socket and resets outside; nothing of the capsule is left", async () => {
    const { relay, dialler } = relayed();
    await using _ = relay;
    const { peer, run } = await relay.attach({ egress: "public" });
    await peer.connected("9.9.9.9", 22);
    const closed = new Promise((resolve) => peer.socket.once("end", resolve));
    relay.runs.take({ kind: "detach", run });
    await closed;
    assert.deepEqual(dialler.ends, ["reset"]);
    assert.deepEqual(relay.recent(run), []);
    assert.ok(!relay.sent.some(({ kind }) => kind === "lost"));
  });

  test("a port whose socket ends is lost, and its connections are reset", async () => {
    const { relay, dialler } = relayed();
    await using _ = relay;
    const { peer, run } = await relay.attach({ egress: "public" });
    await peer.connected("9.9.9.9", 22);
    peer.socket.destroy();
    assert.equal(await relay.lost(run), "its socket has ended");
    assert.deepEqual(dialler.ends, ["reset"]);
  });

  test("the last 100 different decisions, the one that comes again last", async () => {
    const { relay } = relayed();
    await using _ = relay;
    const { peer, run } = await relay.attach({ egress: "none" });
    for (let index = 0; index < 102; index++) await peer.connect(`9.9.9.${index}`, 80);
    await peer.connect("9.9.9.50", 80);
    const recent = relay.recent(run);
    assert.equal(recent.length, 100);
    assert.equal(recent[0], "denied egress none 9.9.9.2 80");
    assert.equal(recent.at(-1), "denied egress none 9.9.9.50 80 ×2");
  });

  test("counts are told once a second while something changes, and those of a capsule that goes at once", async () => {
    const { relay } = relayed();
    await using _ = relay;
    const { peer, run } = await relay.attach({ egress: "public" });
    const stream = await peer.connected("9.9.9.9", 22);
    stream.end("hello");
    await stream.text();
    await peer.connect("10.0.0.1", 22);
    await peer.resolve("unknown.example");
    relay.runs.take({ kind: "detach", run });
    const told = relay.sent.filter((each) => each.kind === "counts");
    const sum = (read: (counts: { [name: string]: number }) => number) =>
      told.flatMap(({ runs }) => runs).reduce((total, [id, added]) => total + (id === run ? read({ ...added }) : 0), 0);
    assert.deepEqual(
      ["connections", "denied", "failed", "bytesOut", "bytesIn"].map((name) => sum((counts) => counts[name]!)),
      [1, 1, 0, 5, 5],
    );
    assert.equal(
      told.reduce((total, { names }) => total + (names.nxdomain ?? 0), 0),
      1,
    );
  });
});
