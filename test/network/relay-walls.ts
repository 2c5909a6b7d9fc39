/**
 * Walls of the relay on a real network: each is shown by what a gateway peer sees, and by what arrives at the internet's listeners. It
 * runs as root of a network namespace (relay.test.ts).
 */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { createServer, type Server } from "node:net";
import { after, before, describe, test } from "node:test";
import { connect } from "node:tls";
import { loadConfig } from "../../src/config.ts";
import { Jail } from "../../src/vmm/jail/jail.ts";
import type { GatewayPeer, PeerStream } from "../relay/gateway-peer.ts";
import { waitFor } from "../wait-for.ts";
import { Internet, unroutedAddress, world } from "./internet.ts";
import { JailedRelay } from "./jailed-relay.ts";

/** In a user namespace of one user the jail has no other user to switch to: it is that of a service without root. */
if (process.argv.includes("rootless")) process.geteuid = () => 1_000;

let internet: Internet;
let jail: Jail;
let relay: JailedRelay;
const hostServers: Server[] = [];
const onHost: string[] = [];

before(async () => {
  internet = await Internet.open();
  jail = await Jail.open({ uids: loadConfig({}).jailUids });
  const settings = {
    resolvers: [world.dns],
    grants: ["host:11434", `${world.printer}:9100`],
    reserved: ["9.9.9.128/25"],
  };
  relay = await JailedRelay.start(jail, settings);
  for (const [port, address] of [
    [8_080, "0.0.0.0"],
    [11_434, "127.0.0.1"],
    [80, "0.0.0.0"],
  ] as const) {
    const server = createServer((socket) => {
      onHost.push(`${socket.localAddress}:${port}`);
      socket.end("host");
    });
    hostServers.push(server);
    await once(server.listen(port, address), "listening");
  }
});
after(async () => {
  for (const server of hostServers) server.close();
  await relay?.[Symbol.asyncDispose]();
  await internet?.[Symbol.asyncDispose]();
});

/** Everything that has arrived anywhere since the last call. */
async function arrivals() {
  const { connections, questions } = await internet.arrived();
  return { connections: [...connections, ...onHost.splice(0)], questions };
}

async function get(peer: GatewayPeer, address: string, host: string, port = 80): Promise<string> {
  const stream = await peer.connected(address, port);
  stream.end(`GET / HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`);
  return await stream.text();
}

/** The body that the server sends over TLS, or the client's error. */
async function getOverTls(stream: PeerStream, servername: string | undefined): Promise<string> {
  const named = servername === undefined ? { checkServerIdentity: () => undefined } : { servername };
  const socket = connect({ socket: stream, ca: internet.certificate, ...named });
  try {
    await once(socket, "secureConnect");
    socket.write(`GET / HTTP/1.1\r\nHost: ${servername}\r\n\r\n`);
    let text = "";
    socket.on("data", (chunk: Buffer) => {
      text += chunk;
    });
    await once(socket, "end");
    return text.slice(text.indexOf("{"));
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? String(error);
  }
}

const nothing = { connections: [], questions: [] };

