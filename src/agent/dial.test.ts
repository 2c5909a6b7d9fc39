/** DIAL and PORTS of the real agent, to servers of this machine that the tests hold open. */
import assert from "node:assert/strict";
import { once } from "node:events";
import net, { type AddressInfo, type Server, type Socket } from "node:net";
import type { Duplex } from "node:stream";
import { after, before, describe, it } from "node:test";
import { AgentProcess } from "../../test/agent-process.ts";
import { waitFor } from "../../test/wait-for.ts";
import type { Agent } from "./agent.ts";

let guest: AgentProcess;
let agent: Agent;

before(async () => {
  guest = await AgentProcess.start();
  agent = await guest.connect();
  await guest.wake(agent);
});
after(() => guest[Symbol.asyncDispose]());

/** A server that stays until the end of its test. */
async function serving(
  handle: (socket: Socket) => void,
  host = "127.0.0.1",
): Promise<AsyncDisposable & { port: number; server: Server }> {
  const sockets = new Set<Socket>();
  const server = net.createServer({ allowHalfOpen: true }, (socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    handle(socket);
  });
  await once(server.listen(0, host), "listening");
  return {
    server,
    port: (server.address() as AddressInfo).port,
    [Symbol.asyncDispose]: async () => {
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

async function all(connection: Duplex): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of connection) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks);
}

const bytesOf = (length: number) => Buffer.from(Array.from({ length }, (_, at) => (at * 7 + (at >> 8)) % 251));

