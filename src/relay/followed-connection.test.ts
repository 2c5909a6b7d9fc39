/** Connections to port 80 of a capsule with rules that go their way as bytes: what arrives outside. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { EchoDialler } from "../../test/relay/echo-dialler.ts";
import type { PeerStream } from "../../test/relay/gateway-peer.ts";
import { Relayed } from "../../test/relay/relayed.ts";
import { waitFor, within } from "../../test/wait-for.ts";
import type { RelayPolicy } from "./messages.ts";

const zone = { "api.example": ["9.9.9.1"], "other.example": ["9.9.9.3"] };
const inject = [{ host: "api.example", headers: { "X-Key": "secret" } }];
const ruled: Partial<RelayPolicy> = { egress: "public", inject };
const get = (host: string, more = "") => `GET / HTTP/1.1\r\nHost: ${host}\r\n${more}\r\n`;

/** `greeting`: sent by each server before all else. */
async function world(policy = ruled, greeting = "") {
  const dialler = Object.assign(new EchoDialler(), { greeting });
  const relay = new Relayed(zone, {}, dialler);
  const { peer, run } = await relay.attach(policy);
  const stream = await peer.connected("9.9.9.3", 80);
  const received = { text: "" };
  stream.on("data", (chunk: Buffer) => {
    received.text += chunk.toString("latin1");
  });
  /** Writes it; resolves when it has come back. */
  const echoed = async (text: string) => {
    const before = received.text;
    stream.write(Buffer.from(text, "latin1"));
    await waitFor(`${text.length} bytes have come back`, () => received.text === before + text);
  };
  return {
    dialler,
    relay,
    peer,
    run,
    stream,
    received,
    echoed,
    [Symbol.asyncDispose]: () => relay[Symbol.asyncDispose](),
  };
}

/** Resolves with how it ended. */
async function endOf(stream: PeerStream): Promise<string> {
  const ended = new Promise<void>((resolve) => {
    stream.once("end", resolve);
    stream.once("close", resolve);
  });
  await within("the stream's end", ended);
  return stream.errored === null ? "ended" : "reset";
}

describe("a request to a rule's host on a connection to another one", () => {
  test("ends it and does not go out; what was sent before is answered", async () => {
    await using at = await world();
    await at.echoed(get("other.example"));
    const ended = endOf(at.stream);
    at.stream.write(get("other.example", "X: 2\r\n") + get("api.example"));
    assert.equal(await ended, "ended");
    assert.equal(at.received.text, get("other.example") + get("other.example", "X: 2\r\n"));
    assert.deepEqual(at.dialler.dialled, ["9.9.9.3:80"]);
    assert.deepEqual(at.relay.recent(at.run), ["allowed 9.9.9.3 80"]);
    at.stream.write("more, which is dropped");
    at.stream.end();
    await waitFor("it is released", () => at.relay.connectionsOpen(at.run) === 0);
    assert.deepEqual(at.dialler.ends, ["end"]);
  });

  test("in an odd form ends it too, and is told", async () => {
    await using at = await world();
    await at.echoed(get("other.example"));
    const ended = endOf(at.stream);
    at.stream.write(get("other.example", "Host: api.example\r\n"));
    assert.equal(await ended, "ended");
    assert.equal(at.received.text, get("other.example"));
    assert.deepEqual(at.relay.recent(at.run), ["allowed 9.9.9.3 80", "denied not listed 9.9.9.3 80"]);
  });

  test("after 10 seconds of silence does not go out", async (t) => {
    t.mock.timers.enable({ apis: ["setTimeout"] });
    await using at = await world();
    t.mock.timers.tick(9_999);
    assert.deepEqual(at.dialler.dialled, [], "the first bytes are waited for");
    t.mock.timers.tick(1);
    assert.deepEqual(at.dialler.dialled, ["9.9.9.3:80"], "a server that speaks first may do so");
    t.mock.timers.reset();
    const ended = endOf(at.stream);
    at.stream.write(get("api.example"));
    assert.equal(await ended, "ended");
    assert.equal(at.received.text, "");
  });

  test("is not answered for ever: a minute later the connection is reset", async (t) => {
    await using at = await world();
    await at.echoed(get("other.example"));
    t.mock.timers.enable({ apis: ["setTimeout"] });
    at.stream.write(get("api.example"));
    await new Promise<void>((resolve) => at.stream.once("end", resolve));
    assert.equal(at.relay.connectionsOpen(at.run), 1, "the program has not closed it");
    t.mock.timers.tick(60_000);
    await new Promise<void>((resolve) => at.stream.once("close", resolve));
    assert.equal(at.relay.connectionsOpen(at.run), 0);
  });

  test("does not go out on a connection that was made before there was a rule", async () => {
    await using at = await world({ egress: "public" });
    await at.echoed(get("api.example"));
    const tls = await at.peer.connected("9.9.9.3", 443);
    at.relay.setPolicy(at.run, ruled);
    assert.equal(await endOf(at.stream), "reset");
    assert.equal(at.relay.connectionsOpen(at.run), 1, "other ports stay");
    at.relay.setPolicy(at.run, { ...ruled, allow: ["9.9.9.9"] });
    tls.end("bye");
    assert.equal(await tls.text(), "bye");
  });
});

