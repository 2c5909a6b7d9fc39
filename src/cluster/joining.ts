/** How a data folder becomes a host: it joins by its name and place, with the next epoch, or is refused in one sentence. */
import { rmSync } from "node:fs";
import { join } from "node:path";
import type { Log } from "../log.ts";
import { messageOf } from "../wire/errors.ts";
import type { ClusterFile } from "./cluster-file.ts";
import { isAnswer, Refusal, Unanswered } from "./failures.ts";
import {
  type HostFile,
  hasLeft,
  type KnownHost,
  leftName,
  newNonce,
  placeOf,
  readHostFile,
  writeHostFile,
} from "./host-file.ts";
import type { Me } from "./membership.ts";
import type { Postgres } from "./postgres.ts";
import { migrate } from "./schema/migration.ts";
import { largestShape } from "./shared-limits.ts";

/** The contents of a data folder, by ids and names. */
export interface Holdings {
  capsules: number;
  teams: { id: string; name: string }[];
  keys: { id: string; team: string }[];
  templates: { name: string; storage: string }[];
}

export interface JoiningOptions {
  sql: Postgres;
  file: ClusterFile;
  dataDir: string;
  /** Undefined: that of the folder's last join, or the machine's. */
  name: string | undefined;
  machineName: string;
  /** Where other hosts reach the peer port; without an address that of the connection to PostgreSQL. */
  peer: { address: string | undefined; port: number };
  version: string;
  holdings: () => Holdings;
  log: Log;
}

export interface Joined {
  me: Me;
  limits: Record<string, number>;
  /** The other hosts as the folder knows them, where the database was away. */
  hosts: readonly KnownHost[];
}

/** The highest format of a checkpoint's manifest that this program reads. */
const manifestFormat = 2;

/** Throws an Error of one sentence, and then has changed nothing. */
export async function joinCluster(options: JoiningOptions): Promise<Joined> {
  const { sql, file, dataDir, name, machineName, peer, log } = options;
  if (peer.port === 0)
    throw new Error("other hosts cannot reach a peer port of 0: set CAPSULE_PEER_PORT, or CAPSULE_PEER_URL=HOST:PORT");
  if (hasLeft(dataDir))
    throw new Error(
      `the data folder ${dataDir} has left its cluster: start it without CAPSULE_CLUSTER, or, to join again, remove ${join(dataDir, leftName)}`,
    );
  const known = readHostFile(dataDir);
  if (known !== undefined && known.cluster !== file.cluster)
    throw new Error(`the data folder ${dataDir} belongs to another cluster: use its cluster file, or an empty folder`);
  if (known !== undefined && name !== undefined && known.name !== name)
    throw new Error(`the data folder ${dataDir} has joined as host ${known.name}: set CAPSULE_HOST_NAME=${known.name}`);
  const own: HostFile = known ?? {
    ...{ cluster: file.cluster, name: hostName(name ?? machineName), nonce: newNonce(), epoch: 0, limits: {} },
  };
  try {
    await sql.transact((each) => migrate(each, file.cluster));
    if (own.epoch === 0) await requireKnown(sql, dataDir, options.holdings());
  } catch (error) {
    if (isReached(error) || own.epoch === 0) throw own.epoch === 0 ? unjoinable(error) : error;
    requirePlace(own, dataDir);
    log.error({ err: error }, "the cluster's database is away: this host starts as it was when it joined last");
    const { name: ownName, epoch, nonce, limits, hosts = [] } = own;
    return { me: { name: ownName, epoch, nonce }, limits, hosts };
  }
  try {
    return await joinAs(options, own, known);
  } catch (error) {
    if (!(error instanceof Refusal) || error.raised !== hasLeftCode) throw error;
  }
  // The command of the leave was ended, or this is a copy of a folder that has left.
  await requireKnown(sql, dataDir, options.holdings());
  return await joinAs(options, { ...own, nonce: newNonce(), epoch: 0 }, known);
}

const hasLeftCode = "CP018";

