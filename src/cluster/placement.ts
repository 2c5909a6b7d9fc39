/**
 * Which host a new capsule is made on: the one that has its template; of several, this one, unless another has clearly more memory free.
 * A host's free memory is that of its last heartbeat, less the capsules that were sent there since. The chosen host decides for itself.
 */
import type { HostForCreate, NewCapsule, Placements } from "../http/forwarding.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { HostRow, Membership } from "./membership.ts";
import type { TemplatePlaces } from "./template-places.ts";

/** The part of a heartbeat that tells whether a host has room. */
export interface Room {
  free_mb: number;
  /** Its built-in images. */
  images: string[];
  /** It can fetch what a template needs. */
  fetches?: boolean;
  /** The largest shape of a capsule. */
  vcpus_max: number;
  memory_max_mb: number;
}

export interface PlacementOptions {
  membership: Pick<Membership, "me" | "hosts" | "alive" | "isExpired">;
  templates: Pick<TemplatePlaces, "known" | "find">;
  /** Hosts fetch a template that another one has made. */
  fetches?: boolean;
  /** This host's, now. */
  room: () => Room;
  /** In [0, 1); a test gives its own. */
  random?: () => number;
}

/** Hosts that are asked for one capsule. */
const askedMax = 3;
/** Other hosts that are compared with this one. */
const comparedMax = 3;
/** A start takes so much at once, and more later. */
const startMb = 64;
/** Capsules of one host that are counted; so many take 64 GiB. */
const sentMax = 1_024;
/** Another host is worth the way there when it has this much more free: a quarter, and half a GiB. */
const [worthFactor, worthMb] = [1.25, 512];

interface Up {
  row: HostRow;
  room: Room;
}

interface Candidate {
  /** Null: this host. */
  host: string | null;
  freeMb: number;
}

export class Placement implements Placements {
  readonly #options: PlacementOptions;
  /** For each capsule that was sent to a host the number of its heartbeat then; its next but one counts them itself. */
  readonly #sent = new Map<string, number[]>();

  constructor(options: PlacementOptions) {
    this.#options = options;
  }

  async hostsFor(wanted: NewCapsule): Promise<HostForCreate[]> {
    const { membership, templates, fetches = false } = this.#options;
    if (membership.isExpired) return [null]; // no host is known to be up, and this one can make none
    const { teamId, template } = wanted;
    const withImage = this.#withImage(template);
    const found =
      templates.known(teamId, template) ??
      (withImage.length > 0 ? undefined : (await templates.find(teamId, template))?.host);
    if (found === undefined) return this.#ranked(withImage, wanted).slice(0, askedMax);
    return fetches ? this.#withFiles(found).slice(0, askedMax) : [this.#reachable(found, template)];
  }

  /** Without a bucket: the host of the template that has replaced the one which was known here. */
  async othersFor({ teamId, template }: NewCapsule, asked: readonly HostForCreate[]): Promise<HostForCreate[]> {
    const { membership, templates, fetches = false } = this.#options;
    const isImage = templates.known(teamId, template) === undefined && this.#withImage(template).length > 0;
    if (fetches || membership.isExpired || isImage) return [];
    const found = await templates.find(teamId, template);
    if (found === undefined) return [];
    const host = found.host === membership.me.name ? null : found.host;
    return asked.includes(host) ? [] : [this.#reachable(found.host, template)];
  }

  /** For a capsule of an image on this host. Throws "no_capacity". */
  requireFit(wanted: Pick<NewCapsule, "vcpus" | "memoryMb">): void {
    const { vcpus_max, memory_max_mb } = this.#options.room();
    if (wanted.vcpus > vcpus_max || wanted.memoryMb > memory_max_mb) throw tooLarge(wanted);
  }

  sent(host: HostForCreate): () => void {
    const name = host ?? this.#options.membership.me.name;
    const row = this.#options.membership.alive(name);
    if (row === undefined) return () => {};
    const { heartbeat } = row;
    this.#sent.set(name, [...this.#counted(row), heartbeat].slice(-sentMax));
    let isCounted = true;
    return () => {
      const all = this.#sent.get(name);
      if (isCounted && all?.includes(heartbeat)) this.#sent.set(name, all.toSpliced(all.indexOf(heartbeat), 1));
      isCounted = false;
    };
  }

  #reachable(host: string, template: string): HostForCreate {
    const { membership } = this.#options;
    if (host === membership.me.name) return null;
    if (membership.alive(host) !== undefined) return host;
    const message = `cannot create a capsule: its template ${template} is on host ${host}, which cannot be reached now`;
    throw new CapsuleError("unavailable", message, { details: { host } });
  }

