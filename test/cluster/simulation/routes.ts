/** The way of a request to the host that holds its capsule, which may have to acquire it first: as gate, forwarder and peer port have it. */

import type { Need, ReleasedCapsule } from "../../../src/http/released.ts";
import { CapsuleError } from "../../../src/wire/errors.ts";
import type { Action } from "../../../src/wire/requirements.ts";
import type { Daemon } from "./host.ts";
import { team } from "./model.ts";
import type { World } from "./world.ts";

/** Nobody tells the client, or the other host: its connection has ended. */
export class Lost extends Error {}

export interface Request<T> {
  id: string;
  action: Action;
  work: (holder: Daemon) => Promise<T>;
  /** The row of a released capsule is all that it needs. */
  ofRow?: (entry: Daemon, capsule: ReleasedCapsule) => Promise<T>;
}

type Taken = { host: string | null } | "elsewhere";

const wrongHost = Symbol();
const looksMax = 3;
/** A host that is asked to acquire, and is not reached. */
const ofHost = new Set(["conflict", "no_space", "no_capacity", "unavailable", "agent_error"]);

export async function routed<T>(world: World, entry: Daemon, request: Request<T>): Promise<T> {
  const { id } = request;
  const { locations, acquiring } = entry.cluster;
  for (let misdirected = 0, looks = 1; looks <= looksMax; looks++) {
    const place = entry.places.isHere(team, id) ? { at: "here" as const } : await locations.find(team, id);
    if (place.at === "here") return await atHolder(entry, request);
    if (place.at === "nowhere") throw missing(id);
    if (place.at === "coming") {
      await acquiring.coming(team, id);
      continue;
    }
    if (place.at === "unavailable") break;
    let { host } = place as { host: string | null };
    if (place.at === "released") {
      if (request.ofRow !== undefined) return await request.ofRow(entry, place.capsule);
      const need = entry.cluster.released.needOf(place.capsule, request.action, true);
      const taken = await placed(world, entry, place.capsule, need);
      if (taken === "elsewhere") continue;
      host = taken.host;
    }
    if (host === null) return await atHolder(entry, request);
    if (locations.peer(host) === undefined) break;
    const answer = await world
      .askPeer<T | symbol>(entry, host, (holder) => passedOn(holder, request))
      .catch((error) => {
        if (error instanceof Lost) locations.forget(team, id);
        throw error;
      });
    if (answer !== wrongHost) return answer as T;
    locations.forget(team, id);
    if (++misdirected > 1) break;
  }
  throw new CapsuleError("unavailable", `the host of capsule ${id} cannot be reached`);
}

/** One host after the other is asked to acquire the capsule, as ReleasedRequests has it. */
export async function placed(world: World, entry: Daemon, capsule: ReleasedCapsule, need: Need): Promise<Taken> {
  const { id } = capsule;
  let refused: unknown;
  const hosts = entry.cluster.released.hostsFor(capsule);
  if (world.scheduler.chance(0.5)) hosts.reverse(); // so that not most of them stay where they are
  for (const host of hosts) {
    try {
      const acquire = (at: Daemon) => at.cluster.released.acquire({ id, need });
      const isHeld = host === null ? await acquire(entry) : await world.askPeer(entry, host, acquire);
      return isHeld ? { host } : "elsewhere";
    } catch (error) {
      if (!(error instanceof Lost) && !(error instanceof CapsuleError && ofHost.has(error.code))) throw error;
      refused = error;
    }
  }
  if (refused instanceof CapsuleError) throw refused;
  throw new CapsuleError("unavailable", `no host that could hold capsule ${id} can be reached`);
}

async function passedOn<T>(holder: Daemon, request: Request<T>): Promise<T | symbol> {
  const { id } = request;
  const { acquiring, locations } = holder.cluster;
  if (!holder.places.isHere(team, id)) {
    await acquiring.coming(team, id);
    await locations.leaving(team, id);
  }
  return holder.places.isHere(team, id) ? await atHolder(holder, request) : wrongHost;
}

/** A capsule that has left in the middle of a request is not one that was destroyed. */
async function atHolder<T>(holder: Daemon, { id, work }: Request<T>): Promise<T> {
  try {
    return await work(holder);
  } catch (error) {
    const isMissing = error instanceof CapsuleError && error.code === "not_found";
    if (!isMissing || !holder.cluster.released.hasLeft(id)) throw error;
    throw new CapsuleError("unavailable", `capsule ${id} has left this host`);
  }
}

function missing(id: string): CapsuleError {
  return new CapsuleError("not_found", `there is no capsule ${id}`);
}
