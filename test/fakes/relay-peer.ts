/**
 * A relay for tests of the service's end, as a process of its own. It writes each message about a capsule to that capsule's port,
 * a line of JSON each, and does what the lines from there say.
 */
import type { Socket } from "node:net";
import { createInterface } from "node:readline";
import type { FromRelay, ToRelay } from "../../src/relay/messages.ts";

const ports = new Map<number, Socket>();
let settings: unknown;
let isDeaf = false;
/** Runs of which a decision is told only at a flush. */
const kept: number[] = [];

function send(message: FromRelay | { kind: string }): void {
  process.send?.(message);
}

function obey(run: number, line: string): void {
  const [order, ...rest] = line.split(" ");
  if (order === "lose") lose(run);
  else if (order === "junk") send({ kind: "junk" });
  else if (order === "exit") process.exit(3);
  else if (order === "ignore") isDeaf = true;
  else if (order === "decide") {
    const at = new Date(0).toISOString();
    const decision = { at, verdict: "denied", reason: "reserved", address: rest[1] ?? "10.0.0.1", count: 2 } as const;
    send({ kind: "decisions", runs: [[Number(rest[0] ?? run), [decision]]] });
  } else if (order === "keep") kept.push(run);
  else if (order === "count") {
    const counts = { connections: 3, denied: 2, failed: 1, bytesOut: 100, bytesIn: 200 };
    send({ kind: "counts", runs: [[Number(rest[0] ?? run), counts]], names: { answered: 4 }, connectionsOpen: 2 });
  }
}

function lose(run: number): void {
  ports.get(run)?.destroy();
  ports.delete(run);
  send({ kind: "lost", run, why: "the test has asked for it" });
}

process.on("message", (message: ToRelay, socket?: Socket) => {
  if (isDeaf) return;
  if (message.kind === "settings") {
    if (settings === undefined) send({ kind: "ready" });
    settings = message.settings;
    for (const port of ports.values()) port.write(`${JSON.stringify(message)}\n`);
    return;
  }
  if (message.kind === "flush") {
    for (const run of kept) obey(run, "decide");
    send({ kind: "applied", seq: message.seq });
    return;
  }
  const { run } = message;
  if (message.kind === "attach" && socket !== undefined) {
    ports.set(run, socket);
    socket.on("error", () => {});
    socket.resume();
    const lines = createInterface({ input: socket });
    lines.on("line", (line) => obey(run, line));
    lines.on("error", () => {});
  }
  ports.get(run)?.write(`${JSON.stringify({ ...message, settings })}\n`);
  if (message.kind === "policy") send({ kind: "applied", seq: message.seq });
  if (message.kind === "state") send({ kind: "state", seq: message.seq, connectionsOpen: 7 });
  if (message.kind === "detach") {
    ports.get(run)?.destroy();
    ports.delete(run);
  }
});
process.on("disconnect", () => process.exit());
