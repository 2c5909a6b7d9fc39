/** `capsule forward`: local ports, or standard input and output, connected to servers in a capsule. */
import { once } from "node:events";
import { closeSync, openSync } from "node:fs";
import { createServer, type Server, type Socket } from "node:net";
import { devNull } from "node:os";
import type { Readable, Writable } from "node:stream";
import type { Capsule, PortConnection } from "../sdk/sdk.ts";
import { type Call, UsageError } from "./command.ts";
import { exitCodes, Failure } from "./failures.ts";
import { note, printJson, printLine } from "./screen.ts";
import { capsuleBy } from "./service.ts";

interface Forwarding {
  bind: string;
  /** 0: any free one. */
  local: number;
  port: number;
}

const portMax = 65_535;

/** `[BIND:][LOCAL:]PORT`. A word of digits before PORT is LOCAL. Throws UsageError. */
export function forwardingOf(text: string): Forwarding {
  const parts = text.match(/\[[^\]]*\]|[^:]+/g) ?? [];
  const [port, ...before] = parts.map((part) => part.replace(/^\[|\]$/g, "")).reverse();
  const isNumber = (part: string | undefined) =>
    part !== undefined && /^[0-9]{1,5}$/.test(part) && Number(part) <= portMax;
  const local = isNumber(before[0]) ? before.shift() : port;
  const [bind = "127.0.0.1", ...rest] = before;
  if (parts.join(":") !== text || !isNumber(port) || Number(port) === 0 || rest.length > 0)
    throw new UsageError(`${text} is not [BIND:][LOCAL:]PORT`);
  return { bind, local: Number(local), port: Number(port) };
}

export async function forward(call: Call): Promise<number> {
  const [id, ...words] = call.words as [string, ...string[]];
  const forwardings = words.map(forwardingOf);
  if (call.isSet("stdio")) {
    if (forwardings.length !== 1) throw new UsageError("--stdio takes one PORT");
    const capsule = await capsuleBy(await call.client({ streams: true }), id);
    try {
      await relay(await capsule.connect(forwardings[0]!.port), process.stdin, process.stdout, endOutput);
    } finally {
      process.stdin.destroy(); // an open one would keep the process
    }
    return exitCodes.done;
  }
  const capsule = await capsuleBy(await call.client({ streams: true }), id);
  const servers: Server[] = [];
  const stopped = Promise.withResolvers<void>();
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => stopped.resolve());
  try {
    for (const forwarding of forwardings) servers.push(await listen(capsule, forwarding, call.isJson));
    await stopped.promise;
  } finally {
    for (const server of servers) server.close();
  }
  return exitCodes.done;
}

async function listen(capsule: Capsule, { bind, local, port }: Forwarding, isJson: boolean): Promise<Server> {
  const server = createServer(
    { allowHalfOpen: true, pauseOnConnect: true },
    (socket) => void serve(capsule, port, socket),
  );
  try {
    await once(server.listen(local, bind), "listening");
  } catch (error) {
    throw new Failure(`cannot listen on ${bind}:${local}: ${(error as NodeJS.ErrnoException).code}`);
  }
  const address = server.address() as { address: string; port: number };
  if (isJson) await printJson({ bind: address.address, local: address.port, port });
  else
    await printLine(
      `${address.address.includes(":") ? `[${address.address}]` : address.address}:${address.port} -> ${capsule.id}:${port}`,
    );
  return server;
}

async function serve(capsule: Capsule, port: number, socket: Socket): Promise<void> {
  socket.on("error", () => {});
  try {
    const connection = await capsule.connect(port);
    if (socket.destroyed) connection.close();
    else await relay(connection, socket, socket, () => socket.end());
  } catch (error) {
    note(`port ${port}: ${(error as Error).message}`);
    socket.resetAndDestroy();
  }
}

/** Node leaves the descriptor open, so that the reader of a pipe would see no end. Its number is taken by /dev/null. */
function endOutput(): void {
  process.stdout.end(() => {
    closeSync(1);
    openSync(devNull, "w");
  });
}

/** Resolves when both directions have ended; `end` ends the one to `to`. A failure of one ends the other. */
async function relay(connection: PortConnection, from: Readable, to: Writable, end: () => void): Promise<void> {
  const up = async () => {
    const writer = connection.writable.getWriter();
    for await (const chunk of from) await writer.write(chunk as Uint8Array);
    await writer.close();
  };
  const down = async () => {
    for await (const chunk of connection.readable as unknown as AsyncIterable<Uint8Array>)
      if (!to.write(chunk)) await once(to, "drain");
    end();
  };
  try {
    await Promise.all([up(), down()]);
  } finally {
    connection.close();
  }
}
