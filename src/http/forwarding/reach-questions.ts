/**
 * The question whether the asked host reaches the one that asks it, at the address that this one publishes. `capsule doctor` puts it over
 * the peer port, and the asked host tries a connection of its own: 204, or 502.
 */
import type { IncomingMessage, ServerResponse } from "node:http";

export const reachHeader = "x-capsule-reach";

/** Whether a connection to that host can be made and proves the cluster's secret, within the time of a handshake. */
export type Reach = (host: string) => Promise<boolean>;

/** Answers such a request; false: it is none. `host`: the one that asks, by the key of its connection. */
export function answerReach(
  request: IncomingMessage,
  response: ServerResponse,
  host: string | undefined,
  reach: Reach,
): boolean {
  if (request.headers[reachHeader] === undefined || host === undefined) return false;
  const answer = (status: number) => response.writeHead(status, status === 204 ? {} : { "content-length": 0 }).end();
  reach(host).then(
    (isReached) => answer(isReached ? 204 : 502),
    () => answer(500),
  );
  return true;
}
