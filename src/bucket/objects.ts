/**
 * The port to a bucket: four requests of S3, each one attempt. Names are those of objects below the URL of the cluster's file. Answers
 * are read up to a limit, and are not trusted.
 */
import { CapsuleError } from "../wire/errors.ts";

export interface Objects {
  /** Where it is, for messages. */
  readonly place: string;
  /** As the last answer told; undefined: none did. */
  readonly clock?: ToldClock | undefined;
  put(name: string, bytes: Uint8Array<ArrayBuffer>, signal: AbortSignal): Promise<void>;
  /** Rejects as soon as there is a byte more than `maxBytes`. */
  get(name: string, maxBytes: number, signal: AbortSignal): Promise<Buffer<ArrayBuffer>>;
  /** An object that is not there is no error. */
  delete(name: string, signal: AbortSignal): Promise<void>;
  /** Names that begin with `prefix`, in order; at most 1 000, those behind `after`. */
  list(prefix: string, after: string | undefined, signal: AbortSignal): Promise<Listed>;
}

/** A time of the bucket's clock, and between which times of `performance.now()` it was told. */
export interface ToldClock {
  /** Epoch milliseconds, of whole seconds. */
  date: number;
  sentAt: number;
  answeredAt: number;
}

export interface Listed {
  names: string[];
  isTruncated: boolean;
}

/** A request that the bucket has not done. */
export class BucketError extends CapsuleError {
  /** The answer's; undefined where there was none. */
  readonly httpStatus: number | undefined;
  /** The bucket's code, such as NoSuchKey, or that of the connection, such as ECONNREFUSED. */
  readonly reason: string;

  constructor(
    message: string,
    { httpStatus, reason, cause }: { httpStatus?: number; reason: string; cause?: unknown },
  ) {
    super("unavailable", message, { cause });
    this.name = "BucketError";
    this.httpStatus = httpStatus;
    this.reason = reason;
  }

  /** There is no object of this name, or none yet. */
  get isMissing(): boolean {
    return this.httpStatus === 404 && this.reason !== "NoSuchBucket";
  }

  /** The same request may be done when it is sent again: no answer, a busy server, or bytes that were damaged on the way. */
  get isPassing(): boolean {
    if (this.httpStatus === undefined || this.httpStatus >= 500) return true;
    if (this.httpStatus === 408 || this.httpStatus === 429) return true;
    return this.httpStatus === 400 && ["BadDigest", "RequestTimeout", "IncompleteBody"].includes(this.reason);
  }
}

/** The bucket has other contents than were written there. */
export class DamagedObject extends CapsuleError {
  constructor(name: string, why: string, cause?: unknown) {
    super("agent_error", `the object ${JSON.stringify(name.slice(0, 600))} of the bucket cannot be used: ${why}`, {
      cause,
    });
    this.name = "DamagedObject";
  }
}

/** Letters, digits, and the punctuation that every bucket takes as it is; no part begins with a dot. */
const objectName = /^[a-zA-Z0-9_][a-zA-Z0-9._-]*(\/[a-zA-Z0-9_][a-zA-Z0-9._-]*)*$/;
const nameMax = 512;

export function isObjectName(value: unknown): value is string {
  return typeof value === "string" && value.length <= nameMax && objectName.test(value);
}
