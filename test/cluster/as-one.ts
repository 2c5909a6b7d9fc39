/** A cluster as the service of the conformance tests, whose requests come to hosts that do not hold what they are about. */
import type { Entry } from "../client.ts";
import type { Server } from "../server.ts";
import { Daemons, hostNames, noRoom } from "./daemons.ts";

export interface HostsAsOne extends AsyncDisposable {
  entry: Entry;
  /** The first host, which holds all capsules in the form `other`. */
  server: Server;
  daemons: Daemons;
}

/** The form of the share that runs with the group. */
export const usualForm = "other";
/** The form of the share that runs with CAPSULE_FAULTS=long. */
export const nextForm = "round";

/** Paths whose answers are about one host. */
const ofHost = ["/healthz", "/metrics"];

/**
 * `other`: requests come to the second host, which has room for no capsule, and the first one makes and holds them all. `round`: each
 * request comes to the next host. A request whose answer is about one host always comes to the first one.
 */
export async function hostsAsOne(form: string): Promise<HostsAsOne> {
  if (form !== "other" && form !== "round") throw new Error(`CAPSULE_TEST_CLUSTER is other or round, not ${form}`);
  const [holder, other] = hostNames;
  const daemons = await Daemons.start({
    isDirect: true,
    envOf: (name) => (form === "other" && name !== holder ? noRoom : {}),
  });
  const urlOf = (name: string) => daemons.host(name).server.url;
  let turn = 0;
  const next = () => hostNames[turn++ % hostNames.length]!;
  const entry: Entry = {
    urlFor: (request) => {
      if (request !== undefined && ofHost.includes(request.path)) return urlOf(holder);
      return urlOf(form === "round" ? next() : other);
    },
  };
  return {
    ...{ entry, daemons, server: daemons.host(holder).server },
    [Symbol.asyncDispose]: () => daemons[Symbol.asyncDispose](),
  };
}
