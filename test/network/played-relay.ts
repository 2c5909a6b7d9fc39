/** A guest for all tests of a file, and the relay that they play for it. */
import { after, before } from "node:test";
import { type NetworkGuest, NetworkVms } from "./network-vm.ts";
import type { PeerStream, RelayPeer } from "./relay-peer.ts";

/** Starts both before the first test, tells of them, and ends them after the last one. */
export function playRelay(began: (guest: NetworkGuest, relay: RelayPeer) => void): void {
  let vms: NetworkVms;
  before(async () => {
    vms = await NetworkVms.open();
    const guest = await vms.start();
    began(guest, await guest.relay());
  });
  after(() => vms[Symbol.asyncDispose]());
}

/** The output of a program of Python, when it has ended. */
export async function printed(guest: NetworkGuest, script: string, ...args: string[]): Promise<string> {
  const program = guest.python(script, ...args);
  await program.exit();
  return program.text("stdout").trim() + program.text("stderr");
}

/** Connections that are asked for to this port. */
export function to(port: number): (request: PeerStream["request"]) => boolean {
  return (request) => request.kind === "connect" && request.port === port;
}
