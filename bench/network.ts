/**
 * The network of a capsule: a download beside that of a VM with passt, connect(), the URL of a port beside a read of
 * the same file, and the relay's memory. Everything dialled is on this machine's loopback address.
 */
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer as createHttpsServer } from "node:https";
import { type AddressInfo, createServer, type Server } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { relayOf } from "../test/network/relay-process.ts";
import type { Fixture } from "./fixture.ts";
import { PasstVm, passtGateway } from "./passt.ts";
import { rssMib } from "./process-costs.ts";
import { pairedRatio } from "./report.ts";
import { Service } from "./service.ts";
import { summarize } from "./statistics.ts";
import { download, downloadByPort, makeFile, upload } from "./transfers.ts";

const sizeBytes = 64 << 20;
const idleConnections = 1_000;
const host = "host.capsule.internal";
/** That name's, in capsules. */
const hostAddress = "192.0.0.1";

export async function network(fixture: Fixture): Promise<void> {
  await using remote = await Remote.open();
  const allow = [remote.httpsPort, remote.tcpPort].map((port) => `${host}:${port}`);
  const grants = allow.map((entry) => entry.replace(host, "host")).join(",");
  await using service = await Service.start({
    CAPSULE_POOL: "off",
    CAPSULE_WARM_PROCESSES: "0",
    CAPSULE_EGRESS_GRANT: grants,
  });
  const id = await service.createRunning({ network: { egress: "allowlist", allow } });
  await besidePasst(fixture, remote, async (...args) => (await service.exec(id, ...args)).stdout);
  await byPort(fixture, service, id);
  const memory = await relayMemory(service, id, remote);
  fixture.report.note("relayMemory", [memory], { most: { value: memory } });
  await service.destroy(id);
}

/** Runs a command in a guest; resolves with its output. */
type Run = (cmd: string, ...args: string[]) => Promise<string>;

interface Turns {
  speeds: number[][];
  connects: number[][];
}

/** Downloads and connections of a capsule, interleaved with those of a VM with passt where that is installed. */
async function besidePasst(fixture: Fixture, remote: Remote, run: Run): Promise<void> {
  const vm = await PasstVm.start(fixture);
  await using _vm = typeof vm === "string" ? undefined : vm;
  const ours: Turns = { speeds: [], connects: [] };
  const theirs: Turns = { speeds: [], connects: [] };
  const take = async ({ speeds, connects }: Turns, own: Run, address: string) => {
    speeds.push([await speed(own, remote.httpsPort, address)]);
    connects.push(await connectTimes(own, remote.tcpPort, address));
  };
  const takeTheirs = async (into: Turns) => {
    if (typeof vm !== "string") await take(into, (...args) => vm.run(...args), passtGateway);
  };
  const takeOurs = (into: Turns) => take(into, run, hostAddress);
  const notCounted: Turns = { speeds: [], connects: [] };
  await takeOurs(notCounted);
  await takeTheirs(notCounted);
  for (let turn = 0; turn < fixture.rounds(5, 15); turn++) {
    if (turn % 2 === 0) await takeTheirs(theirs);
    await takeOurs(ours);
    if (turn % 2 === 1) await takeTheirs(theirs);
  }
  const name = "by a VM with passt";
  const connects = summarize(ours.connects.flat());
  const against = { name: `${name}, interleaved`, measured: summarize(theirs.connects.flat()) };
  const bound = { value: connects.p50, ...(typeof vm !== "string" && { against }) };
  const passt = typeof vm === "string" ? { absent: vm } : pairedRatio(ours.speeds, name, theirs.speeds);
  fixture.report.note("networkDownload", ours.speeds.flat(), { passt });
  fixture.report.note("networkConnect", connects, { bound });
}

/** MB/s of the guest's curl. */
async function speed(run: Run, port: number, address: string): Promise<number> {
  const resolve = ["--resolve", `${host}:${port}:${address}`];
  const url = `https://${host}:${port}/`;
  const said = await run("curl", "-sSk", ...resolve, "-o", "/dev/null", "-w", "%{size_download} %{time_total}", url);
  const [size, seconds] = said.split(" ").map(Number);
  if (size !== sizeBytes) throw new Error(`curl got ${size} bytes instead of ${sizeBytes}`);
  return size / 1e6 / seconds!;
}