describe("reserved ranges, under public", () => {
  const addresses: [address: string, port: number][] = [
    [world.printer, 9_100],
    [world.metadata, 80],
    ["127.0.0.1", 8_080],
    ["127.0.0.1", 11_434],
    ["127.1.2.3", 8_080],
    [world.machine, 8_080],
    ["0.0.0.0", 8_080],
    ["192.0.0.1", 11_434],
    [world.router, 25],
    [world.a, 25],
    ["9.9.9.200", 80],
    ["255.255.255.255", 80],
  ];
  test("no address of them is dialled", async () => {
    const { peer } = await relay.attach({ egress: "public" });
    for (const [address, port] of addresses)
      assert.equal(await peer.connect(address, port), "denied: reserved", `${address}:${port}`);
    assert.deepEqual(await arrivals(), nothing);
  });

  test("an address that this machine gets later is shut too, for as long as it has it", async () => {
    const { peer } = await relay.attach({ egress: "public" });
    const later = "7.6.5.4";
    const change = (how: "add" | "del") => execFileSync("ip", ["address", how, `${later}/32`, "dev", "lo"]);
    const closedPort = 8_081;
    change("add");
    await waitFor("it is shut", async () => (await peer.connect(later, closedPort)) === "denied: reserved");
    assert.equal(await peer.connect(later, 8_080), "denied: reserved");
    change("del");
    execFileSync("ip", ["route", "add", "unreachable", `${later}/32`]);
    await waitFor("it is open", async () => (await peer.connect(later, closedPort)) === "unreachable: unreachable");
    assert.deepEqual(await arrivals(), nothing);
  });

  test("no name leads to them: by its address, an alias, or a number", async () => {
    const { peer } = await relay.attach({ egress: "public" });
    for (const name of ["private", "alias", "loopback", "machine", "metadata"])
      assert.equal(await peer.addresses(`${name}.example`), 3, name);
    assert.deepEqual(await peer.addresses("mixed.example"), [world.a]);
    assert.deepEqual(await peer.addresses("good-alias.example"), [world.a]);
    await arrivals();
    for (const name of ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "localhost.localdomain.local"])
      assert.equal(await peer.addresses(name), 3, name);
    assert.deepEqual(await arrivals(), nothing);
  });

  test("under a list, a listed name leads to none of them, now or when it is resolved again", async () => {
    const { peer } = await relay.attach({ allow: ["*.example"] });
    assert.deepEqual(await peer.addresses("rebind.example"), [world.a]);
    for (const name of ["rebind", "private", "alias", "loopback", "machine", "metadata"])
      assert.match(await get(peer, world.a, `${name}.example`), /^HTTP\/1\.1 502 /, name);
    assert.deepEqual((await arrivals()).connections, []);
  });

  test("a destination that is granted is reached where allow names it, and nowhere else", async () => {
    const allow = ["host.capsule.internal:11434", `${world.printer}:9100`];
    const { peer } = await relay.attach({ egress: "public", allow });
    assert.equal(await (await peer.connected("192.0.0.1", 11_434)).text(), "host");
    assert.equal(await (await peer.connected(world.printer, 9_100)).text(), "printer\r\n");
    assert.deepEqual((await arrivals()).connections, [`${world.printer}:9100`, "127.0.0.1:11434"]);
    assert.equal(await peer.connect(world.printer, 80), "denied: reserved");
    assert.equal(await peer.connect("192.0.0.1", 8_080), "denied: reserved");
    assert.deepEqual(await arrivals(), nothing);
  });
});

