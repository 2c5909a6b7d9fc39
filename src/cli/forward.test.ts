/** `capsule forward`: its words, and its connections at the real HTTP layer with a fake guest. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { connect } from "node:net";
import type { Duplex } from "node:stream";
import { text } from "node:stream/consumers";
import { test } from "node:test";
import { Api } from "../../test/api.ts";
import { lineTo } from "../../test/cli/api-line.ts";
import { program, said } from "../../test/cli/command-line.ts";
import { within } from "../../test/wait-for.ts";
import { UsageError } from "./command.ts";
import { forwardingOf } from "./forward.ts";

const api = new Api();
const line = lineTo(api);

test("a word is [BIND:][LOCAL:]PORT", () => {
  const read = (text: string) => Object.values(forwardingOf(text)).join(" ");
  assert.equal(read("80"), "127.0.0.1 80 80");
  assert.equal(read("8080:80"), "127.0.0.1 8080 80");
  assert.equal(read("0:80"), "127.0.0.1 0 80");
  assert.equal(read("0.0.0.0:80"), "0.0.0.0 80 80");
  assert.equal(read("localhost:8080:80"), "localhost 8080 80");
  assert.equal(read("[::1]:8080:80"), "::1 8080 80");
  for (const odd of ["", "0", "65536", "x", ":80", "80:", "a:b:80", "1:2:3:80", "65536:80:"]) {
    assert.throws(() => forwardingOf(odd), UsageError, odd);
  }
});

test("each connection to a local port is one to the capsule's, and Ctrl-C ends all", async () => {
  const id = await echoing();
  const child = line.start(["forward", "--json", id, "0:80"]);
  const closed = once(child, "close");
  const { local } = JSON.parse(await said(child.stdout, /\n/));
  const echoes = await Promise.all(["one", "two"].map((text) => echoOf(local, text)));
  assert.deepEqual(echoes, ["one", "two"]);
  const open = connect(local, "127.0.0.1");
  open.on("error", () => {}); // it may be reset
  open.write("half");
  await within("its echo", once(open, "data"));
  child.kill("SIGINT");
  assert.deepEqual(await within("its end", closed), [0, null]);
});

test("a connection to a port where nobody listens is reset, and the next one is served", async () => {
  const id = await api.capsule();
  const child = line.start(["forward", "--json", id, "0:80"]);
  const closed = once(child, "close");
  const { local } = JSON.parse(await said(child.stdout, /\n/));
  const refused = connect(local, "127.0.0.1");
  refused.resume();
  const [error] = await within("the reset", once(refused, "error"));
  assert.equal((error as NodeJS.ErrnoException).code, "ECONNRESET");
  await said(child.stderr, /port 80: .*listens/);
  api.agent(id).servers.set(80, echo);
  assert.equal(await echoOf(local, "again"), "again");
  child.kill("SIGTERM");
  assert.deepEqual(await within("its end", closed), [0, null]);
});

test("--stdio is one connection of standard input and output, and ends with it", async () => {
  const id = await echoing();
  const { stdout, stderr, code } = await line.run(["forward", "--stdio", id, "80"], { input: "over the wire" });
  assert.deepEqual([stdout, stderr, code], ["over the wire", "", 0]);
  const refused = await line.run(["forward", "--stdio", id, "81"]);
  assert.deepEqual([refused.stdout, refused.code], ["", 1]);
  assert.match(refused.stderr, /nothing listens on port 81/);
});

test("--stdio ends the output with the server's, for a reader that keeps the input open", async () => {
  const id = await api.capsule();
  const heard = Promise.withResolvers<string>();
  api.agent(id).servers.set(80, (connection) => {
    connection.end("goodbye\n");
    heard.resolve(text(connection));
  });
  const script = '"$@" | { cat; echo over; }';
  const child = spawn("sh", ["-c", script, "sh", program, "forward", "--stdio", id, "80"], {
    ...{ env: line.env, stdio: ["pipe", "pipe", "inherit"] },
  });
  const closed = once(child, "close");
  assert.equal(await said(child.stdout, /over/), "goodbye\nover\n");
  child.stdin.end("still here");
  assert.equal(await within("the input's end", heard.promise), "still here");
  assert.deepEqual(await within("its end", closed), [0, null]);
});

function echo(connection: Duplex): void {
  connection.pipe(connection);
}

async function echoing(): Promise<string> {
  const id = await api.capsule();
  api.agent(id).servers.set(80, echo);
  return id;
}

/** The bytes that come back, after this side has ended. */
async function echoOf(local: number, sent: string): Promise<string> {
  const socket = connect({ port: local, host: "127.0.0.1", allowHalfOpen: true });
  socket.end(sent);
  return await within("the echo", text(socket));
}