/** Milliseconds of each, after some that are not counted. */
async function connectTimes(run: Run, port: number, address: string): Promise<number[]> {
  const program = `
import json, socket, sys, time
def connect():
    began = time.perf_counter()
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
    took = time.perf_counter() - began
    connection.close()
    time.sleep(.02)
    return took * 1000
print(json.dumps([connect() for _ in range(25)][5:]))`;
  return JSON.parse(await run("python3", "-c", program, address, String(port)));
}

async function byPort(fixture: Fixture, service: Service, id: string): Promise<void> {
  const file = await makeFile(service, sizeBytes);
  await upload(service, id, file);
  const serve = `
import socket
with socket.create_server(("127.0.0.1", 8000)) as server:
    while True:
        connection, _ = server.accept()
        with connection, open("/root/file", "rb") as file:
            if connection.recv(65536) == b"": continue
            connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: ${sizeBytes}\\r\\nConnection: close\\r\\n\\r\\n")
            connection.sendfile(file)`;
  const command = { cmd: "python3", args: ["-c", serve], background: true, tag: "web" };
  await service.ask("POST", `/v1/capsules/${id}/exec`, command);
  await service.exec(id, "bash", "-c", "until (exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep .1; done");
  const turns: { port: number[][]; read: number[][] } = { port: [], read: [] };
  const timed = async (work: () => Promise<void>) => {
    const began = performance.now();
    await work();
    return [sizeBytes / 1_000 / (performance.now() - began)];
  };
  const read = async () => turns.read.push(await timed(() => download(service, id, sizeBytes)));
  const port = async () => turns.port.push(await timed(() => downloadByPort(service, id, 8_000, sizeBytes)));
  await downloadByPort(service, id, 8_000, sizeBytes);
  for (let turn = 0; turn < fixture.rounds(5, 15); turn++) {
    if (turn % 2 === 0) await read();
    await port();
    if (turn % 2 === 1) await read();
  }
  fixture.report.note("portDownload", turns.port.flat(), { read: pairedRatio(turns.port, "stream/read", turns.read) });
}

/** MiB, while a capsule holds connections that move no byte. */
async function relayMemory(service: Service, id: string, remote: Remote): Promise<number> {
  const program = `
import socket, sys, time
address = (socket.gethostbyname(sys.argv[1]), int(sys.argv[2]))
held = [socket.create_connection(address, 60) for _ in range(${idleConnections})]
time.sleep(1e6)`;
  const args = ["-c", `ulimit -n 4096; exec python3 -c "$0" "$@"`, program, host, String(remote.tcpPort)];
  await service.ask("POST", `/v1/capsules/${id}/exec`, { cmd: "bash", args, background: true, tag: "idle" });
  await remote.connections(idleConnections);
  const relay = relayOf(service.pid);
  if (relay === undefined) throw new Error("the server has no relay");
  return rssMib(relay);
}

/** Servers on the loopback address: one of a file, by HTTPS, and one whose connections stand. */
class Remote implements AsyncDisposable {
  readonly httpsPort: number;
  readonly tcpPort: number;
  readonly #servers: Server[];
  readonly #tcp: Server;

  static async open(): Promise<Remote> {
    const folder = mkdtempSync(join(tmpdir(), "bench-network-"));
    const files = ["-keyout", join(folder, "key.pem"), "-out", join(folder, "cert.pem")];
    const kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];
    execFileSync("openssl", ["req", ...kind, "-subj", `/CN=${host}`, ...files], { stdio: "pipe" });
    const options = { key: readFileSync(join(folder, "key.pem")), cert: readFileSync(join(folder, "cert.pem")) };
    rmSync(folder, { recursive: true });
    const content = randomBytes(sizeBytes);
    const https = createHttpsServer(options, (_request, response) => response.end(content));
    const tcp = createServer((socket) => socket.on("error", () => {}).resume());
    for (const server of [https, tcp]) await once(server.listen(0, "127.0.0.1"), "listening");
    return new Remote(https, tcp);
  }

  private constructor(https: Server, tcp: Server) {
    const portOf = (server: Server) => (server.address() as AddressInfo).port;
    this.httpsPort = portOf(https);
    this.tcpPort = portOf(tcp);
    this.#tcp = tcp;
    this.#servers = [https, tcp];
  }

  /** Resolves when so many stand. */
  connections(count: number): Promise<void> {
    return new Promise((stand) => {
      const look = () => this.#tcp.getConnections((_error, found) => found >= count && stand());
      this.#tcp.on("connection", look);
      look();
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const server of this.#servers) server.close();
  }
}