const upgrade = "Connection: Upgrade\r\nUpgrade: raw\r\n";
const switching = `HTTP/1.1 101 Switching Protocols\r\n${upgrade}\r\n`;

describe("a server that switches to another protocol", () => {
  /** Sends this; resolves when it and the answer, which comes first, have come back. */
  async function answered(answer: string, request: string) {
    const at = await world(ruled, answer);
    at.stream.write(request);
    await waitFor("the answer", () => at.received.text === answer + request);
    return at;
  }

  test("gets all that follows at once, whatever it looks like", async () => {
    await using at = await answered(switching, get("other.example", upgrade));
    for (const text of ["G", "ET / HTTP/1.1\r\n", get("api.example"), "\r\n"]) await at.echoed(text);
  });

  const others: [what: string, answer: string, request: string][] = [
    ["after no request for one", switching, get("other.example")],
    ["after a request for HTTP/2", switching, get("other.example", upgrade.replace("raw", "h2c"))],
    ["after two requests", switching, get("other.example", upgrade) + get("other.example", upgrade)],
    ["in a later answer", `HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n${switching}`, get("other.example", upgrade)],
    ["to HTTP/2", switching.replace("raw", "h2c"), get("other.example", upgrade)],
  ];
  for (const [what, answer, request] of others) {
    test(`${what} gets no request to a rule's host`, async () => {
      await using at = await answered(answer, request);
      const ended = endOf(at.stream);
      at.stream.write(get("api.example"));
      assert.equal(await ended, "ended");
      assert.equal(at.received.text, answer + request);
    });
  }

  test("gets none that began before the program could know of it", async () => {
    await using at = await world(ruled, switching);
    const request = get("other.example", upgrade);
    at.stream.write(`${request}GET / HT`);
    await waitFor("the answer", () => at.received.text === switching + request);
    const ended = endOf(at.stream);
    at.stream.write(get("api.example").slice("GET / HT".length));
    assert.equal(await ended, "ended");
    assert.equal(at.received.text, switching + request);
  });

  test("before there was a request gets none to a rule's host", async (t) => {
    t.mock.timers.enable({ apis: ["setTimeout"] });
    await using at = await world(ruled, switching);
    t.mock.timers.tick(10_000); // a server that speaks first
    t.mock.timers.reset();
    await waitFor("it is heard", () => at.received.text === switching);
    await at.echoed(get("other.example", upgrade));
    const ended = endOf(at.stream);
    at.stream.write(get("api.example"));
    assert.equal(await ended, "ended");
    assert.equal(at.received.text, switching + get("other.example", upgrade));
  });
});

describe("everything else goes on", () => {
  test("a WebSocket, and a body that is longer than any window", async () => {
    await using at = await world();
    await at.echoed(`POST / HTTP/1.1\r\nHost: other.example\r\nContent-Length: 300000\r\n\r\n${"x".repeat(300_000)}`);
    await at.echoed(get("other.example", "Connection: Upgrade\r\nUpgrade: websocket\r\n"));
    await at.echoed(`\x81\x85mask${get("api.example")}`);
  });

  test("heads that come in pieces, of which a window has no room for two", async () => {
    await using at = await world();
    for (const size of [7_000, 9_000, 12_000, 15_000, 16_000]) {
      const head = get("other.example", `X: ${"x".repeat(size)}\r\n`);
      for (let from = 0; from < head.length; from += 1_000) at.stream.write(head.slice(from, from + 1_000));
      await waitFor(`${size} bytes`, () => at.received.text.endsWith(head));
    }
  });
});
