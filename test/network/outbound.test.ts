/** Connections that real capsules open, by their policies: from a PUT to the deaths of relay and server. */
import assert from "node:assert/strict";
import { once } from "node:events";
import net, { type AddressInfo, type Socket } from "node:net";
import { DatabaseSync } from "node:sqlite";
import { after, before, describe, test } from "node:test";
import { databasePath } from "../../src/db/database.ts";
import type { NetworkDecision } from "../../src/wire/network.ts";
import { Client, type TestCapsule } from "../client.ts";
import { Server } from "../server.ts";
import { waitFor } from "../wait-for.ts";
import { relayOf } from "./relay-process.ts";

const timeout = 600_000;
const hostName = "host.capsule.internal";
const unreachable = "113"; // EHOSTUNREACH
const wasReset = "104"; // ECONNRESET

/** Echoes, on a port of this machine. */
class Echo implements AsyncDisposable {
  readonly sockets = new Set<Socket>();
  readonly #server = net.createServer((socket) => {
    this.sockets.add(socket);
    socket.on("error", () => {});
    socket.on("close", () => this.sockets.delete(socket));
    socket.pipe(socket);
  });

  async listen(): Promise<void> {
    this.#server.listen(0, "127.0.0.1");
    await once(this.#server, "listening");
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.sockets) socket.destroy();
    this.#server.close();
  }
}

/** Prints what the echo sent back, or the number of the error. */
const dial = `
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 30) as connection:
        connection.sendall(b"hello")
        print(connection.recv(5).decode())
except socket.gaierror as error: print("no name")
except OSError as error: print(error.errno)`;

/** Holds a connection open, and prints how it ended. */
const hold = `
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 30) as connection:
    connection.settimeout(None)
    connection.sendall(b"hello")
    print(connection.recv(5).decode(), flush=True)
    try: print("end" if connection.recv(1) == b"" else "bytes", flush=True)
    except OSError as error: print(error.errno, flush=True)`;