describe("names, under a list", () => {
  test("a listed name is reached by HTTP and TLS at its own address, wherever the guest connects to", async () => {
    const { peer } = await relay.attach({ allow: ["a.example", "b.example:8443"] });
    for (const address of [world.a, world.b, "1.2.3.4"]) {
      assert.ok((await get(peer, address, "A.example")).includes(`"local":"${world.a}"`));
      const body = await getOverTls(await peer.connected(address, 443), "a.example");
      assert.deepEqual(JSON.parse(body), { local: world.a, host: "a.example", name: "a.example" });
    }
    const connections = [80, 443, 80, 443, 80, 443].map((port) => `${world.a}:${port}`);
    assert.deepEqual((await arrivals()).connections, connections);
    const body = await getOverTls(await peer.connected(world.b, 8_443), "b.example");
    assert.equal(JSON.parse(body).name, "b.example");
    await arrivals();
  });

  test("another name, or none, is refused in the program's own protocol, and nothing arrives", async () => {
    const { peer } = await relay.attach({ allow: ["a.example", "b.example:8443"] });
    for (const servername of ["b.example", "x.a.example", undefined])
      assert.equal(
        await getOverTls(await peer.connected(world.a, 443), servername),
        "ERR_SSL_TLSV1_ALERT_ACCESS_DENIED",
        servername,
      );
    assert.match(await get(peer, world.a, "b.example"), /^HTTP\/1\.1 403 /);
    assert.deepEqual(await arrivals(), nothing);
    const denied = "ERR_SSL_TLSV1_ALERT_ACCESS_DENIED";
    assert.equal(await getOverTls(await peer.connected(world.b, 8_443), "c.example"), denied);
    assert.equal(await peer.connect(world.a, 8_443), "denied: not listed");
    assert.equal(await peer.connect(world.a, 7), "denied: not listed");
    const { connections } = await arrivals();
    assert.deepEqual(connections, [`${world.b}:8443`], "the listed name's server, which got no byte");
  });

  test("a question of a name that is not listed arrives nowhere, in any type", async () => {
    const { peer } = await relay.attach({ allow: ["a.example"] });
    for (const type of [1, 2, 5, 6, 12, 15, 16, 28, 33, 65, 257]) {
      assert.equal((await peer.resolve("secret.data.b.example", type)).rcode, 3, `${type}`);
      assert.ok([0, 3].includes((await peer.resolve("a.example", type)).rcode));
    }
    const { questions } = await arrivals();
    assert.deepEqual(new Set(questions.map((question) => question.split(" ")[1])), new Set(["a.example"]));
    assert.ok(!questions.some((question) => /^(?:AAAA|65) /.test(question)), `${questions}`);
  });

  test("none reaches nothing", async () => {
    const { peer } = await relay.attach({ egress: "none", allow: ["a.example", world.a] });
    assert.equal(await peer.connect(world.a, 80), "denied: egress none");
    assert.equal(await peer.addresses("a.example"), 5);
    assert.deepEqual(await arrivals(), nothing);
  });
});

describe("a connection", () => {
  test("says refused and unreachable as they are", async () => {
    const { peer } = await relay.attach({ egress: "public" });
    assert.equal(await peer.connect(world.a, 11), "refused: refused");
    assert.equal(await peer.connect(unroutedAddress, 80), "unreachable: unreachable");
  });

  test("is byte-exact, 200 at a time, and keeps half-close", async () => {
    const { peer } = await relay.attach({ egress: "public" });
    const sent = Array.from({ length: 200 }, (_, index) => randomBytes(index * 500));
    const got = await Promise.all(
      sent.map(async (bytes) => {
        const stream = await peer.connected(world.a, 7);
        stream.end(bytes);
        const chunks: Buffer[] = [];
        for await (const chunk of stream) chunks.push(chunk as Buffer);
        return Buffer.concat(chunks);
      }),
    );
    for (const [index, bytes] of got.entries()) assert.ok(bytes.equals(sent[index]!), `${index}`);
    await arrivals();
  });

  test("keeps RST both ways", async () => {
    const { peer } = await relay.attach({ egress: "public" });
    const byServer = await peer.connected(world.a, 9);
    byServer.write("x");
    assert.equal(await byServer.outcome(), "reset");
    await internet.arrived();
    const byGuest = await peer.connected(world.a, 10);
    await waitFor("the connection stands", async () => (await internet.arrived()).connections.length > 0);
    byGuest.destroy(new Error("reset"));
    await waitFor("the server has seen it", async () => (await internet.arrived()).resets > 0);
  });

  test("is reset by a policy that forbids it, of a hundred that are open", async () => {
    const { peer, run } = await relay.attach({ egress: "public" });
    const streams = await Promise.all(Array.from({ length: 100 }, () => peer.connected(world.a, 10)));
    await relay.setPolicy(run, { allow: [`${world.b}`] });
    for (const stream of streams) assert.equal(await stream.outcome(), "reset");
    assert.equal(await peer.connect(world.a, 10), "denied: not listed");
    await arrivals();
  });
});

test("while the relay is dead nothing opens, and its connections are reset", async () => {
  const { peer } = await relay.attach({ egress: "public" });
  await peer.connected(world.a, 10);
  await arrivals();
  const ended = [once(peer.socket, "end"), once(relay.child, "exit")];
  relay.child.kill("SIGKILL");
  await Promise.all(ended);
  peer.open(Buffer.alloc(0));
  assert.deepEqual(await arrivals(), nothing);
});
