/**
 * The servers of internet.ts, in their namespace: HTTP, TLS, mail, a printer, an echo, one that resets, one that reads, one that
 * sends, one that keeps silent, and DNS over UDP and TCP.
 */
import { execFileSync } from "node:child_process";
import { createSocket } from "node:dgram";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer, type Server, type Socket } from "node:net";
import { join } from "node:path";
import { createServer as createTlsServer, type TLSSocket } from "node:tls";
import { waitFor } from "../wait-for.ts";
import { archiveServer } from "./archive-server.ts";
import { bytesOf, type Told, world } from "./internet.ts";

const [folder = "", archivesFolder = ""] = process.argv.slice(2);
const archives = archiveServer(archivesFolder);
const arrived = { connections: [] as string[], questions: [] as string[], resets: 0 };
const tell = (told: Told) => process.send?.(told);
const ip = (...args: string[]) => execFileSync("ip", args, { stdio: ["ignore", "ignore", "inherit"] });

/** Addresses by name, in turn with each question; `@name` is a CNAME. */
const zone: Record<string, string[][]> = {
  "a.example": [[world.a]],
  "b.example": [[world.b]],
  "private.example": [[world.printer]],
  "mixed.example": [[world.printer, world.a]],
  "alias.example": [["@private.example", world.printer]],
  "good-alias.example": [["@a.example", world.a]],
  "rebind.example": [[world.a], [world.printer]],
  "loopback.example": [["127.0.0.1"]],
  "machine.example": [[world.machine]],
  "metadata.example": [[world.metadata]],
  "*.apps.example": [[world.machine]],
  "*.archives.example": [[world.archives]],
};
const asked = new Map<string, number>();
const types: Record<number, string> = {
  1: "A",
  2: "NS",
  5: "CNAME",
  12: "PTR",
  15: "MX",
  16: "TXT",
  28: "AAAA",
  33: "SRV",
};

function noteConnection(socket: Socket): void {
  arrived.connections.push(`${socket.localAddress}:${socket.localPort}`);
  socket.on("error", (error: NodeJS.ErrnoException) => {
    if (error.code === "ECONNRESET") arrived.resets++;
  });
}

async function listen(server: Server, port: number): Promise<void> {
  await once(server.listen(port, "0.0.0.0"), "listening");
}

