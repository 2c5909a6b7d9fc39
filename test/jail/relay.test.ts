/**
 * Each wall around the relay, tried from inside. Two programs run in its place, in the jail that it has: relay-probe.ts in Node, and
 * relay-probe.c for calls that Node has no function for. Without the jail they succeed with each attempt, so each refusal is the jail's.
 */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createSocket, type Socket as UdpSocket } from "node:dgram";
import { once } from "node:events";
import { chmodSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { type AddressInfo, createServer, type Server } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { loadConfig } from "../../src/config.ts";
import { startRelay } from "../../src/relay/start.ts";
import { Jail } from "../../src/vmm/jail/jail.ts";
import { findProgram, programFilesOf } from "../../src/vmm/jail/program-files.ts";
import { waitFor } from "../wait-for.ts";
import type { Outcomes, Targets } from "./relay-probe.ts";

const isRoot = process.getuid!() === 0;
const uids = loadConfig({}).jailUids;
const folder = mkdtempSync(join(tmpdir(), "capsule-relay-jail-"));
const servers: Server[] = [];
let dns: UdpSocket;
let targets: Targets;
let jail: Jail;

async function listening(path?: string): Promise<Server> {
  const server = createServer((socket) => socket.destroy());
  servers.push(server);
  await once(path === undefined ? server.listen(0, "127.0.0.1") : server.listen(path), "listening");
  return server;
}

/** Answers every question with 9.9.9.9. */
async function dnsServer(): Promise<UdpSocket> {
  const socket = createSocket("udp4");
  socket.on("message", (question, { port, address }) => {
    const head = Buffer.from("818000010001", "hex");
    const record = Buffer.from("c00c000100010000003c000409090909", "hex");
    const end = question.indexOf(0, 12) + 5;
    const answer = [question.subarray(0, 2), head, Buffer.alloc(4), question.subarray(12, end), record];
    socket.send(Buffer.concat(answer), port, address);
  });
  socket.bind(0, "127.0.0.1");
  await once(socket, "listening");
  return socket;
}

before(async () => {
  chmodSync(folder, 0o755);
  const secret = join(folder, "api-key");
  writeFileSync(secret, "secret", { mode: 0o644 });
  const unixSocket = join(folder, "socket");
  await listening(unixSocket);
  const { port: tcpPort } = (await listening()).address() as AddressInfo;
  dns = await dnsServer();
  targets = { secret, folder, unixSocket, tcpPort, dnsPort: dns.address().port, pid: process.pid };
  jail = await Jail.open({ uids });
});
after(() => {
  dns?.close();
  for (const server of servers) server.close();
  rmSync(folder, { recursive: true });
  rmSync("/tmp/capsule-relay-probe", { force: true });
  rmSync(join(import.meta.dirname, "relay-probe-new"), { force: true });
});

interface Told {
  outcomes: Outcomes;
  state: Outcomes;
  environment: string[];
}

async function probe(inJail: Jail | undefined): Promise<Told> {
  const child = await startRelay({
    jail: inJail,
    program: join(import.meta.dirname, "relay-probe.ts"),
    isBrokered: false,
  });
  const ended = once(child, "exit");
  child.send(targets);
  const [told] = (await once(child, "message")) as [Told];
  child.disconnect();
  await ended;
  return told;
}

/** Without a jail, too, only their owner writes there. */
const ownSources = "write in its own sources";
const permitted = ["dial TCP", "ask a resolver", "list the machine's addresses", "use the thread pool", "run a thread"];

describe("in the relay's place", () => {
  test("without a jail every attempt succeeds", async () => {
    for (const [name, outcome] of Object.entries((await probe(undefined)).outcomes))
      assert.equal(name === ownSources ? "done" : outcome, "done", name);
  });

  test("in the jail a program dials, asks names and runs threads, and nothing else", async () => {
    const { outcomes, state, environment } = await probe(jail);
    for (const [name, outcome] of Object.entries(outcomes)) {
      if (permitted.includes(name)) assert.equal(outcome, "done", name);
      else assert.match(outcome, /^(?:EPERM|EACCES|ENOENT|EROFS|ESRCH)$/, name);
    }
    assert.deepEqual([outcomes["connect to a UNIX socket"], outcomes["start a program"]], ["EPERM", "EPERM"]);
    assert.deepEqual([outcomes["listen on TCP"], outcomes["bind UDP"]], ["EPERM", "EPERM"]);
    for (const name of ["CapEff", "CapPrm"]) assert.match(state[name]!, /^0+$/, name);
    assert.deepEqual([state.NoNewPrivs, state.Seccomp, state.pids], ["1", "2", "1"]);
    const uid = Number(state.Uid!.split("\t")[0]);
    if (isRoot) assert.ok(uid > uids.first && uid <= uids.last, `${uid}`);
    assert.deepEqual(
      environment.filter((name) => !["PWD", "SHLVL", "_"].includes(name)),
      [],
    );
  });

  const calls = ["tcp socket", "udp socket", "ipv6 socket", "route socket", "bind the route socket"];
  test("other families of sockets, listening, and processes are refused", async () => {
    const program = join(folder, "relay-probe");
    execFileSync("cc", ["-static", "-O1", "-o", program, join(import.meta.dirname, "relay-probe.c")]);
    const source = { readOnly: [program], writable: [], deviceNodes: [], folder: "/", hasNetwork: true };
    const limits = { fileBytes: 0, dataBytes: 1 << 30, processes: 64, openFiles: 64, cpus: 1 };
    const child = await jail.startChild([program], { ...source, limits });
    const [outcomes] = (await once(child, "message")) as [Outcomes];
    const ended = once(child, "exit");
    child.kill("SIGKILL");
    await ended;
    for (const [name, outcome] of Object.entries(outcomes)) {
      const expected = calls.includes(name) ? "done" : name === "clone3" ? "ENOSYS" : "EPERM";
      assert.equal(outcome, expected, name);
    }
    assert.ok(Object.keys(outcomes).length > 20);
  });
});

test("a jail whose parent ends while it is built is no child, and nothing of it stays", async () => {
  const sleep = findProgram("sleep")!;
  const { readOnly } = await programFilesOf(sleep);
  const limits = { fileBytes: 0, dataBytes: 1 << 30, processes: 64, openFiles: 64, cpus: 1 };
  const profile = { readOnly, writable: [], deviceNodes: [], folder: "/", limits };
  // Goes on when the shell that stood between has been reaped.
  const through = () => ["sh", "-c", '(while kill -0 $$ 2>/dev/null; do :; done; exec "$@") & exit 1', "sh"];
  const argv = [sleep, `${100_000 + process.pid}`];
  await assert.rejects(jail.startChild(argv, profile, through), /has ended/);
  await waitFor("the program is gone", () => !commandLines().some((line) => line === argv.join("\0")));
});

function commandLines(): string[] {
  const pids = readdirSync("/proc").filter((entry) => /^\d+$/.test(entry));
  return pids.map((pid) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, "latin1").replace(/\0$/, "");
    } catch {
      return ""; // it has ended
    }
  });
}

describe("the relay itself", () => {
  test("is ready in the jail, and ends when its channel closes", async () => {
    const child = await startRelay({ jail });
    const [message] = await once(child, "message");
    assert.deepEqual(message, { kind: "ready" });
    const ended = once(child, "exit");
    child.disconnect();
    assert.deepEqual(await ended, [0, null]);
  });

  test("has the child's pid, and is gone when the child is killed", async () => {
    const child = await startRelay({ jail });
    await once(child, "message");
    const { pid } = child;
    assert.ok(existsSync(`/proc/${pid}`));
    const ended = once(child, "exit");
    child.kill("SIGKILL");
    await ended;
    await waitFor("the process is gone", () => !existsSync(`/proc/${pid}`));
  });
});
