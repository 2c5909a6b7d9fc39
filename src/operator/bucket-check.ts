/** The bucket of a cluster, as its commands and `capsule doctor` try it. */
import type { BucketAccess } from "../bucket/access.ts";
import { openBucket } from "../bucket/opening.ts";
import { tryBucket } from "../bucket/trial.ts";
import { readClusterFile } from "../cluster/cluster-file.ts";
import { messageOf } from "../wire/errors.ts";

/** A command waits for the answer. */
const soon = { attempts: 2, attemptMs: 10_000 };

/** Throws an Error of one sentence that says what to do. */
export async function checkBucket(access: BucketAccess): Promise<void> {
  await tryBucket(await openBucket(access, soon));
}

/** A finding of `capsule doctor`. */
interface BucketFinding {
  word: "ok" | "warning" | "missing";
  name: string;
  text: string;
}

/** Nothing of a cluster without a bucket. A file that cannot be read stops the start of the server. */
export async function bucketFindings(clusterFile: string): Promise<BucketFinding[]> {
  const named = (word: BucketFinding["word"], text: string): BucketFinding[] => [{ word, name: "bucket", text }];
  let access: BucketAccess | undefined;
  try {
    access = readClusterFile(clusterFile).bucket;
  } catch (error) {
    return [{ word: "missing", name: "cluster", text: messageOf(error) }];
  }
  if (access === undefined) return [];
  try {
    await checkBucket(access);
    return named("ok", `${access.url} takes, lists, returns and deletes objects`);
  } catch (error) {
    return named("warning", messageOf(error));
  }
}