describe("DIAL", () => {
  it("passes on bytes both ways, with the end of each way", async () => {
    const received: Buffer[] = [];
    await using echo = await serving((socket) => {
      socket.on("data", (chunk) => received.push(chunk));
      socket.on("end", () => socket.end(Buffer.concat(received)));
    });
    const connection = await agent.dial(echo.port);
    const bytes = bytesOf(2_000_000);
    connection.end(bytes);
    assert.ok((await all(connection)).equals(bytes));
  });

  it("delivers what a server sends before its end, and what it receives after it", async () => {
    let received = "";
    let isOver = false;
    await using early = await serving((socket) => {
      socket.on("data", (chunk) => {
        received += chunk;
      });
      socket.on("end", () => {
        isOver = true;
      });
      socket.end("hello");
    });
    const connection = await agent.dial(early.port);
    assert.equal((await all(connection)).toString(), "hello");
    connection.write("still ");
    connection.end("heard");
    await waitFor("the server has all", () => isOver);
    assert.equal(received, "still heard");
  });

  it("reads a server no faster than its client", async () => {
    let sent = 0;
    const chunk = bytesOf(65_536);
    await using flood = await serving((socket) => {
      const more = () => {
        while (!socket.destroyed && socket.write(chunk)) sent += chunk.length;
        sent += chunk.length;
      };
      socket.on("drain", more);
      more();
    });
    const connection = await agent.dial(flood.port);
    await once(connection, "readable");
    let before = -1;
    await waitFor("the server waits", () => {
      const isStill = before === sent;
      before = sent;
      return isStill && connection.readableLength > 0;
    });
    assert.ok(sent < 32 * 1024 * 1024, `${sent} bytes`);
    connection.destroy();
  });

  it("gives no credit for what a server does not read", async () => {
    let socket: Socket | undefined;
    await using deaf = await serving((accepted) => {
      socket = accepted.pause();
    });
    const connection = await agent.dial(deaf.port);
    let written = 0;
    const chunk = bytesOf(65_536);
    while (connection.write(chunk)) written += chunk.length;
    assert.ok(written < 16 * 1024 * 1024);
    await waitFor("it was accepted", () => socket !== undefined);
    const received = all(socket!);
    connection.end();
    assert.equal((await received).length, written + chunk.length);
  });

  it("tells a reset behind the bytes before it", async () => {
    await using rude = await serving((socket) => {
      socket.write("last words");
      socket.once("data", () => socket.resetAndDestroy());
    });
    const connection = await agent.dial(rude.port);
    const [words] = await once(connection, "data");
    assert.equal(String(words), "last words");
    connection.write("x");
    await waitFor("it is reset", () => connection.destroyed);
    assert.match(connection.errored?.message ?? "", /reset/);
  });

  it("tells a reset, and no closed port, of a server that resets at once", async () => {
    await using rude = await serving((socket) => socket.resetAndDestroy());
    for (let round = 0; round < 20; round++) {
      const connection = await agent.dial(rude.port);
      connection.on("data", () => {});
      connection.write("x");
      await waitFor("it is over", () => connection.destroyed);
      assert.match(connection.errored?.message ?? "", /reset/);
    }
    await agent.probe();
  });

  it("resets the connection of a client that goes", async () => {
    let error: Error | undefined;
    let isClosed = false;
    await using server = await serving((socket) => {
      socket.on("error", (reason) => {
        error = reason;
      });
      socket.on("close", () => {
        isClosed = true;
      });
      socket.resume();
    });
    const connection = await agent.dial(server.port);
    connection.write("x");
    connection.destroy();
    await waitFor("the server sees it", () => isClosed);
    assert.equal((error as NodeJS.ErrnoException).code, "ECONNRESET");
  });

  it("heeds its signal only until the server accepts", async () => {
    await using echo = await serving((socket) => socket.pipe(socket));
    const controller = new AbortController();
    const connection = await agent.dial(echo.port, controller.signal);
    controller.abort(new Error("too late"));
    connection.end("still here");
    assert.equal((await all(connection)).toString(), "still here");
    await assert.rejects(agent.dial(echo.port, controller.signal), /too late/);
  });

  it("finds a server on ::1 alone", async () => {
    await using six = await serving((socket) => socket.end("six"), "::1");
    assert.equal((await all(await agent.dial(six.port))).toString(), "six");
  });

  it("refuses a port on which nobody listens, and names it", async () => {
    // Bound by a client's socket, so that nobody else can listen there meanwhile.
    await using server = await serving(() => {});
    const client = net.connect(server.port, "127.0.0.1");
    await once(client, "connect");
    const { localPort } = client;
    await assert.rejects(agent.dial(localPort!), { failure: "not_found", message: new RegExp(`port ${localPort}$`) });
    await assert.rejects(agent.dial(0), { failure: "invalid" });
    client.destroy();
  });

  it("is ended by a later connection of the host", async () => {
    let isClosed = false;
    await using server = await serving((socket) => {
      socket.on("close", () => {
        isClosed = true;
      });
    });
    await using other = await AgentProcess.start();
    const first = await other.connect();
    await other.wake(first);
    const connection = await first.dial(server.port);
    connection.resume();
    await other.connect();
    await waitFor("both ends see the reset", () => isClosed && connection.destroyed);
  });

  it("serves many connections at once", async () => {
    await using echo = await serving((socket) => socket.pipe(socket));
    const sizes = Array.from({ length: 100 }, (_, at) => at * 1_000);
    const lengths = await Promise.all(
      sizes.map(async (size) => {
        const connection = await agent.dial(echo.port);
        connection.end(bytesOf(size));
        return (await all(connection)).length;
      }),
    );
    assert.deepEqual(lengths, sizes);
  });
});

describe("PORTS", () => {
  it("lists the sockets on which a server listens, with its process", async () => {
    await using four = await serving(() => {});
    await using six = await serving(() => {}, "::1");
    const ports = await agent.ports();
    // A program of another test may have the same number at another address.
    const found = ports.filter(
      ({ port, address }) =>
        (port === four.port && address === "127.0.0.1") || (port === six.port && address === "::1"),
    );
    const summary = found.map(({ port, address, pid }) => ({ port, address, pid }));
    assert.deepEqual(
      summary.sort((a, b) => a.address.localeCompare(b.address)),
      [
        { port: six.port, address: "::1", pid: process.pid },
        { port: four.port, address: "127.0.0.1", pid: process.pid },
      ].sort((a, b) => a.address.localeCompare(b.address)),
    );
    assert.ok(found.every(({ cmd }) => cmd !== ""));
  });
});
