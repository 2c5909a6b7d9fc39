/** The bucket of a cluster, as its commands and `capsule doctor` try it. */
import type { BucketAccess } from "../bucket/access.ts";
import type { Bucket } from "../bucket/bucket.ts";
import type { ToldClock } from "../bucket/objects.ts";
import { openBucket } from "../bucket/opening.ts";
import { tryBucket } from "../bucket/trial.ts";
import { readClusterFile } from "../cluster/cluster-file.ts";
import { messageOf } from "../wire/errors.ts";
import { clockOf } from "./clock-check.ts";

/** A command waits for the answer. */
const soon = { attempts: 2, attemptMs: 10_000 };

/** Throws an Error of one sentence that says what to do. */
export async function checkBucket(access: BucketAccess): Promise<Bucket> {
  const sealed = await openBucket(access, soon);
  await tryBucket(sealed);
  return sealed.bucket;
}

/** A finding of `capsule doctor`. */
interface BucketFinding {
  word: "ok" | "warning" | "missing";
  name: string;
  text: string;
}

/**
 * Nothing of a cluster without a bucket. A file that cannot be read stops the start of the server. `now`: this machine's clock, epoch
 * milliseconds.
 */
export async function bucketFindings(clusterFile: string, now = Date.now): Promise<BucketFinding[]> {
  const named = (word: BucketFinding["word"], text: string): BucketFinding[] => [{ word, name: "bucket", text }];
  let access: BucketAccess | undefined;
  try {
    access = readClusterFile(clusterFile).bucket;
  } catch (error) {
    return [{ word: "missing", name: "cluster", text: messageOf(error) }];
  }
  if (access === undefined) return [];
  try {
    const { clock } = await checkBucket(access);
    const usable = named("ok", `${access.url} takes, lists, returns and deletes objects`);
    return clock === undefined ? usable : [...usable, bucketClock(clock, now)];
  } catch (error) {
    return named("warning", messageOf(error));
  }
}

function bucketClock({ date, sentAt, answeredAt }: ToldClock, now: () => number): BucketFinding {
  const toWall = now() - performance.now();
  return clockOf("bucket", { from: date, to: date + 999 }, { from: toWall + sentAt, to: toWall + answeredAt });
}
