/** A bucket as the cluster's file describes it. The package of S3 is loaded where one is opened. */
import type { BucketAccess } from "./access.ts";
import { Bucket, type Retries } from "./bucket.ts";
import { SealedBucket } from "./sealed-bucket.ts";

export async function openBucket(access: BucketAccess, retries: Partial<Retries> = {}): Promise<SealedBucket> {
  const { S3Objects } = await import("./s3-objects.ts");
  return new SealedBucket(new Bucket(new S3Objects(access), retries), access.sealing);
}
