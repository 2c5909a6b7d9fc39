import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { Qtest } from "./qtest.ts";

let folder = "";
let server: Server;
let said: string;
let reply: (socket: Socket, lines: number) => void;
const sockets = new Set<Socket>();

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), "qtest-"));
  said = "";
  server = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    socket.on("data", (chunk) => {
      said += chunk.toString("latin1");
      reply(socket, chunk.toString("latin1").split("\n").length - 1);
    });
  });
  await new Promise<void>((resolve) => server.listen(join(folder, "socket"), resolve));
});
afterEach(() => {
  for (const socket of sockets) socket.destroy();
  sockets.clear();
  server.close();
  rmSync(folder, { recursive: true });
});

const connected = () => Qtest.connect(join(folder, "socket"));
const okay = (socket: Socket, lines: number) => void socket.write("OK\n".repeat(lines));

test("pages are cleared in commands of at most 1 MiB, and the call waits for all answers", async () => {
  reply = (socket, lines) => {
    for (let each = 0; each < lines; each++) for (const piece of ["O", "K\n"]) socket.write(piece);
  };
  const qtest = await connected();
  await qtest.clear([
    { page: 1, count: 1 },
    { page: 0x100, count: 300 },
  ]);
  assert.equal(said, "memset 0x1000 0x1000 0x00\nmemset 0x100000 0x100000 0x00\nmemset 0x200000 0x2c000 0x00\n");
  await qtest.clear([]);
  await qtest.clear([{ page: 2, count: 1 }]);
  assert.match(said, /memset 0x2000 0x1000 0x00\n$/);
  qtest.close();
});

test("an answer other than OK, or one too many, closes the connection", async () => {
  for (const answer of ["FAIL Unknown command\n", "OK\nOK\n", "no line at all"]) {
    reply = (socket) => void socket.write(answer);
    const qtest = await connected();
    await assert.rejects(async () => {
      await qtest.clear([{ page: 1, count: 1 }]);
      await qtest.clear([{ page: 1, count: 1 }]);
    }, /qtest answered|qtest connection/);
    reply = okay;
    await assert.rejects(qtest.clear([{ page: 1, count: 1 }]), /qtest/, "it stays ended");
  }
});

test("calls in flight reject when the connection is closed by either side", async () => {
  reply = (socket) => void socket.destroy();
  const left = await connected();
  await assert.rejects(left.clear([{ page: 1, count: 1 }]), /qtest connection closed|ECONNRESET|EPIPE/);
  reply = () => {};
  const leaving = await connected();
  const clearing = leaving.clear([{ page: 1, count: 1 }]);
  leaving.close();
  await assert.rejects(clearing, /closed by the client/);
});

test("connecting to a closed socket fails", async () => {
  await assert.rejects(Qtest.connect(join(folder, "other")), { code: "ENOENT" });
});