  /** The host that has a template's files, if it is up, and then those that can fetch them: its shape is known where they are. */
  #withFiles(host: string): HostForCreate[] {
    const first = host === this.#options.membership.me.name ? null : host;
    const up = this.#up();
    const ranked = this.#byMemory(up.filter(({ row, room }) => row.name === host || room.fetches === true));
    return up.some(({ row }) => row.name === host) ? [first, ...ranked.filter((each) => each !== first)] : ranked;
  }

  /** Hosts that are up and have this built-in image. */
  #withImage(name: string): Up[] {
    return this.#up().filter(({ room: { images } }) => images.includes(name));
  }

  #up(): Up[] {
    const { membership, room } = this.#options;
    const { me } = membership;
    const rows = membership.hosts().filter(({ isExpired, state }) => !isExpired && state === "up");
    return rows.map((row) => ({ row, room: row.name === me.name ? room() : roomOf(row.load) }));
  }

  /** In the order in which they are asked. Where none has the image: this one, whose refusal is the answer. */
  #ranked(hosts: Up[], wanted: NewCapsule): HostForCreate[] {
    if (hosts.length === 0) return [null];
    const fitting = hosts.filter(({ room }) => wanted.vcpus <= room.vcpus_max && wanted.memoryMb <= room.memory_max_mb);
    if (fitting.length === 0) {
      if (this.#isBeyondAll(wanted)) return [null]; // the size is invalid, as this host says
      throw tooLarge(wanted);
    }
    return this.#byMemory(fitting);
  }

  #byMemory(hosts: Up[]): HostForCreate[] {
    const { membership, random = Math.random } = this.#options;
    const own = membership.me.name;
    if (hosts.length === 0) return [null];
    const candidates = hosts.map(({ row, room }): Candidate => {
      const sentMb = this.#counted(row).length * startMb;
      return { host: row.name === own ? null : row.name, freeMb: room.free_mb - sentMb };
    });
    const mine = candidates.find(({ host }) => host === null);
    const others = shuffled(
      candidates.filter(({ host }) => host !== null),
      random,
    ).slice(0, comparedMax);
    const all = [...(mine === undefined ? [] : [mine]), ...others];
    const roomy = all.filter(({ freeMb }) => freeMb >= startMb);
    const asked = (roomy.length > 0 ? roomy : all).sort((a, b) => b.freeMb - a.freeMb);
    const isNear = mine !== undefined && asked.includes(mine) && !isWorth(asked[0]!, mine);
    if (isNear) return [null, ...asked.filter((each) => each !== mine).map(({ host }) => host)];
    return asked.map(({ host }) => host);
  }

  /** Whether no host of the cluster, up or not, has so many vCPUs, or so much memory. */
  #isBeyondAll({ vcpus, memoryMb }: NewCapsule): boolean {
    const rooms = [this.#options.room(), ...this.#options.membership.hosts().map(({ load }) => roomOf(load))];
    return rooms.every((room) => vcpus > room.vcpus_max) || rooms.every((room) => memoryMb > room.memory_max_mb);
  }

  /** Capsules that were sent to a host and are not in its heartbeat's figure yet. */
  #counted({ name, heartbeat: now }: HostRow): number[] {
    const counted = (this.#sent.get(name) ?? []).filter((then) => now >= then && now < then + 2);
    if (counted.length === 0) this.#sent.delete(name);
    else this.#sent.set(name, counted);
    return counted;
  }
}

function isWorth(other: Candidate, mine: Candidate): boolean {
  return other !== mine && other.freeMb > mine.freeMb * worthFactor + worthMb;
}

/** The limits of the API are those of the largest host, which may be away. */
function tooLarge({ vcpus, memoryMb }: Pick<NewCapsule, "vcpus" | "memoryMb">): CapsuleError {
  const shape = `${vcpus} vCPUs and ${memoryMb} MiB`;
  return new CapsuleError("no_capacity", `cannot create a capsule: no host that is up can have one of ${shape}`);
}

/** Another release's heartbeat may say less, or other things. */
function roomOf(load: Readonly<Record<string, unknown>>): Room {
  const numberOf = (name: "free_mb" | "vcpus_max" | "memory_max_mb") =>
    typeof load[name] === "number" ? load[name] : 0;
  const { images } = load;
  return {
    free_mb: numberOf("free_mb"),
    fetches: load.fetches === true,
    images: Array.isArray(images) ? images.filter((each) => typeof each === "string") : [],
    vcpus_max: numberOf("vcpus_max"),
    memory_max_mb: numberOf("memory_max_mb"),
  };
}

function shuffled<T>(of: readonly T[], random: () => number): T[] {
  const all = [...of];
  for (let at = all.length - 1; at > 0; at -= 1) {
    const other = Math.floor(random() * (at + 1));
    [all[at], all[other]] = [all[other]!, all[at]!];
  }
  return all;
}