describe("outbound connections", () => {
  const echo = new Echo();
  let server: Server;
  let client: Client;
  let opened: object;

  before(
    async () => {
      await echo.listen();
      opened = { egress: "allowlist", allow: [`${hostName}:${echo.port}`] };
      const env = { CAPSULE_EGRESS_GRANT: `host:${echo.port}`, CAPSULE_POOL: "off" };
      server = await Server.start({ env, errors: [/the relay has ended/] });
      client = await Client.connect(server.url, server.apiKey);
    },
    { timeout },
  );
  after(async () => {
    client?.close();
    await server?.[Symbol.asyncDispose]();
    await echo[Symbol.asyncDispose]();
  });

  const networkOf = async (capsule: TestCapsule) => (await client.expect(200, "GET", `${capsule.path}/network`)).json;
  /** Port and count of what was reached. */
  const allowedIn = (recent: NetworkDecision[]) =>
    recent.filter(({ verdict }) => verdict === "allowed").map(({ port, count }) => [port, count]);
  /** Resolves when this is shown of what was reached: without an answer of the relay in a second its last decisions are not. */
  const shows = (capsule: TestCapsule, isCount: (count: number) => boolean) =>
    waitFor("what it has reached is shown", async () => {
      const [[port, count = 0] = [], ...others] = allowedIn((await networkOf(capsule)).recent);
      return port === echo.port && others.length === 0 && isCount(count);
    });
  const setNetwork = async (capsule: TestCapsule, json: object) =>
    (await client.expect(200, "PUT", `${capsule.path}/network`, { json })).json;
  const dialled = async (capsule: TestCapsule, host = hostName, port = echo.port) =>
    (await capsule.run("python3", ["-c", dial, host, String(port)])).stdout.trim();

  /** Begins a command that holds a connection open; the lines that it has printed. */
  async function held(capsule: TestCapsule): Promise<() => Promise<string[]>> {
    const command = { cmd: "python3", args: ["-c", hold, hostName, String(echo.port)], background: true, tag: "hold" };
    assert.equal((await capsule.exec(command)).status, 202);
    const lines = async () => {
      const { bytes } = await client.expect(200, "GET", `${capsule.path}/processes/hold/logs`);
      return bytes
        .toString()
        .split("\n")
        .filter((line) => line !== "");
    };
    await waitFor("the connection stands", async () => (await lines()).includes("hello"));
    return lines;
  }

  /** Resolves with how it ended. */
  const endOf = (lines: () => Promise<string[]>) => waitFor("the connection ends", async () => (await lines())[1]);

  test("are denied under none, opened by a PUT, and reset by the next one", { timeout }, async () => {
    await using capsule = await client.capsule({ network: { egress: "none" } });
    assert.equal(await dialled(capsule, "192.0.0.1"), unreachable);
    assert.equal(await dialled(capsule), "no name");
    const state = await setNetwork(capsule, opened);
    assert.deepEqual([state.effective.egress, state.unsupported], ["allowlist", false]);
    assert.equal(await dialled(capsule), "hello");
    assert.equal(await dialled(capsule, "192.0.2.1", 80), unreachable, "nothing else is open");
    const lines = await held(capsule);
    await waitFor("it is open", async () => (await networkOf(capsule)).counters.connections_open === 1);
    await setNetwork(capsule, { egress: "none" });
    assert.equal(await endOf(lines), wasReset);
    await waitFor("the echo has no connection", () => echo.sockets.size === 0);
    assert.equal(await dialled(capsule, "192.0.0.1"), unreachable);
    const { counters } = await waitFor("it is counted", async () => {
      const network = await networkOf(capsule);
      const { denied_total: denied, connections_total: connections, bytes_out: out, bytes_in: back } = network.counters;
      const { connections_open: open } = network.counters; // still 1 in the last answer of a relay that is slow to give another
      return denied >= 3 && connections === 2 && open === 0 && out + back >= 20 ? network : undefined;
    });
    assert.deepEqual([counters.connections_open, counters.bytes_out, counters.bytes_in], [0, 10, 10]);
    await shows(capsule, (count) => count === 2);
  });

  test("are reset by a pause; after the resume new ones are opened", { timeout }, async () => {
    await using capsule = await client.capsule({ network: opened });
    const lines = await held(capsule);
    await shows(capsule, (count) => count === 1);
    await capsule.pause();
    await waitFor("the echo has no connection", () => echo.sockets.size === 0);
    const { unsupported, recent } = await networkOf(capsule);
    assert.deepEqual([unsupported, recent], [false, []]);
    await capsule.resume();
    assert.deepEqual(allowedIn((await networkOf(capsule)).recent), []);
    assert.equal(await endOf(lines), wasReset);
    assert.equal(await dialled(capsule), "hello");
    await setNetwork(capsule, { egress: "none" });
    await capsule.pause();
    await setNetwork(capsule, opened);
    await capsule.resume();
    assert.equal(await dialled(capsule), "hello", "by the policy that it got while it was paused");
  });

  test("are reset when the relay is killed, and then opened again", { timeout }, async () => {
    await using capsule = await client.capsule({ network: opened });
    const lines = await held(capsule);
    await shows(capsule, (count) => count === 1);
    process.kill(await waitFor("there is a relay", () => relayOf(server.pid!)), "SIGKILL"); // its jail ends with it
    assert.equal(await endOf(lines), wasReset);
    await waitFor(
      "the relay is up",
      async () => (await client.expect(200, "GET", "/healthz")).json.network.relay === "up",
    );
    assert.equal(await waitFor("it connects", async () => (await dialled(capsule)) === "hello" && "hello"), "hello");
    await shows(capsule, (count) => count >= 2); // with that of before
  });

  test("are reset when the server ends, and opened under its next life, with counters and decisions of before", {
    timeout,
  }, async () => {
    const capsule = await client.capsule({ network: opened });
    assert.equal(await dialled(capsule), "hello");
    const lines = await held(capsule);
    for (const [index, signal] of (["SIGTERM", "SIGKILL"] as const).entries()) {
      const { counters: before } = await waitFor("it is counted", async () => {
        const network = await networkOf(capsule);
        return network.counters.connections_total >= 2 + index ? network : undefined;
      });
      const stored = () => storedCount(server.dataDir, capsule.id);
      if (signal === "SIGKILL") await waitFor("the decisions are stored", () => stored() >= 3);
      await server.kill(signal);
      await waitFor("the echo has no connection", () => echo.sockets.size === 0);
      await server.start();
      await server.adopted();
      client.close();
      client = await Client.connect(server.url, server.apiKey);
      const again = client.known(capsule.id);
      assert.equal(await waitFor("it connects", async () => (await dialled(again)) === "hello" && "hello"), "hello");
      await shows(again, (count) => count >= 3 + index); // with those of before
      const { counters } = await networkOf(again);
      // A server that is killed loses what it has counted in its last second.
      if (signal === "SIGTERM") assert.ok(counters.connections_total >= before.connections_total);
      else assert.ok(counters.connections_total >= 2);
    }
    assert.equal(await endOf(lines), wasReset);
    await client.known(capsule.id).destroy();
  });

  test("of a clone are its own, and a template keeps no policy", { timeout }, async () => {
    const capsule = await client.capsule({ network: opened });
    assert.equal(await dialled(capsule), "hello");
    const made = { sandbox_id: capsule.id, name: "reached" };
    await client.expect(201, "POST", "/v1/snapshots", { json: made });
    await using closed = await client.capsule({ template: "reached", network: { egress: "none" } });
    await using open = await client.capsule({ template: "reached", network: opened });
    assert.equal(await dialled(open), "hello");
    assert.equal(await dialled(closed, "192.0.0.1"), unreachable);
  });
});

/** How often a capsule has reached what it has reached, as its server's database has it. */
function storedCount(dataDir: string, id: string): number {
  const database = new DatabaseSync(databasePath(dataDir), { readOnly: true });
  const row = database.prepare("SELECT decisions FROM network_decisions WHERE capsule_id = ?").get(id);
  database.close();
  const decisions = JSON.parse(String(row?.decisions ?? "[]")) as NetworkDecision[];
  return decisions.reduce((sum, { verdict, count }) => sum + (verdict === "allowed" ? count : 0), 0);
}
