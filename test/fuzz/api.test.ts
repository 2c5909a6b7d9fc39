/**
 * Fuzzes the API from its OpenAPI document: one team sends random operations, parameters, bodies and socket messages,
 * beside another team's capsule. CAPSULE_TEST_SEED repeats the choices, in the same order for one client.
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import net from "node:net";
import { after, before, test } from "node:test";
import { Client, type TestCapsule } from "../client.ts";
import { Random } from "../conformance/random.ts";
import { unknownId } from "../conformance/requests.ts";
import type { OpenApi } from "../openapi-contract.ts";
import { Server } from "../server.ts";
import { waitFor } from "../wait-for.ts";
import { Conversations } from "./conversation.ts";
import { isLong } from "./fuzz-form.ts";
import { type Operation, operationsOf, Requests } from "./requests.ts";
import { chance, pick } from "./values.ts";

/** Each test sends at least as many requests, for at least as long. */
const rounds = isLong ? 40_000 : 1_600;
const leastMs = 60_000;
const clients = 4;
/** Requests after which the server's memory may only grow by garbage that V8 has not collected yet. */
const warmUp = rounds / 3;
const heapMaxMb = 128;
const growthMaxBytes = 96 << 20;
/** Longer than the service lets a request wait for anything, which is a minute. */
const answerMs = 180_000;
/** Expected 5xx statuses. None may be an internal_error. */
const failures = new Set([502, 503, 504, 507]);
/** Their lines in the server's log: a busy guest that does not freeze in time is not captured, for example. */
const failed = /"code":"(agent_error|no_capacity|no_space)","msg":"request failed"\}$/;

let server: Server;
let red: Client;
let blue: Client;
let victim: TestCapsule;
before(async () => {
  const env = {
    CAPSULE_CAPSULES_MAX: "5",
    CAPSULE_BODY_MAX_BYTES: "65536",
    CAPSULE_REQUESTS_PER_SEC: "1000000", // the rate limiters have their own tests
    CAPSULE_CONNECTIONS_PER_SEC: "1000000",
    NODE_OPTIONS: `--max-old-space-size=${heapMaxMb}`,
  };
  server = await Server.start({ env });
  server.log.expect(failed);
  blue = await Client.connect(server.url, server.apiKey);
  red = blue.as(await server.createKey("red"));
  victim = await blue.capsule();
  await victim.sh("echo mine > /root/file; sync");
});
after(async () => {
  red?.close();
  blue?.close();
  await server?.[Symbol.asyncDispose]();
});

/** Known capsules of the red team; running ones are listed several times, so that they are chosen more often. */
const own: string[] = [];
const paths = ["/root/file", "/root", "/root/new/deep", "/tmp/x", "/etc/passwd", "/proc/self/status", "/", "/dev/null"];
const pools = {
  "{id}": [] as string[],
  "{selector}": ["1", "0", "999999", "proc-00000000", "worker", "-1", "0x10"],
  "{name}": ["minimal", "made", "never-made", ".."],
  template: ["minimal", "minimal", "made", "theirs", "no-such-template"],
  vcpus: [1, 1, 1, 0, 1_000],
  memory_mb: [512, 512, 512, 0, 1e9],
  timeout_sec: [0, 0, 30, -1],
  timeout: [1, 2, 30],
  sandbox_id: [] as string[],
  name: ["made", "made", "minimal", "-", "a b"],
  path: [...paths, "/root/../etc/hostname", "relative", `/${"x".repeat(4_096)}`, "/root/a\u0000b"],
  depth: [0, 1, 2, 3, -1],
  cmd: ["true", "echo", "cat", "sh", "no-such-command", "/", "sleep"],
  args: [[], ["-c", "echo out; echo err >&2; exit 3"], ["0.05"], ["/etc/passwd"], ["ü", "\n"]],
  cwd: ["/", "/root", "/nowhere"],
  user: ["root", "nobody", "no-such-user"],
  tag: ["worker", "pty-00000000"],
  "?wait": ["running", "paused", "error", "nothing"],
  "?timeout": [0, 1, 1, -1, "x"],
  data: ["ZWNobwo=", "AAAA", "!", ""],
  from: ["/root/file", "/tmp/x", "/root/moved", "/nowhere"],
  to: ["/root/moved", "/tmp/x", "/root/file", "/root/new/deep"],
  base: ["/", "/root", "/nowhere"],
  paths: [["/root"], ["/root/file", "/tmp/x"], ["/etc/passwd"], [], ["relative"], Array(1_001).fill("/root/file")],
  mode: ["755", "0777", "1755", "8", "", 755],
  owner: ["root", "nobody", "65534", "no-such-user", ""],
  group: ["root", "0", "no-such-group"],
  expires_sec: [1, 60, 604_800, 0, 604_801],
  labels: [{ a: "1" }, { a: null, b: "2" }, { "": "" }, { a: "x".repeat(300) }, {}],
  "signed URLs": [] as string[],
  "?path": ["/root", "/tmp", "/root/file", "/nowhere", "relative"],
  "?stream": ["both", "stdout", "stderr", "neither"],
  "?tail": [0, 1, 1_000_000, -1],
  "?from": ["start", "now", 0, 5, 1e15, "end"],
  "?offsets": ["1", "0"],
  "?status": ["running", "paused,stopped", "none", ""],
  "?label": ["a=1", "a=1=2", "=", "a", ["a=1", "b=2"]],
  "?name": ["web", "-", ""],
  "?template": ["minimal", "no-such-template"],
  "?limit": [1, 1_000, 0, 1_001],
  "?cursor": ["x", ""],
  cols: [80, 1, 0, 70_000],
  rows: [24, 1, 0, 70_000],
};

