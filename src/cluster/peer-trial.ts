/** Whether this host reaches the peer ports of the others, and they reach its own at the address that it publishes. */
import { request as send } from "node:http";
import { reachHeader } from "../http/forwarding/reach-questions.ts";
import { type Links, NotConnected } from "../http/forwarding.ts";
import type { KnownHost } from "./host-file.ts";
import { PeerLinks } from "./peer-links.ts";

export type PeerPlace = Pick<KnownHost, "name" | "address" | "port">;

/** `unproven`: something listens there, and the handshake has failed. `untold`: the host has not said whether it reaches this one. */
export type PeerAnswer = "reaches" | "does not reach" | "untold" | "unproven" | "unreached";

/** Longer than two handshakes: this host's, and the other one's for the way back. */
const answerMs = 10_000;
const atOnce = 16;

/** The answer of each host, in their order. Never rejects. */
export async function tryPeers(
  peers: readonly PeerPlace[],
  { hostName, secret }: { hostName: string; secret: Uint8Array },
): Promise<PeerAnswer[]> {
  const places = new Map(peers.map(({ name, address, port }) => [name, { host: name, address, port }]));
  const links = new PeerLinks({
    holders: { peer: (name) => places.get(name), peers: () => [...places.keys()], isAbsent: () => false },
    ...{ hostName, secret },
  });
  const answers: PeerAnswer[] = [];
  try {
    for (let from = 0; from < peers.length; from += atOnce) {
      const asked = peers.slice(from, from + atOnce).map(({ name }) => tryPeer(links, name));
      answers.push(...(await Promise.all(asked)));
    }
    return answers;
  } finally {
    links.close();
  }
}

async function tryPeer(links: Pick<Links, "take">, host: string): Promise<PeerAnswer> {
  const { agent, release } = links.take(host, undefined);
  const { promise, resolve, reject } = Promise.withResolvers<number | undefined>();
  const signal = AbortSignal.timeout(answerMs);
  const message = send({ agent, method: "GET", path: "/", headers: { [reachHeader]: "1" }, signal });
  message.once("response", (answer) => resolve(answer.resume().statusCode));
  message.once("error", reject);
  message.end();
  try {
    const status = await promise;
    return status === 204 ? "reaches" : status === 502 ? "does not reach" : "untold";
  } catch (error) {
    if (!(error instanceof NotConnected)) return "untold";
    const { code = "" } = (error.cause ?? {}) as NodeJS.ErrnoException;
    return /^(ERR_SSL|EPROTO)/.test(code) ? "unproven" : "unreached";
  } finally {
    release();
  }
}
