import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { Qmp, QmpError, type QmpEvent } from "./qmp.ts";

/** A QMP server that behaves as a test needs: an honest QEMU or a compromised one. */
let server: Server;
let folder = "";
let path = "";
const opened: { qmp: Qmp[]; sockets: Socket[] } = { qmp: [], sockets: [] };

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "qmp-"));
  path = join(folder, "qmp.sock");
  server = createServer().listen(path);
  await once(server, "listening");
});

afterEach(async () => {
  for (const qmp of opened.qmp.splice(0)) qmp.close();
  for (const socket of opened.sockets.splice(0)) socket.destroy();
  await new Promise((resolve) => server.close(resolve));
  await rm(folder, { recursive: true, force: true });
});

type Respond = (command: { execute: string; id: number; arguments: unknown }, socket: Socket) => void;

const greeting = '{"QMP": {"version": {}, "capabilities": ["oob"]}}\r\n';
const ok = (id: number, value: unknown = {}) => `${JSON.stringify({ return: value, id })}\r\n`;

/** Greets, negotiates capabilities, and passes other commands to `respond`. */
function serve(respond: Respond): void {
  server.on("connection", (socket) => {
    opened.sockets.push(socket);
    socket.on("error", () => {});
    socket.write(greeting);
    let text = "";
    socket.on("data", (chunk) => {
      text += chunk.toString();
      for (let end = text.indexOf("\n"); end !== -1; end = text.indexOf("\n")) {
        const command = JSON.parse(text.slice(0, end));
        text = text.slice(end + 1);
        if (command.execute === "qmp_capabilities") socket.write(ok(command.id));
        else respond(command, socket);
      }
    });
  });
}

async function open(onEvent: (event: QmpEvent) => void = () => {}): Promise<Qmp> {
  const qmp = await Qmp.connect(path, onEvent, 60_000);
  opened.qmp.push(qmp);
  return qmp;
}

test("a command without arguments sends none", async () => {
  const asked: unknown[] = [];
  serve((command, socket) => {
    asked.push(command);
    socket.write(ok(command.id));
  });
  const qmp = await open();
  await Promise.all([qmp.command("stop"), qmp.command("eject", { id: "tray" })]);
  assert.deepEqual(asked, [
    { execute: "stop", id: 2 },
    { execute: "eject", arguments: { id: "tray" }, id: 3 },
  ]);
});

test("answers are matched to commands in any order and chunking", async () => {
  const held: number[] = [];
  serve(({ id }, socket) => {
    held.push(id);
    if (held.length < 3) return;
    const bytes = Buffer.from(
      held
        .reverse()
        .map((each) => ok(each, { id: each, text: "Grüße" }))
        .join(""),
    );
    for (const byte of bytes) socket.write(Buffer.from([byte]));
  });
  const qmp = await open();
  const answers = await Promise.all(["a", "b", "c"].map((name) => qmp.command(name)));
  const ids = answers.map((answer) => (answer as { id: number }).id);
  assert.deepEqual(
    ids,
    ids.toSorted((a, b) => a - b),
  );
  assert.equal((answers[0] as { text: string }).text, "Grüße");
});

test("an error contains QEMU's description", async () => {
  serve(({ id }, socket) => {
    socket.write(`${JSON.stringify({ error: { class: "GenericError", desc: "no such node" }, id })}\n`);
  });
  await assert.rejects((await open()).command("blockdev-reopen"), (error: Error) => {
    assert.ok(error instanceof QmpError);
    assert.equal(error.message, "QMP blockdev-reopen: no such node");
    return true;
  });
});

test("events arrive in order, between answers", async () => {
  const events: string[] = [];
  serve(({ id }, socket) => {
    socket.write(`{"event": "STOP"}\n{"event": "SHUTDOWN", "data": {"guest": true}}\n${ok(id)}{"event": "RESUME"}\n`);
  });
  const resumed = Promise.withResolvers<void>();
  const qmp = await open(({ name, data }) => {
    events.push(`${name} ${JSON.stringify(data)}`);
    if (name === "RESUME") resumed.resolve();
  });
  await qmp.command("stop");
  await resumed.promise;
  assert.deepEqual(events, ["STOP {}", 'SHUTDOWN {"guest":true}', "RESUME {}"]);
});

test("an unanswered command rejects at its deadline, and a late answer is ignored", async () => {
  let late: (() => void) | undefined;
  serve(({ execute, id }, socket) => {
    if (execute === "slow") late = () => socket.write(ok(id, "late"));
    else {
      late?.();
      socket.write(ok(id, "prompt"));
    }
  });
  const qmp = await open();
  await assert.rejects(qmp.command("slow", {}, 20), /QMP slow: no answer within 20 ms/);
  assert.equal(await qmp.command("quick"), "prompt");
});

test("connecting to a QEMU that does not greet rejects at the deadline", async () => {
  server.on("connection", (socket) => opened.sockets.push(socket));
  await assert.rejects(
    Qmp.connect(path, () => {}, 20),
    /No QMP greeting within 20 ms/,
  );
});