function addCapsule(id: string): void {
  own.push(id);
  pools["{id}"] = pools.sandbox_id = [...own, ...own, victim.id, unknownId];
}

/** Slow operations, and those that remove capsules, are chosen less often. */
function weightOf({ method, path, socket }: Operation): number {
  if (socket !== undefined) return 30;
  if (path === "/v1/events") return 1;
  if (method === "DELETE" && path === "/v1/capsules/{id}") return 1;
  if (/\/(pause|resume|stop|start)$/.test(path) || (method === "POST" && /^\/v1\/(capsules|snapshots)$/.test(path)))
    return 2;
  return 12;
}

/** URLs of the first own capsule, for both methods. */
async function signUrls(): Promise<void> {
  pools["signed URLs"] = [];
  for (const method of ["GET", "PUT"]) {
    const json = { path: "/root/file", method };
    const { status, json: answer } = await red.call("POST", `/v1/capsules/${own[0]}/files/url`, { json });
    if (status !== 200) continue; // another client has destroyed it
    const { pathname, search } = new URL(answer.url);
    pools["signed URLs"].push(pathname + search);
  }
}

/** Ensures a running capsule, so that requests can succeed. */
async function ensureCapsule(): Promise<void> {
  const { json } = await red.expect(200, "GET", "/v1/capsules");
  const views: { id: string; status: string; error_reason: string | null }[] = json;
  for (const { id, status, error_reason } of views) assert.notEqual(status, "error", `${id}: ${error_reason}`);
  own.splice(0, own.length);
  const running = views.filter(({ status }) => status === "running" || status === "starting");
  for (const { id } of [...views, ...running, ...running]) addCapsule(id);
  if (running.length > 0) return await signUrls();
  for (const { id } of views.slice(0, 3)) await red.call("DELETE", `/v1/capsules/${id}`);
  for (let i = 0; i < 3; i++) {
    const { status, json } = await red.call("POST", "/v1/capsules", { json: {} });
    if (status === 201) addCapsule(json.id); // else other clients have used up the quota
  }
  await red.call("GET", `/v1/capsules/${own.at(-1)}?wait=running`);
}

