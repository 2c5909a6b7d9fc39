/**
 * Stands between the server and the relay: it starts the relay's program, and passes on messages, sockets, and replies that are some. Node's
 * channel ends the process that reads it on bytes and descriptors that a hostile peer may write, so the server has none to the relay.
 * When it ends, the server ends the relay; when the server ends, it ends the relay itself.
 *
 *      node broker.ts COUNT PROGRAM [ARGUMENT…] MARK     the program inherits the COUNT descriptors behind its channel
 *
 * Every process of the relay has the mark as its last argument, from the first on, so none is left of a jail that was not yet built.
 */
import { spawn } from "node:child_process";
import { closeSync } from "node:fs";
import type { Socket } from "node:net";
import { infoFdOfChild } from "../vmm/child.ts";
import { killJailOf, killMarked } from "../vmm/jail/jail-leftovers.ts";
import type { ToRelay } from "./messages.ts";
import { readReply } from "./replies.ts";
import { ReplyBudget } from "./reply-budget.ts";

/** Time for the relay to end after its channel has closed, from either side. */
const endMs = 2_000;
/** The end of its standard error that is passed on where it fails. */
const stderrTailBytes = 8_192;
const stderrDrainMs = 200;

const [count = "", program = "", ...args] = process.argv.slice(2);
const inherited = Array.from({ length: Number(count) }, (_, index) => infoFdOfChild + index);
const relay = spawn(program, args, { stdio: ["ignore", "ignore", "pipe", "ipc", ...inherited] });
for (const fd of inherited) closeSync(fd);
const budget = new ReplyBudget();
if (inherited.length === 0) process.send?.({ pid: relay.pid }); // bubblewrap tells it where there is a jail

let tail = Buffer.alloc(0);
relay.stderr?.on("data", (chunk: Buffer) => {
  tail = Buffer.concat([tail, chunk]).subarray(-stderrTailBytes);
});
relay.stderr?.on("error", () => {});

relay.once("error", (error) => {
  process.stderr.write(`${error.message}\n`);
  process.exit(1);
});
relay.once("exit", (code) => {
  const exit = () => exitWith(code ?? 1);
  if (relay.stderr?.readableEnded !== false) return exit();
  relay.stderr.once("end", exit);
  setTimeout(exit, stderrDrainMs); // what else has it open
});
relay.once("disconnect", () => setTimeout(end, endMs));
relay.on("message", (message: unknown, handle?: unknown) => {
  if (handle !== undefined) return end(); // a socket that listens would be one of this process; none has been accepted yet
  const reply = readReply(message);
  // The server ends both for a message that is none.
  const passed = reply !== undefined && budget.take(message) ? reply : { kind: "none" };
  if (process.connected) process.send?.(passed, () => {}); // the channel may close meanwhile
});

process.on("message", (message: ToRelay, socket?: Socket) => {
  stopReading(socket);
  const done = () => socket?.destroy();
  budget.asked(message);
  if (relay.connected) relay.send(message, socket, { keepOpen: true }, done);
  else done();
});
process.once("disconnect", () => {
  if (relay.connected) relay.disconnect();
  // Node tells no end of a channel that holds half a line, or a socket that the other side has not confirmed.
  setTimeout(end, endMs);
});

/** Ends this process and the relay. A relay that was taken over can hide its arguments, and not that bubblewrap is its parent. */
function end(): void {
  if (relay.pid !== undefined) killJailOf(relay.pid);
  exitWith(1);
}

/** Passes on the end of the relay's standard error, as text of a terminal that moves no cursor. */
function exitWith(code: number): never {
  const mark = args.at(-1);
  if (mark) killMarked(mark);
  if (code !== 0) process.stderr.write(tail.toString("latin1").replace(/[^\n\x20-\x7e]/g, "?"));
  process.exit(code);
}

/** Node reads a socket that it was sent, and `pause` lets it: what is read here would be missing in the relay. */
function stopReading(socket: Socket | undefined): void {
  (socket as { _handle?: { readStop(): void } } | undefined)?._handle?.readStop();
}