const hostile: [string, string | Buffer, RegExp][] = [
  ["a line without end", Buffer.alloc(1_100_000, "x"), /line of more than 1048576 bytes/],
  ["a long line", Buffer.concat([Buffer.alloc(1_100_000, "x"), Buffer.from("\n")]), /line of more than/],
  ["something that is not JSON", "hello there\n", /not a JSON object/],
  ["a number", "42\n", /not a JSON object/],
  ["an array", "[[1]]\n", /not a JSON object/],
  ["null", "null\n", /not a JSON object/],
  ["deep nesting", `${"[".repeat(900_000)}\n`, /not a JSON object/],
  ["bytes that are no text", Buffer.from([0xff, 0xfe, 0x00, 0x0a]), /not a JSON object/],
];

for (const [what, bytes, reason] of hostile) {
  test(`${what} ends the connection and every command`, async () => {
    serve((_command, socket) => socket.write(bytes));
    const qmp = await open();
    await assert.rejects(qmp.command("query-status"), reason);
    assert.match((await qmp.closed).message, reason);
    await assert.rejects(qmp.command("query-status"), /connection is closed/);
  });
}

const lines: Record<string, string> = {
  events: '{"event": "STOP"}\n',
  greetings: greeting,
  "empty lines": "\n",
  "answers to no command": '{"return": {}, "id": 99}\n',
};

for (const [what, line] of Object.entries(lines)) {
  test(`more than 1,000 ${what} in a second end the connection; 900 do not`, async (t) => {
    t.mock.method(performance, "now", () => 0); // all in one second
    serve(({ execute, id }, socket) => {
      if (execute === "some") socket.write(line.repeat(900) + ok(id));
      else socket.write(line.repeat(100_000));
    });
    let events = 0;
    const qmp = await open(() => events++);
    await qmp.command("some");
    assert.equal(events, what === "events" ? 900 : 0);
    await assert.rejects(qmp.command("many"), /more than 1000 lines in a second that answer no command/);
    assert.ok(events < 4_000, `${events} events were passed on`);
  });
}

/** A QEMU that writes `lines` while no command waits. Resolves with the parsed events and the reason of the end. */
async function flooded(lines: readonly string[]): Promise<{ events: number; reason: string }> {
  serve(() => {});
  let events = 0;
  const qmp = await open(() => events++);
  for (const line of lines) opened.sockets[0]!.write(line);
  opened.sockets[0]!.end();
  const reason = (await qmp.closed).message;
  return { events, reason };
}

/** A line of so many bytes, its end not counted. */
const eventOf = (bytes: number) => `${'{"event": "STOP", "data": {"x": "'.padEnd(bytes - 3, "x")}"}}\n`;

test("an event of 64 KiB is passed on", async () => {
  assert.deepEqual(await flooded([eventOf(65_536)]), { events: 1, reason: "QMP connection closed" });
});

test("a line of more than 64 KiB that answers no command ends the connection before it is parsed", async () => {
  const { events, reason } = await flooded([`[${"1,".repeat(32_768)}`, `1]\n`]);
  assert.match(reason, /a line of more than 65536 bytes that answers no command/);
  assert.equal(events, 0);
});

test("more than 256 KiB in a second that answer no command end the connection", async (t) => {
  t.mock.method(performance, "now", () => 0); // all in one second
  const { events, reason } = await flooded(Array.from({ length: 100 }, () => eventOf(30_000)));
  assert.match(reason, /more than 262144 bytes in a second that answer no command/);
  assert.ok(events >= 8, `${events} events were passed on`);
});

test("answers count for nothing, however many there are", async () => {
  serve(({ id }, socket) => socket.write(ok(id)));
  const qmp = await open();
  for (let i = 0; i < 50; i++) await Promise.all(Array.from({ length: 60 }, () => qmp.command("query-status")));
});

test("answers to unknown commands are ignored", async () => {
  serve(({ id }, socket) => {
    socket.write(
      `{"return": {}, "id": 99}\n{"return": {}}\n{"id": "x", "error": 7}\n{}\n{"event": 5}\n\n${ok(id, "mine")}`,
    );
  });
  assert.equal(await (await open()).command("query-status"), "mine");
});

test("when QEMU disconnects, pending commands reject and `closed` resolves", async () => {
  serve((_command, socket) => socket.destroy());
  const qmp = await open();
  await assert.rejects(qmp.command("cont"), /QMP cont: .*clos/i);
  await qmp.closed;
});

test("at most 64 commands are pending at a time", async () => {
  serve(() => {});
  const qmp = await open();
  const waiting = Array.from({ length: 64 }, () => qmp.command("stop"));
  await assert.rejects(qmp.command("stop"), /too many commands at once/);
  qmp.close();
  for (const each of await Promise.allSettled(waiting)) assert.equal(each.status, "rejected");
});
