/** A relay that was taken over, and writes to its channel whatever it likes: it is replaced, and this process, in the server's place, lives on. */
import assert from "node:assert/strict";
import { type ChildProcess, fork, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { describe, test } from "node:test";
import { waitFor } from "../../test/wait-for.ts";
import { loadConfig } from "../config.ts";
import { strictRules } from "../network/grants.ts";
import { startTicksOf, statOf } from "../vmm/process.ts";
import { Relay } from "./relay.ts";
import { relaySettings } from "./relay-settings.ts";
import { ReplyBudget } from "./reply-budget.ts";
import { startBrokered, startRelay } from "./start.ts";

const harmless = join(import.meta.dirname, "../../test/fakes/relay-peer.ts");

/** In Python, since Node sends no descriptor of a file. The channel is descriptor 3. */
const hostile = (behaviour: string) => [
  "python3",
  "-c",
  `
import array, json, os, socket, time
channel = socket.socket(fileno=3)
channel.recv(1 << 20)
say = lambda message: channel.sendall(json.dumps(message).encode() + b"\\n")
say({"kind": "ready"})
time.sleep(0.1) # a message of its own
decision = dict(at="2026-01-01T00:00:00Z", verdict="denied", reason="", host="a", count=1)
counts = dict(connections=1, denied=1, failed=1, bytesOut=1, bytesIn=1)
${behaviour}
while True: time.sleep(100)
`,
];

const behaviours: Record<string, string> = {
  "a line that is no JSON": `channel.sendall(b"no JSON\\n")`,
  "bytes that are no text": `channel.sendall(bytes(range(256)) + b"\\n")`,
  "a confirmation of Node's own": `say({"cmd": "NODE_HANDLE_ACK"})`,
  "a hand-over of Node's own": `say({"cmd": "NODE_HANDLE", "type": "net.Socket", "msg": 1}); say("none")`,
  "a descriptor of a file": `channel.sendmsg([b"{}\\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [os.open("/dev/null", 0)]))])`,
  "a line without end": `while True: channel.sendall(b"x" * 65536)`,
  "brackets without end": `channel.sendall(b"[" * 4_000_000 + b"\\n")`,
  "a message that is none": `say({"kind": "junk"})`,
  "counts of too many runs": `say({"kind": "counts", "runs": [[n, counts] for n in range(1001)], "names": {}, "connectionsOpen": 0})`,
  "more decisions of a run than are kept": `say({"kind": "decisions", "runs": [[1, [decision] * 101]]})`,
  "more decisions than a message has": `say({"kind": "decisions", "runs": [[n, [decision] * 100] for n in range(11)]})`,
  "a decision that is none": `say({"kind": "decisions", "runs": [[1, [decision, dict(decision, count=-1)]]]})`,
  "a socket that listens, with a message": `
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
handle = {"cmd": "NODE_HANDLE", "type": "net.Server", "msg": {"kind": "lost", "run": 9, "why": ""}}
channel.sendmsg([json.dumps(handle).encode() + b"\\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener.fileno()]))])`,
  "nothing, and closes the channel": `channel.close()`,
};

/** With this first process, and harmless ones afterwards. */
function relayOf(first: () => Promise<ChildProcess>) {
  const processes: ChildProcess[] = [];
  const told: object[] = [];
  const relay = new Relay({
    start: async () => {
      const started = processes.length === 0 ? await first() : fork(harmless, { execArgv: [] });
      processes.push(started);
      return started;
    },
    settings: relaySettings(strictRules, loadConfig({}).limits),
    watch: () => ({ resolvers: [], close() {} }),
    onCounts: () => {},
    onDecisions: () => {},
    onNames: (names) => void told.push(names),
    log: { info() {}, warn() {}, error() {} },
  });
  relay.open();
  return { relay, processes, told };
}

describe("a relay that sends", () => {
  for (const [what, behaviour] of Object.entries(behaviours)) {
    test(`${what} is replaced, and the server lives on`, async () => {
      const { relay, processes } = relayOf(() => startBrokered(hostile(behaviour)));
      await waitFor("another one is up", () => processes.length === 2 && relay.isUp);
      const { pid } = processes[0]!;
      await waitFor("the hostile one is gone", () => startTicksOf(pid!) === null);
      await relay.close();
    });
  }
});

test("a relay that sends messages without end is replaced or slow, and ends with the server", async () => {
  const behaviour = `
message = json.dumps({"kind": "counts", "runs": [[n, counts] for n in range(1000)], "names": {}, "connectionsOpen": 0})
while True: channel.sendall(message.encode() + b"\\n")`;
  const { relay, processes, told } = relayOf(() => startBrokered(hostile(behaviour)));
  await waitFor("it is replaced, or 20 came", () => processes.length === 2 || told.length >= 20);
  const { pid } = processes[0]!;
  await relay.close();
  await waitFor("the hostile one is gone", () => startTicksOf(pid!) === null);
});

test("the broker ends with the relay, and the relay with the broker", async () => {
  const one = await startRelay();
  const two = await startRelay();
  assert.notEqual(one.pid, two.pid);
  const ended = Promise.withResolvers<number | null>();
  one.once("exit", ended.resolve);
  one.disconnect();
  assert.equal(await ended.promise, 0);
  const gone = new Promise((resolve) => two.once("exit", resolve));
  two.kill("SIGKILL");
  await gone;
  await waitFor("the relay is gone", () => startTicksOf(two.pid!) === null);
});

test("broker and relay end with the server, whatever the relay has left in its channel", async () => {
  const program = `
import { startBrokered } from ${JSON.stringify(join(import.meta.dirname, "start.ts"))};
const child = await startBrokered(${JSON.stringify(hostile(`channel.sendall(b'{"kind": "lost", "run": 1}\\n{')`))});
child.send({ kind: "detach", run: 1 });
child.on("message", ({ kind }) => kind === "lost" && process.send(child.pid));`;
  const server = spawn(process.execPath, ["--input-type=module", "-e", program], {
    stdio: ["ignore", "ignore", "inherit", "ipc"],
  });
  const [pid] = (await once(server, "message")) as [number];
  const broker = statOf(pid)!.parent;
  server.kill("SIGKILL");
  await waitFor("the relay is gone", () => startTicksOf(pid) === null);
  await waitFor("the broker is gone", () => startTicksOf(broker) === null);
});

test("the end of the relay's standard error is passed on when it fails, as printable lines of 8 KiB", async () => {
  const behaviour = `
import sys
os.write(2, b"x" * 65536 + b"\\x1b[2Jwhy\\r\\x00\\xff\\n")
sys.exit(3)`;
  const child = await startBrokered(hostile(behaviour));
  let text = "";
  child.stderr!.on("data", (chunk: Buffer) => {
    text += chunk.toString("latin1");
  });
  child.send({ kind: "detach", run: 1 });
  const [code] = await once(child, "close");
  assert.equal(code, 3);
  assert.equal(text, `${"x".repeat(8_192 - 11)}?[2Jwhy???\n`);
});

test("a process that ended before its channel was read is replaced", async () => {
  const { relay, processes } = relayOf(async () => {
    const started = fork(harmless, { execArgv: [] });
    const ended = once(started, "exit");
    started.kill("SIGKILL");
    await ended;
    return started;
  });
  await waitFor("another one is up", () => processes.length === 2 && relay.isUp);
  await relay.close();
});

test("replies to questions have room of their own, others 16 MiB at once and 4 MiB a second", () => {
  const budget = new ReplyBudget(0);
  const names = { x: 1 };
  const runs = Array.from({ length: 1_000 }, (_, run): [number, never] => [run, "x".repeat(1_041) as never]);
  const reply = { kind: "counts", runs, names, connectionsOpen: 0 } as const;
  const bytes = JSON.stringify(reply).length;
  assert.ok(bytes > 1 << 20 && bytes < 1.01 * (1 << 20), `${bytes}`);
  const taken = (nowMs: number) => {
    let count = 0;
    while (budget.take(reply, nowMs)) count++;
    return count;
  };
  assert.equal(taken(0), 15);
  assert.equal(taken(1_000), 3);
  for (let question = 0; question < 8; question++) budget.asked({ kind: "state", run: 1, seq: question });
  assert.equal(taken(1_000), 1);
});

test("a short reply counts as 1 KiB, a long one with all its fields", () => {
  const budget = new ReplyBudget(0);
  let count = 0;
  while (budget.take({ kind: "lost", run: 1, why: "" }, 0)) count++;
  assert.equal(count, 16_384);
  const other = new ReplyBudget(0);
  assert.equal(other.take({ kind: "lost", run: 1, why: "", junk: "x".repeat(16 << 20) }, 0), false);
});
