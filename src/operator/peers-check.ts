/** The ways between the hosts of a cluster, as `capsule doctor` tries them: from this host to each other one, and back. */
import { type ClusterFile, readClusterFile } from "../cluster/cluster-file.ts";
import { readHostFile } from "../cluster/host-file.ts";
import { type PeerAnswer, type PeerPlace, tryPeers } from "../cluster/peer-trial.ts";
import { Postgres } from "../cluster/postgres.ts";

interface PeerFinding {
  word: "ok" | "warning";
  name: string;
  text: string;
}

const hostsMax = 200;

/**
 * None where the cluster's file cannot be read, which its bucket's finding says, and for a folder that has not joined yet. `isServed`: the
 * server of this folder runs, so that the others can reach it.
 */
export async function peerFindings(clusterFile: string, dataDir: string, isServed: boolean): Promise<PeerFinding[]> {
  let file: ClusterFile;
  try {
    file = readClusterFile(clusterFile);
  } catch {
    return [];
  }
  const own = readHostFile(dataDir);
  if (own === undefined) return [];
  // Without the database the folder knows the hosts that it heard of last.
  const hosts = await hostsOf(file).catch((): PeerPlace[] => own.hosts ?? []);
  const others = hosts.filter(({ name }) => name !== own.name);
  const answers = await tryPeers(others, { hostName: own.name, secret: file.secret });
  const published = hosts.find(({ name }) => name === own.name);
  const wrong = others.flatMap((host, index) => {
    const text = failureOf(host, answers[index]!, isServed ? published : undefined);
    return text === undefined ? [] : [{ word: "warning" as const, name: "peers", text }];
  });
  const reached = others.filter((_, index) => answers[index] === "reaches" || answers[index] === "does not reach");
  if (wrong.length > 0 || reached.length === 0) return wrong;
  const names = reached.map(({ name }) => name).join(", ");
  const text = isServed
    ? `reached, and reach this host: ${names}`
    : `reached: ${names}; with the server running, doctor tries the way back, too`;
  return [{ word: "ok", name: "peers", text }];
}

async function hostsOf({ postgres }: ClusterFile): Promise<PeerPlace[]> {
  const sql = await Postgres.open({ url: postgres, ticks: () => performance.now() });
  try {
    const query = "SELECT name, address, port FROM hosts WHERE state <> 'gone' ORDER BY name LIMIT $1";
    return await sql.query<PeerPlace>(query, [hostsMax], { what: "list the hosts" });
  } finally {
    await sql.close();
  }
}

/** `published`: where the others reach this host; undefined: they cannot now. */
function failureOf(
  { name, address, port }: PeerPlace,
  answer: PeerAnswer,
  published: PeerPlace | undefined,
): string | undefined {
  const place = `host ${name} at ${address}:${port}`;
  if (answer === "unreached")
    return `${place} cannot be reached from here: start its server, or open that port for this machine`;
  if (answer === "unproven")
    return `${place} has not proven the cluster's secret: copy the cluster file of this host to it, and see to its CAPSULE_PEER_URL`;
  if (answer === "untold")
    return `${place} has not said whether it reaches this one: upgrade its program, and try again`;
  if (answer === "reaches" || published === undefined) return undefined;
  return `host ${name} does not reach this one at ${published.address}:${published.port}: open that port for it, or set CAPSULE_PEER_URL`;
}
