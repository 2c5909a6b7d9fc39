/** Whether a bucket can be used: a chunk is written, listed, read and deleted. */
import { randomBytes } from "node:crypto";
import { messageOf } from "../wire/errors.ts";
import { BucketError } from "./objects.ts";
import { type SealedBucket, sha256Of } from "./sealed-bucket.ts";

const trialBytes = 64 * 1024;

/** Throws an Error of one sentence that says what to do where the bucket has refused to list objects, and none where it is away. */
export async function requireUsable({ bucket }: Pick<SealedBucket, "bucket">): Promise<void> {
  try {
    await bucket.list("trials/").next();
  } catch (error) {
    if (!(error instanceof BucketError) || error.isPassing) return;
    throw new Error(`${bucket.place} cannot be used, since listing objects failed: ${remedyOf(error)}`, {
      cause: error,
    });
  }
}

/** Throws an Error of one sentence that says what to do. */
export async function tryBucket(sealed: SealedBucket): Promise<void> {
  const { bucket } = sealed;
  const plain = Buffer.from(randomBytes(trialBytes));
  const object = `trials/${randomBytes(8).toString("hex")}`;
  const chunk = { object, bytes: plain.length, sha256: await sha256Of(plain) };
  const step = async (what: string, work: () => Promise<unknown>) => {
    await work().catch((error: unknown) => {
      throw new Error(`${bucket.place} cannot be used, since ${what} failed: ${remedyOf(error)}`, { cause: error });
    });
  };
  await step("writing an object", () => sealed.putChunk(chunk, plain));
  const writtenAt = Date.now();
  try {
    await step("reading an object", () => sealed.getChunk(chunk, { writtenAt }));
    await step("listing objects", async () => {
      for await (const name of bucket.list(object)) if (name === object) return;
      throw new Error("an object that was written is not in the list");
    });
  } catch (error) {
    await bucket.delete(object).catch(() => {});
    throw error;
  }
  await step("deleting an object", () => bucket.delete(object));
}

function remedyOf(error: unknown): string {
  if (!(error instanceof BucketError)) return messageOf(error);
  const { reason, httpStatus } = error;
  const found = remedies[reason];
  if (found !== undefined) return `${found} (${reason})`;
  if (reason === "late") return error.message;
  if (httpStatus === undefined) return `there is no connection: check its URL and the network (${reason})`;
  if (httpStatus === 403) return `let its key put, get, delete and list objects (${reason})`;
  if (httpStatus === 404) return `check its URL (${reason})`;
  if (httpStatus >= 300 && httpStatus < 400) return `it is at another address: check its URL and region (${reason})`;
  return error.message;
}

const remedies: Readonly<Record<string, string>> = {
  InvalidAccessKeyId: "it does not know the access key id",
  SignatureDoesNotMatch: "it has another secret for the access key id",
  NoSuchBucket: "make a bucket of this name, or check the URL",
  RequestTimeTooSkewed: "set this machine's clock",
  AuthorizationHeaderMalformed: "add its region to the URL, as ?region=NAME",
  QuotaExceeded: "it is full",
};
