/** Real TCP connections on loopback: what a dial tells, bytes, ends and resets in both directions. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, createServer, Socket } from "node:net";
import { describe, test } from "node:test";
import { lastingPort } from "../../test/lasting-port.ts";
import { waitFor } from "../../test/wait-for.ts";
import { rangeOf } from "../network/destinations.ts";
import { type Receiver, TcpDialler, type Upstream } from "./dialler.ts";

const loopback = rangeOf("127.0.0.1")!.first;
const granted = () => ({ isGranted: true, signal: new AbortController().signal });

class Collected implements Receiver {
  chunks: Buffer[] = [];
  hasEnded = false;
  /** Whether the connection closed with an error. */
  closedWith: boolean | undefined;
  mayRead = true;

  data(bytes: Buffer): boolean {
    this.chunks.push(Buffer.from(bytes));
    return this.mayRead;
  }

  ended(): void {
    this.hasEnded = true;
  }

  closed(hadError: boolean): void {
    this.closedWith = hadError;
  }

  get length(): number {
    return this.chunks.reduce((sum, chunk) => sum + chunk.length, 0);
  }
}

async function served(serve: (socket: Socket) => void): Promise<AsyncDisposable & { port: number }> {
  const sockets = new Set<Socket>();
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    serve(socket);
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  const dispose = async () => {
    for (const socket of sockets) socket.destroy();
    server.close();
  };
  return { port: (server.address() as AddressInfo).port, [Symbol.asyncDispose]: dispose };
}

async function dialled(port: number): Promise<{ upstream: Upstream; got: Collected }> {
  const found = await new TcpDialler().dial([loopback], port, granted());
  assert.ok("upstream" in found);
  const got = new Collected();
  found.upstream.receive(got);
  return { upstream: found.upstream, got };
}

describe("a dial", () => {
  test("to a port that is closed is refused", async () => {
    const port = Number(await lastingPort());
    assert.deepEqual(await new TcpDialler().dial([loopback], port, granted()), { failure: "refused" });
  });

  test("to an address of this machine is ended, unless it is granted", async () => {
    await using world = await served(() => {});
    const options = { ...granted(), isGranted: false };
    assert.deepEqual(await new TcpDialler().dial([loopback], world.port, options), { failure: "own address" });
  });

  test("has a place among the relay's sockets, which one that closes gives back", async () => {
    await using world = await served(() => {});
    const upstreams: Upstream[] = [];
    using _ = { [Symbol.dispose]: () => upstreams.forEach((each) => void each.reset()) };
    const dialler = new TcpDialler({ placesMax: 2 });
    const dial = async () => {
      const found = await dialler.dial([loopback], world.port, granted());
      if ("failure" in found) return found.failure;
      upstreams.push(found.upstream);
      return "connected";
    };
    assert.deepEqual([await dial(), await dial(), await dial()], ["connected", "connected", "limit"]);
    upstreams[0]!.reset();
    await waitFor("a place is free", async () => (await dial()) === "connected");
    assert.equal(await dial(), "limit");
  });

  test("asks the kernel to look after a minute whether a silent peer is still there", async (t) => {
    await using world = await served(() => {});
    const asked = t.mock.method(Socket.prototype, "setKeepAlive");
    (await dialled(world.port)).upstream.reset();
    assert.deepEqual(asked.mock.calls[0]?.arguments, [true, 60_000]);
  });

  test("to several addresses keeps the first that accepts, and closes the others", async () => {
    const sockets: Socket[] = [];
    await using world = await served((socket) => sockets.push(socket));
    const others = [rangeOf("127.0.0.2")!.first, rangeOf("127.0.0.3")!.first, rangeOf("127.0.0.4")!.first];
    const found = await new TcpDialler().dial([...others, loopback], world.port, granted());
    assert.deepEqual(found, { failure: "refused" }, "the fourth is not dialled");
    const kept = await new TcpDialler().dial([others[0]!, loopback], world.port, granted());
    assert.ok("upstream" in kept && kept.upstream.address === loopback);
  });

  test("that nobody answers times out, and one whose asker is gone is given up", async () => {
    await using world = await served(() => {});
    const gone = new AbortController();
    const asked = new TcpDialler().dial([loopback], world.port, { isGranted: true, signal: gone.signal });
    gone.abort();
    assert.deepEqual(await asked, { failure: "unreachable" });
    const late = new TcpDialler({ deadlineMs: 0 });
    const found = await late.dial([rangeOf("127.0.0.1")!.first], world.port, granted());
    assert.ok("upstream" in found || found.failure === "timeout");
    if ("upstream" in found) found.upstream.reset();
  });
});

describe("a connection", () => {
  test("reads nothing before it may, and stops when it may no more", async () => {
    await using world = await served((socket) => socket.write(Buffer.alloc(4 << 20, 1)));
    const { upstream, got } = await dialled(world.port);
    got.mayRead = false;
    upstream.resume();
    await waitFor("a first read", () => got.length > 0);
    const { length } = got;
    assert.ok(length <= 65_536);
    await dialled(world.port); // ticks of the loop in which more could have been read
    assert.equal(got.length, length);
    got.mayRead = true;
    upstream.resume();
    await waitFor("all of it", () => got.length === 4 << 20);
    upstream.reset();
  });

  test("passes on each end alone", async () => {
    const ends: string[] = [];
    await using world = await served((socket) => {
      socket.end("bye");
      socket.on("data", (chunk) => ends.push(String(chunk)));
      socket.on("end", () => ends.push("end"));
    });
    const { upstream, got } = await dialled(world.port);
    upstream.resume();
    await waitFor("the end", () => got.hasEnded);
    assert.equal(got.closedWith, undefined);
    const { promise, resolve } = Promise.withResolvers<void>();
    upstream.write(Buffer.from("more"), resolve);
    await promise;
    upstream.end();
    await waitFor("the server's end", () => ends.includes("end"));
    assert.deepEqual(ends, ["more", "end"]);
    await waitFor("closed", () => got.closedWith === false);
  });

  test("tells a reset, and makes one", async () => {
    const codes: unknown[] = [];
    await using world = await served((socket) => {
      socket.on("error", (error: NodeJS.ErrnoException) => codes.push(error.code));
      socket.once("data", () => socket.resetAndDestroy());
    });
    const byServer = await dialled(world.port);
    byServer.upstream.resume();
    byServer.upstream.write(Buffer.from("x"), () => {});
    await waitFor("the reset", () => byServer.got.closedWith === true);
    const byRelay = await dialled(world.port);
    byRelay.upstream.reset();
    await waitFor("the server's error", () => codes.includes("ECONNRESET"));
  });
});