/** Resident memory of the server process. */
function residentBytes(): number {
  const kib = /^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${server.pid}/status`, "utf8"))?.[1];
  return Number(kib) * 1024;
}

test("random requests and socket messages", { timeout: 3_600_000 }, async (t) => {
  const random = new Random(t);
  const document = (await (await fetch(new URL("/openapi.json", server.url))).json()) as OpenApi;
  const operations = operationsOf(document).flatMap((each) => Array<Operation>(weightOf(each)).fill(each));
  await ensureCapsule();
  const requests = new Requests(document, random, pools);
  const conversations = new Conversations(document, requests, random);
  const before = await view();
  const statuses = new Map<number, number>();
  let warmBytes = 0;
  let sent = 0;

  const act = async () => {
    const request = requests.to(pick(random, operations));
    const { method, path, headers, key, body } = request;
    const title = `${method} ${path.slice(0, 300)}`;
    const isSocket = request.operation.socket !== undefined && method === "GET";
    // An event stream has no end, and some requests are aborted early.
    const abortMs = path.startsWith("/v1/events") ? 100 : chance(random, 3) ? random.below(30) : undefined;
    const signal = AbortSignal.timeout(abortMs ?? answerMs);
    const call = { headers, signal, ...(key === undefined ? {} : { key }), ...(body === undefined ? {} : { body }) };
    try {
      const isTalk = isSocket && key === undefined && chance(random, 90);
      const status = isTalk
        ? await conversations.hold(red.url, red.key, request)
        : (await (isSocket ? red.upgrade(path, call) : red.call(method, path, call))).status;
      assert.ok(status < 500 || failures.has(status), `${title}: ${status}`);
      statuses.set(status, (statuses.get(status) ?? 0) + 1);
    } catch (error) {
      if (abortMs !== undefined && signal.aborted) return;
      throw new Error(`${title}: ${body?.toString("latin1").slice(0, 300)}`, { cause: error });
    }
  };
  const began = performance.now();
  const run = async () => {
    while (sent < rounds || performance.now() - began < leastMs) {
      if (sent++ % 40 === 0) await ensureCapsule();
      if (warmBytes === 0 && sent > warmUp) warmBytes = residentBytes();
      await act();
    }
  };
  await Promise.all(Array.from({ length: clients }, run));
  const grownBytes = residentBytes() - warmBytes;
  t.diagnostic(`${[...statuses].sort(([a], [b]) => a - b).map(([status, count]) => `${status}: ${count}`)}`);
  t.diagnostic(`${conversations.messages} socket messages; ${Math.round(grownBytes / 1e6)} MB grown`);
  const answers = [...statuses.values()].reduce((sum, count) => sum + count, 0);
  const succeeded = [...statuses].reduce((sum, [status, count]) => sum + (status < 300 ? count : 0), 0);
  t.diagnostic(`${succeeded} of ${answers} answers succeeded`);
  // Usually a third succeeds, with one message per eight requests. Far fewer mean that the requests no longer reach the
  // service.
  assert.ok(succeeded > answers / 8, `only ${succeeded} of ${answers} requests succeeded`);
  assert.ok(conversations.messages > answers / 40, `only ${conversations.messages} socket messages were sent`);
  assert.ok(grownBytes < growthMaxBytes, `the server grew by ${grownBytes} bytes`);
  assert.deepEqual(await server.log.unexpected(), []);
  await ensureCapsule();
  assert.deepEqual(await view(), before, "another team's capsule was touched");
});

async function view(): Promise<unknown> {
  const content = await blue.expect(200, "POST", `${victim.path}/files/read`, { json: { path: "/root/file" } });
  return [(await blue.expect(200, "GET", "/v1/capsules")).json, content.bytes.toString()];
}

test("damaged HTTP requests", { timeout: 600_000 }, async (t) => {
  const random = new Random(t);
  const head = `POST ${victim.path}/exec HTTP/1.1\r\nHost: x\r\nX-API-Key: ${red.key}\r\n`;
  const whole = Buffer.from(`${head}Content-Type: application/json\r\nContent-Length: 14\r\n\r\n{"cmd":"true"}`);
  const extra = [
    "Transfer-Encoding: chunked\r\n",
    "Content-Length: 5\r\n",
    "Upgrade: websocket\r\nConnection: Upgrade\r\n",
    " folded\r\n",
    `A: ${"a".repeat(20_000)}\r\n`,
    "Expect: 100-continue\r\n\r\n",
    "GET / HTTP/1.1\r\n\r\n",
    "\r\n\r\n5\r\nabc",
    "\0",
  ];
  let answered = 0;
  let sent = 0;
  for (const began = performance.now(); sent < rounds / 4 || performance.now() - began < leastMs; sent++) {
    const bytes = Buffer.from(whole);
    for (let flips = random.size(4); flips > 0; flips--) bytes[random.below(bytes.length)] = random.below(256);
    const at = random.below(bytes.length);
    const message = Buffer.concat([bytes.subarray(0, at), Buffer.from(pick(random, extra)), bytes.subarray(at)]);
    const answer = await sendRaw(message, chance(random, 70));
    if (answer === "") continue;
    assert.match(answer, /^HTTP\/1\.1 (1|2|4)\d\d /, message.toString("latin1"));
    answered++;
  }
  t.diagnostic(`${answered} of ${sent} answered`);
  assert.ok(answered > sent / 4, "most damaged requests got no answer");
  assert.deepEqual(await server.log.unexpected(), []);
  assert.equal((await victim.view()).status, "running");
});

/**
 * The answer up to its head, or everything until the server closes; empty when `waits` is false and the client closes
 * first.
 */
async function sendRaw(bytes: Buffer, waits: boolean): Promise<string> {
  const { hostname, port } = new URL(server.url);
  const socket = net.connect(Number(port), hostname);
  let answer = "";
  socket.setEncoding("latin1").on("data", (text) => {
    answer += text;
    if (answer.includes("\r\n\r\n")) socket.destroy();
  });
  socket.on("error", () => {});
  if (waits) socket.end(bytes);
  else socket.write(bytes, () => socket.destroy());
  await new Promise((resolve) => socket.once("close", resolve));
  return answer;
}

test("the server still works", async () => {
  const health = await fetch(new URL("/healthz", server.url));
  assert.equal(health.status, 200);
  await waitFor("a command runs", async () => (await victim.run("echo", ["alive"])).stdout === "alive\n");
});
