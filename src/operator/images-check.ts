/** The images of a host against those of the cluster's bucket, as `capsule doctor` compares them: two builds of one recipe have one hash. */
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { readClusterFile } from "../cluster/cluster-file.ts";
import { Postgres } from "../cluster/postgres.ts";
import { loadImage } from "../host/images/images.ts";

interface ImageFinding {
  word: "ok" | "warning";
  name: string;
  text: string;
}

const about = { what: "list the images of the bucket" };

/** None without a bucket, and where the file or the database cannot be read, which other findings say. */
export async function imageFindings(clusterFile: string, dataDir: string): Promise<ImageFinding[]> {
  const own = imagesOf(dataDir);
  try {
    const { postgres, bucket } = readClusterFile(clusterFile);
    if (bucket === undefined) return [];
    const sql = await Postgres.open({ url: postgres, ticks: () => performance.now() });
    try {
      const query = "SELECT key, sha256 FROM artifacts WHERE kind = 'image' AND key = ANY($1) AND sha256 IS NOT NULL";
      const rows = await sql.query<{ key: string; sha256: string }>(query, [[...own.keys()]], about);
      return rows.map(({ key, sha256 }) => findingOf(key, own.get(key) === sha256));
    } finally {
      await sql.close();
    }
  } catch {
    return [];
  }
}

/** The hash of each current image's root disk, by the key that the image has in the bucket. */
function imagesOf(dataDir: string): Map<string, string> {
  const found = new Map<string, string>();
  for (const name of namesIn(join(dataDir, "images")))
    try {
      const { hash, manifest } = loadImage(dataDir, name);
      found.set(`${name}/${hash}`, manifest.files["root.ext4"].sha256);
    } catch {} // an image that is missing or damaged has a finding of its own
  return found;
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}

function findingOf(key: string, isSame: boolean): ImageFinding {
  if (isSame) return { word: "ok", name: "images", text: `${key.split("/")[0]} is the bucket's` };
  const text = `image ${key} has other bytes here than in the bucket: its capsules cannot leave this host, nor be captured; docs/operations/cluster.md, images, has the remedy`;
  return { word: "warning", name: "images", text };
}