function answerHttp(socket: Socket, local: string, name: string): void {
  if (local === world.archives) {
    archives.emit("connection", socket);
    return;
  }
  socket.once("data", (head) => {
    const text = head.toString("latin1");
    const host = /^Host: *(\S*)/im.exec(text)?.[1];
    const size = /^GET \/bytes\/(\d+) /.exec(text)?.[1];
    const body = size === undefined ? JSON.stringify({ local, host, name }) : bytesOf(Number(size)).toString("latin1");
    socket.end(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n${body}`, "latin1");
  });
}

/** As long as it is read. */
function sendForEver(socket: Socket): void {
  const chunk = bytesOf(65_536);
  const send = () => {
    while (!socket.destroyed && socket.write(chunk));
  };
  socket.on("drain", send);
  socket.resume();
  send();
}

function qname(question: Buffer): { name: string; end: number } {
  const labels: string[] = [];
  let at = 12;
  for (let length = question[at]!; length > 0; length = question[at]!) {
    labels.push(question.toString("latin1", at + 1, at + 1 + length));
    at += length + 1;
  }
  return { name: labels.join("."), end: at + 1 };
}

const nameBytes = (name: string) =>
  Buffer.concat([
    ...name.split(".").map((label) => Buffer.from([label.length, ...Buffer.from(label)])),
    Buffer.from([0]),
  ]);

function dnsAnswer(question: Buffer): Buffer {
  const { name, end } = qname(question);
  const type = question.readUInt16BE(end);
  arrived.questions.push(`${types[type] ?? type} ${name}`);
  const turns = zone[name] ?? zone[name.replace(/^[^.]+/, "*")];
  const turn = asked.get(name) ?? 0;
  asked.set(name, turn + 1);
  const found = type === 1 ? (turns?.[Math.min(turn, turns.length - 1)] ?? []) : [];
  let owner = Buffer.from([0xc0, 12]);
  const records = found.map((value) => {
    const isAlias = value.startsWith("@");
    const data = isAlias ? nameBytes(value.slice(1)) : Buffer.from(value.split(".").map(Number));
    const head = Buffer.from([0, isAlias ? 5 : 1, 0, 1, 0, 0, 0, 30, 0, data.length]);
    const record = Buffer.concat([owner, head, data]);
    if (isAlias) owner = data;
    return record;
  });
  const flags = turns === undefined ? 0x8183 : 0x8180;
  const head = Buffer.alloc(12);
  question.copy(head, 0, 0, 2);
  for (const [index, value] of [flags, 1, records.length].entries()) head.writeUInt16BE(value, 2 + 2 * index);
  return Buffer.concat([head, question.subarray(12, end + 4), ...records]);
}

async function openDns(): Promise<void> {
  const udp = createSocket("udp4");
  udp.on("message", (question, { address, port }) => udp.send(dnsAnswer(question), port, address));
  udp.bind(53, world.dns);
  await once(udp, "listening");
  const tcp = createServer((socket) => {
    socket.once("data", (bytes: Buffer) => {
      const answer = dnsAnswer(bytes.subarray(2));
      const length = Buffer.alloc(2);
      length.writeUInt16BE(answer.length);
      socket.end(Buffer.concat([length, answer]));
    });
    socket.on("error", () => {});
  });
  await once(tcp.listen(53, world.dns), "listening");
}

async function openServers(): Promise<void> {
  const noted = (serve: (socket: Socket) => void, allowHalfOpen = false) =>
    createServer({ allowHalfOpen }, (socket) => {
      noteConnection(socket);
      serve(socket);
    });
  await listen(
    noted((socket) => answerHttp(socket, socket.localAddress!, "")),
    80,
  );
  for (const [port, greeting] of [
    [25, "220 mail\r\n"],
    [9_100, "printer\r\n"],
  ] as const)
    await listen(
      noted((socket) => socket.end(greeting)),
      port,
    );
  await listen(
    noted((socket) => socket.pipe(socket), true),
    7,
  );
  await listen(
    noted((socket) => socket.once("data", () => socket.resetAndDestroy())),
    9,
  );
  await listen(
    noted((socket) => socket.resume()),
    10,
  );
  await listen(noted(sendForEver, true), 12);
  await listen(
    noted((socket) => socket.resume(), true),
    13,
  );
  const files = { key: readFileSync(join(folder, "key.pem")), cert: readFileSync(join(folder, "cert.pem")) };
  const tls = createTlsServer(files, (socket: TLSSocket) => {
    socket.on("error", () => {});
    answerHttp(socket, socket.localAddress!, String(socket.servername));
  });
  tls.on("connection", noteConnection);
  tls.on("tlsClientError", () => {});
  await listen(tls, 443);
  await listen(
    createServer((socket) => tls.emit("connection", socket)),
    8_443,
  );
}

/** Whether a connection waits for its listener, which takes one a turn, or for the last packet of its handshake. */
function someoneWaits(): boolean {
  const [listening, opening] = ["0A", "03"];
  const lines = readFileSync("/proc/net/tcp", "utf8").trim().split("\n").slice(1);
  return lines.some((line) => {
    const [, , , state, queues] = line.trim().split(/\s+/);
    return state === opening || (state === listening && !queues?.endsWith(":00000000"));
  });
}

process.on("message", async (message: string) => {
  if (message === "arrived") {
    await waitFor("every connection is taken", () => !someoneWaits());
    tell({ kind: "arrived", ...arrived });
    Object.assign(arrived, { connections: [], questions: [], resets: 0 });
    return;
  }
  ip("link", "set", "lo", "up");
  ip("address", "add", `${world.router}/24`, "dev", "in0");
  for (const address of Object.values(world)) {
    if (address !== world.machine && address !== world.router) ip("address", "add", `${address}/32`, "dev", "lo");
  }
  ip("link", "set", "in0", "up");
  await openDns();
  await openServers();
  tell({ kind: "ready" });
});
process.once("disconnect", () => process.exit());
tell({ kind: "up" });