/** The row of the host, with its next epoch. The nonce is on disk first: the answer may be lost. `known`: the folder's file so far. */
async function joinAs(options: JoiningOptions, own: HostFile, known: HostFile | undefined): Promise<Joined> {
  const { sql, dataDir, peer, version } = options;
  if (own !== known) writeHostFile(dataDir, own);
  const [found] = await sql.query<{ address: string | null; limits: Record<string, number>; loads: object[] }>(
    `SELECT host(inet_client_addr()) AS address, limits,
       ARRAY(SELECT load FROM hosts WHERE state <> 'gone' AND name <> $1) AS loads FROM cluster`,
    [own.name],
    { what: "join the cluster" },
  );
  const limits = { ...found?.limits, ...largestShape((found?.loads ?? []) as Record<string, unknown>[]) };
  const place = placeOf(dataDir);
  const address = peer.address ?? found?.address ?? "127.0.0.1";
  try {
    const epoch = await sql.call<number>(
      "join_host",
      [own.name, own.nonce, place, own.epoch, address, peer.port, version, manifestFormat, {}],
      { what: "join the cluster" },
    );
    const joined: HostFile = { ...own, epoch, limits, place, ending: undefined };
    writeHostFile(dataDir, joined);
    return { me: { name: joined.name, epoch, nonce: joined.nonce }, limits: joined.limits, hosts: [] };
  } catch (error) {
    if (!isReached(error)) throw error;
    if (known === undefined) rmSync(join(dataDir, "host.json"), { force: true });
    else if (own !== known) writeHostFile(dataDir, known);
    if (error instanceof Refusal && error.raised === hasLeftCode) throw error;
    throw new Error(refusalOf(messageOf(error), (error as Refusal).raised, own.name));
  }
}

/** Throws for a copy of the folder, which would be the same host as the one that it is a copy of: no database tells them apart now. */
function requirePlace({ name, place }: HostFile, dataDir: string): void {
  if (place === undefined || place === placeOf(dataDir)) return;
  throw new Error(
    `the data folder ${dataDir} was copied or moved since it joined as host ${name}: start it when the cluster's database answers`,
  );
}

function refusalOf(message: string, raised: string | undefined, name: string): string {
  const remedies: Record<string, string> = {
    CP013: "join with an empty data folder under another name",
    CP014: "set another CAPSULE_HOST_NAME",
    CP015: `stop the other one, or, if it was moved, type capsule admin hosts moved ${name}`,
  };
  const remedy = raised === undefined ? undefined : remedies[raised];
  return remedy === undefined ? message : `${message}: ${remedy}`;
}

/** An answer of the database, or a sentence of this program, as opposed to a lost connection. */
function isReached(error: unknown): boolean {
  if (error instanceof Unanswered) return false;
  const isConnection = typeof (error as NodeJS.ErrnoException).code === "string" && !isAnswer(error);
  return error instanceof Refusal || (!isConnection && !/timeout|terminated|ended/i.test(messageOf(error)));
}

function unjoinable(error: unknown): Error {
  if (isReached(error)) return error as Error;
  return new Error(`the cluster cannot be joined, since its database cannot be reached: ${messageOf(error)}`);
}

function hostName(name: string): string {
  if (/^[a-zA-Z0-9]([a-zA-Z0-9.-]{0,61}[a-zA-Z0-9])?$/.test(name)) return name;
  throw new Error(
    `${JSON.stringify(name)} cannot be a host's name: set CAPSULE_HOST_NAME to letters, digits, dots and dashes`,
  );
}

/** A folder that joins brings nothing that the cluster does not have. */
async function requireKnown(
  sql: Postgres,
  dataDir: string,
  { capsules, teams, keys, templates }: Holdings,
): Promise<void> {
  const refuse = (what: string) =>
    new Error(
      `the data folder ${dataDir} has ${what}, which the cluster does not have: join with an empty data folder`,
    );
  if (capsules > 0) throw refuse(capsules === 1 ? "a capsule" : `${capsules} capsules`);
  const known = async (table: "teams" | "keys" | "templates", ids: string[], column = "id") => {
    const rows = await sql.query<{ id: string }>(
      `SELECT ${column} AS id FROM ${table} WHERE ${column} = ANY($1)`,
      [ids],
      { what: "join the cluster" },
    );
    return new Set(rows.map(({ id }) => id));
  };
  // A template that the cluster has retired is retired here, too, once the catalog is read.
  const storages = templates.map(({ storage }) => storage);
  const knownTemplates = await known("templates", storages, "storage");
  const template = templates.find(({ storage }) => !knownTemplates.has(storage));
  if (template !== undefined) throw refuse(`the template ${template.name}`);
  const knownTeams = await known(
    "teams",
    teams.map(({ id }) => id),
  );
  const team = teams.find(({ id }) => !knownTeams.has(id));
  if (team !== undefined) throw refuse(`the team ${team.name} (${team.id})`);
  const knownKeys = await known(
    "keys",
    keys.map(({ id }) => id),
  );
  const key = keys.find(({ id }) => !knownKeys.has(id));
  if (key !== undefined) throw refuse(`the key ${key.id} of team ${key.team}`);
}
