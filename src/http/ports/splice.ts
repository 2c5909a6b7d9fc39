/** The bytes of an upgraded connection, between its client's socket and the guest. The end of each direction is passed on alone. */
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import type { ChunkTurns } from "../access/chunk-turns.ts";
import { relayBytes } from "./byte-relay.ts";

/** How often bytes that have moved are told as activity. */
const activityMs = 1_000;

export interface SpliceOptions {
  client: Socket;
  guest: Duplex;
  teamId: string;
  turns: ChunkTurns;
  onBytes: (direction: "in" | "out", bytes: number) => void;
  /** Called at most once a second, after bytes have moved. */
  onActivity: () => void;
  /** Returns the part of the guest's bytes that the client is sent; default: all of them. */
  toClient?: ((chunk: Buffer) => Buffer) | undefined;
}

/** Resolves when both are closed. Destroying one destroys the other. */
export function splice({ client, guest, teamId, turns, onBytes, onActivity, toClient }: SpliceOptions): Promise<void> {
  let hasMoved = false;
  const activity = setInterval(() => {
    if (!hasMoved) return;
    hasMoved = false;
    onActivity();
  }, activityMs);
  const counted = (direction: "in" | "out") => (bytes: number) => {
    hasMoved = true;
    onBytes(direction, bytes);
  };
  const hasPassed = Promise.withResolvers<void>();
  relayBytes(client, guest, { teamId, turns, client, onBytes: counted("in"), onEnd: () => guest.end() });
  relayBytes(guest, client, {
    teamId,
    turns,
    client,
    onBytes: counted("out"),
    change: toClient,
    onEnd: () => {
      hasPassed.resolve();
      client.end();
    },
  });
  client.on("error", () => client.destroy());
  guest.on("error", () => client.destroy());
  const closed = Promise.all([client, guest].map((end) => closing(end)));
  client.once("close", () => guest.destroy());
  guest.once("close", () => {
    // Its last bytes may still wait for the client.
    if (guest.readableEnded) void hasPassed.promise.then(() => client.end(() => client.destroySoon()));
    else client.destroy();
  });
  if (guest.destroyed) client.destroy();
  client.resume();
  guest.resume();
  return closed.then(() => clearInterval(activity));
}

function closing(end: Duplex): Promise<void> {
  return new Promise((resolve) => {
    if (end.closed) resolve();
    else end.once("close", () => resolve());
  });
}
