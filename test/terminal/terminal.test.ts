/** Full-screen programs in a terminal emulator: keys in, screen out. */
import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Client, TestCapsule } from "../client.ts";
import { Server } from "../server.ts";
import { Session } from "./session.ts";

const pasteBytes = 1024 * 1024;
const deadline = { timeout: 400_000 };

let server: Server;
let client: Client;
let capsule: TestCapsule;

before(async () => {
  server = await Server.start();
  client = await Client.connect(server.url, server.apiKey);
  capsule = await client.capsule();
});

after(async () => {
  client?.close();
  await server?.[Symbol.asyncDispose]();
});

test("less pages forwards, to the end, back and to a search result", deadline, async () => {
  await capsule.sh("seq -f 'line %g' 1 300 > /tmp/lines");
  await using session = await Session.start(capsule);
  const { emulator } = session;
  await session.enters("less /tmp/lines");
  const first = await emulator.shows(/^line 1\n(.*\n)*^\/tmp\/lines/m);
  assert.deepEqual(first.split("\n").slice(0, 23), lines(1, 23));
  await emulator.presses("Space");
  assert.deepEqual((await emulator.shows(/^line 24\n/)).split("\n").slice(0, 23), lines(24, 46));
  await emulator.types("G");
  assert.deepEqual((await emulator.shows(/\(END\)/)).split("\n").slice(0, 23), lines(278, 300));
  await emulator.types("g");
  await emulator.shows(/^line 1\n/);
  await session.enters("/line 200");
  await emulator.shows(/^line 200\n/);
  await emulator.types("q");
  await session.isAtPrompt();
});

test("top draws its table, and ends with q", deadline, async () => {
  await using session = await Session.start(capsule);
  const { emulator } = session;
  await session.enters("top -d 0.3");
  const screen = await emulator.shows(/\d top\s*$/m);
  assert.match(screen, /^top - .* load average: /);
  assert.match(screen, /^Tasks: +\d+ total/m);
  assert.match(screen, /^ *PID USER /m);
  await emulator.types("q");
  await session.isAtPrompt();
});

test("text typed in vi is on the screen, and in the file after writing", deadline, async () => {
  await using session = await Session.start(capsule);
  const { emulator } = session;
  await session.enters("vi /tmp/poem");
  await emulator.shows(/^~\n(.*\n)*"\/tmp\/poem"/m);
  await emulator.types("iroses are red");
  await emulator.presses("Enter");
  await emulator.types("violets are blue");
  await emulator.presses("Escape");
  await emulator.shows(/^roses are red\nviolets are blue\n~\n/);
  await emulator.types("ggdwPx:s/violets/x/");
  await emulator.presses("Escape");
  await emulator.types("0Cdaisies are white");
  await emulator.presses("Escape");
  await emulator.shows(/^daisies are white\nviolets are blue\n~\n/);
  await session.enters(":wq");
  await session.isAtPrompt();
  assert.equal(await capsule.sh("cat /tmp/poem"), "daisies are white\nviolets are blue");
});

test("a resized window sends a signal to the program, which reads the new size", deadline, async () => {
  await using session = await Session.start(capsule, { cols: 90, rows: 30 });
  const { emulator } = session;
  await session.enters("stty size");
  await emulator.shows(/^30 90$/m);
  await session.enters(`trap 'echo "changed to $(stty size)"' WINCH; echo waiting`);
  await emulator.shows(/^waiting$/m);
  await emulator.resizes({ cols: 120, rows: 40 });
  await emulator.shows(/changed to 40 120$/m);
  await session.enters("vi /tmp/size");
  await emulator.shows(/^~\n(.*\n)*"\/tmp\/size"/m);
  await emulator.resizes({ cols: 60, rows: 12 });
  await emulator.shows(/^\n(~\n){10}\n+$/);
});

test("a paste of 1 MiB arrives completely", deadline, async () => {
  const folder = await mkdtemp(join(tmpdir(), "capsule-paste-"));
  try {
    const text = randomBytes(pasteBytes).toString("base64").slice(0, pasteBytes);
    await writeFile(join(folder, "text"), text);
    await using session = await Session.start(capsule);
    await session.enters(`stty raw -echo; echo waiting; head -c ${pasteBytes} | sha256sum; stty sane`);
    await session.emulator.shows(/^waiting$/m);
    await session.emulator.pastes(join(folder, "text"));
    await session.emulator.shows(new RegExp(createHash("sha256").update(text).digest("hex")));
  } finally {
    await rm(folder, { recursive: true });
  }
});

test(
  "a pager that draws only for another size is drawn for a client that rejoins at the same size",
  deadline,
  async () => {
    await capsule.sh("seq -f 'line %g' 1 300 > /tmp/lines");
    let tag = "";
    {
      await using left = await Session.start(capsule);
      await left.enters("less /tmp/lines");
      await left.emulator.shows(/^line 1\n(.*\n)*^\/tmp\/lines/m);
      await left.emulator.types("G");
      await left.emulator.shows(/\(END\)/);
      tag = await left.tag;
    }
    await using session = await Session.rejoin(capsule, tag);
    assert.deepEqual((await session.emulator.shows(/\(END\)/)).split("\n").slice(0, 23), lines(278, 300));
    await session.emulator.types("q");
    await session.isAtPrompt();
  },
);

test("an editor and its unsaved text survive a killed server", deadline, async () => {
  await using left = await beginLetter();
  await server.kill("SIGKILL");
  await left.emulator.shows(/^bridge: closed 1006/m);
  await server.start();
  await server.adopted();
  client.close();
  client = await Client.connect(server.url, server.apiKey);
  capsule = new TestCapsule(client, capsule.id);
  await finishLetter(await left.tag);
});

test("an editor and its unsaved text survive pause and resume", deadline, async () => {
  await using left = await beginLetter();
  await capsule.pause();
  await left.emulator.shows(/^bridge: closed 4409/m);
  await capsule.resume();
  await finishLetter(await left.tag);
});

async function beginLetter(): Promise<Session> {
  const session = await Session.start(capsule);
  await capsule.sh("rm -f /tmp/letter");
  await session.enters("vi /tmp/letter");
  await session.emulator.shows(/^~\n(.*\n)*"\/tmp\/letter"/m); // keys typed while it draws can be lost
  await session.emulator.types("iDear reader,");
  await session.emulator.shows(/^Dear reader,\n~/);
  return session;
}

/** Connects from a window of the same size, which the editor has to be told to draw. */
async function finishLetter(tag: string): Promise<void> {
  await using session = await Session.rejoin(capsule, tag);
  const { emulator } = session;
  await emulator.shows(/^Dear reader,\n~/);
  await emulator.types(" good bye.");
  await emulator.presses("Escape");
  await session.enters(":wq");
  await session.isAtPrompt();
  assert.equal(await capsule.sh("cat /tmp/letter"), "Dear reader, good bye.");
  await session.enters("exit 7");
  await emulator.shows(/^bridge: exit 7\n(.*\n)*^bridge: closed 1000/m);
}

function lines(from: number, to: number): string[] {
  return Array.from({ length: to - from + 1 }, (_, index) => `line ${from + index}`);
}
