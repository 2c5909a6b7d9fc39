/** A file on its way from a form into a capsule: as it arrives, at the guest's pace, never whole in memory. */
import type { IncomingMessage } from "node:http";
import type { Agent, Upload } from "../../agent/agent.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { malformed, type Part, readParts } from "../multipart.ts";
import { checkPath } from "./guest-path.ts";

/** A client that sends nothing for so long is given up. */
const stallMs = 120_000;

export interface UploadOptions {
  pathMaxBytes: number;
  /** Infinity: as much as the guest takes. */
  fileMaxBytes: number;
  /** Told where the file is to go, as soon as that is known. */
  onPath(path: string): void;
}

/** Resolves when the file is closed and renamed in the guest. On failure the guest's old file is untouched. */
export async function receiveFile(
  agent: Agent,
  request: IncomingMessage,
  boundary: string,
  options: UploadOptions,
  abandoned: AbortSignal,
): Promise<void> {
  if (Number(request.headers["content-length"]) > options.fileMaxBytes + formMaxBytes) throw tooLarge(options);
  let path: string | undefined;
  let upload: Upload | undefined;
  abandoned.addEventListener("abort", () => upload?.cancel());
  try {
    for await (const part of readParts(arriving(request), boundary)) {
      if (part.name === "path") {
        if (path !== undefined) throw malformed("it has two paths");
        path = checkPath(await textOf(part, options.pathMaxBytes), options.pathMaxBytes);
        options.onPath(path);
        upload?.target(path);
      } else if (part.name === "file") {
        if (upload !== undefined) throw malformed("it has two files");
        upload = agent.write(path);
        await pour(part, upload, options);
      }
    }
    if (path === undefined) throw malformed("it has no field path");
    if (upload === undefined) throw malformed("it has no field file");
    await upload.end();
  } catch (error) {
    upload?.cancel();
    throw error;
  }
}

/** What a form of an acceptable file can measure beyond the file: boundaries, headers, the path. */
const formMaxBytes = 1024 * 1024;

async function pour({ body }: Part, upload: Upload, options: UploadOptions): Promise<void> {
  let size = 0;
  for await (const chunk of body) {
    size += chunk.length;
    if (size > options.fileMaxBytes) throw tooLarge(options);
    await upload.write(chunk);
  }
}

async function textOf({ name, body }: Part, maxBytes: number): Promise<string> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of body) {
    size += chunk.length;
    if (size > maxBytes) throw malformed(`its field ${name} is longer than ${maxBytes} bytes`);
    chunks.push(chunk);
  }
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Buffer.concat(chunks));
  } catch {
    throw malformed(`its field ${name} is not UTF-8`);
  }
}

/** The body's chunks. Leaving early does not destroy the request, whose answer is still to be sent. */
async function* arriving(request: IncomingMessage): AsyncGenerator<Buffer, void> {
  const chunks: AsyncIterator<Buffer> = request.iterator({ destroyOnReturn: false });
  try {
    for (;;) {
      const next = await inTime(chunks.next());
      if (next.done) return;
      yield next.value;
    }
  } finally {
    void chunks.return?.(); // behind a chunk that may never come
  }
}

/** The request is left whole for the answer; reading on to throw the rest away ends by a clock of its own. */
async function inTime<T>(chunk: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const stall = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(stalled()), stallMs);
  });
  return Promise.race([chunk, stall]).finally(() => clearTimeout(timer));
}

function stalled(): CapsuleError {
  return new CapsuleError("request_timeout", "the file stopped arriving");
}

function tooLarge({ fileMaxBytes }: UploadOptions): CapsuleError {
  return new CapsuleError(
    "too_large",
    `the file is larger than ${fileMaxBytes} bytes; files/stream/write has no such limit`,
  );
}
