/**
 * The relay: one process for all capsules of a server, its child. It decides what they may reach, and dials. It ends when its channel
 * to the server closes.
 */
import type { Socket } from "node:net";
import { TcpDialler } from "./dialler.ts";
import type { FromRelay, ToRelay } from "./messages.ts";
import { OwnAddresses } from "./own-addresses.ts";
import { Runs } from "./runs.ts";

const send = (message: FromRelay) => {
  if (process.connected) process.send?.(message, () => {}); // the channel may close meanwhile
};

const runs = new Runs({ dialler: new TcpDialler(), ownAddresses: new OwnAddresses(), send });
process.on("message", (message: ToRelay, socket?: Socket) => runs.take(message, socket));
process.once("disconnect", () => process.exit(0));
send({ kind: "ready" });
