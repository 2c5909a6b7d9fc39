/** Servers in a real guest, and connections to them. */
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import type { IncomingMessage } from "node:http";
import { after, before } from "node:test";
import { WebSocket } from "ws";
import type { TestCapsule } from "../../client.ts";
import { waitFor, within } from "../../wait-for.ts";
import { section, test } from "../conforms.ts";
import { client } from "../service.ts";

const [echoPort, talkerPort, resetPort] = [9_000, 9_001, 9_002];
const pieceBytes = 64 * 1024;

/** An echo, one that ends its direction first and notes what it then reads, and one that resets after its first bytes. */
const servers = `
import socket, struct, threading
def echo(peer):
    while bytes := peer.recv(65536): peer.sendall(bytes)
    peer.shutdown(socket.SHUT_WR)
def talk(peer):
    peer.sendall(b"said")
    peer.shutdown(socket.SHUT_WR)
    heard = b""
    while bytes := peer.recv(65536): heard += bytes
    with open("/tmp/heard", "wb") as file: file.write(heard)
def reset(peer):
    peer.recv(1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
def serve(listener, answer):
    while True: threading.Thread(target=answer, args=[listener.accept()[0]]).start()
listeners = [(socket.create_server(("127.0.0.1", port), backlog=8), answer) for port, answer in
    [(${echoPort}, echo), (${talkerPort}, talk), (${resetPort}, reset)]]
for each in listeners: threading.Thread(target=serve, args=each).start()
open("/tmp/ready", "w").close()
`;

async function serving(settings: Record<string, unknown> = {}): Promise<TestCapsule> {
  const capsule = await client.capsule(settings);
  await capsule.exec({ cmd: "python3", args: ["-c", servers], background: true });
  await waitFor("the servers listen", async () => (await capsule.run("test", ["-e", "/tmp/ready"])).exit_code === 0);
  return capsule;
}

function socketTo({ path }: TestCapsule, port: number): WebSocket {
  const url = new URL(`${path}/ports/${port}/tcp`, client.url);
  url.protocol = "ws:";
  const socket = new WebSocket(url, { headers: { "x-api-key": client.key }, perMessageDeflate: false });
  socket.on("error", () => {});
  return socket;
}

/** An open connection, with all that it has received. */
async function connected(capsule: TestCapsule, port: number) {
  const socket = socketTo(capsule, port);
  const chunks: Buffer[] = [];
  const texts: string[] = [];
  socket.on("message", (data: Buffer, isBinary: boolean) =>
    isBinary ? chunks.push(data) : texts.push(data.toString()),
  );
  const closed = once(socket, "close") as Promise<[number]>;
  await within("the socket is open", once(socket, "open"));
  return {
    socket,
    texts,
    received: () => Buffer.concat(chunks),
    code: async () => (await within("the socket is closed", closed))[0],
  };
}

export const ports = section(import.meta, "ports", () => {
  let capsule: TestCapsule;
  before(async () => {
    capsule = await serving();
  });
  after(() => capsule?.[Symbol.asyncDispose]());

  test("ports are listed with their process", async () => {
    const { json } = await client.expect(200, "GET", `${capsule.path}/ports`);
    const pid = json[0].pid;
    assert.ok(Number.isInteger(pid) && pid > 1);
    const rest = { address: "127.0.0.1", pid, cmd: "python3", public: false };
    const { json: info } = await client.expect(200, "GET", capsule.path);
    assert.deepEqual(
      json,
      [echoPort, talkerPort, resetPort].map((port) => ({
        ...{ port, ...rest, url: info.port_url.replace("{port}", String(port)) },
      })),
    );
  });

  test("8 MiB go to a server and back, then each side ends", async () => {
    const { socket, texts, received, code } = await connected(capsule, echoPort);
    const bytes = randomBytes(8 * 1024 * 1024);
    for (let at = 0; at < bytes.length; at += pieceBytes) socket.send(bytes.subarray(at, at + pieceBytes));
    socket.send("end");
    assert.equal(await code(), 1000);
    assert.ok(received().equals(bytes));
    assert.deepEqual(texts, ["end"]);
  });

  test("a server that has ended its direction still reads", async () => {
    const { socket, texts, received, code } = await connected(capsule, talkerPort);
    await waitFor("its end", () => texts.includes("end"));
    assert.equal(received().toString(), "said");
    socket.send(Buffer.from("heard"));
    socket.send("end");
    assert.equal(await code(), 1000);
    await waitFor("it has read all", async () => (await capsule.run("cat", ["/tmp/heard"])).stdout === "heard");
  });

  test("a reset closes with 1011", async () => {
    const { socket, code } = await connected(capsule, resetPort);
    socket.send(Buffer.from("x"));
    assert.equal(await code(), 1011);
  });

  test("a port where nobody listens is 502 before the socket opens", async () => {
    const socket = socketTo(capsule, 9_999);
    const [, response] = (await within("the refusal", once(socket, "unexpected-response"))) as [
      unknown,
      IncomingMessage,
    ];
    let text = "";
    for await (const chunk of response) text += chunk;
    const { code, details } = JSON.parse(text).error;
    assert.deepEqual([response.statusCode, code], [502, "port_closed"]);
    assert.deepEqual(details.ports, [echoPort, talkerPort, resetPort]);
  });

  test("a pause closes with 4409, a connection resumes the capsule, and its end closes with 4404", async () => {
    await using other = await serving({ auto_resume: true });
    const before = await connected(other, echoPort);
    await other.pause();
    assert.equal(await before.code(), 4409);
    const later = await connected(other, echoPort);
    later.socket.send(Buffer.from("awake"));
    await waitFor("its echo", () => later.received().toString() === "awake");
    await other.destroy();
    assert.equal(await later.code(), 4404);
  });
});
