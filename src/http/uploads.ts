/** Streams a file from a multipart form into a capsule, at the guest's pace and never whole in memory. */
import type { Upload } from "../agent/agent.ts";
import type { AgentParts } from "../capsules/agent-parts.ts";
import { CapsuleError } from "../wire/errors.ts";
import { accountMaxLength } from "../wire/file.ts";
import { sendContinue } from "./expect-continue.ts";
import { checkPath } from "./guest-path.ts";
import { announcesBody } from "./json-body.ts";
import { malformed, type Part, readParts } from "./multipart.ts";
import { AttributeFields } from "./upload-attributes.ts";
import type { UploadBody } from "./upload-body.ts";

export interface UploadOptions {
  pathMaxBytes: number;
  /** Infinity: no limit but the guest's disk. */
  fileMaxBytes: number;
  /** Called once with the form's path. */
  onPath(path: string): void;
}

/** Resolves when the file is closed and renamed in the guest. On failure the guest's old file is untouched. */
export async function receiveFile(
  agent: AgentParts["files"],
  body: UploadBody,
  boundary: string,
  options: UploadOptions,
  signal: AbortSignal,
): Promise<void> {
  const { request } = body;
  if (Number(request.headers["content-length"]) > options.fileMaxBytes + formMaxBytes) throw tooLarge(options);
  sendContinue(request);
  let path: string | undefined;
  let upload: Upload | undefined;
  const fields = new AttributeFields();
  let isLate = false; // the path stands behind the file
  signal.addEventListener("abort", () => upload?.cancel());
  try {
    for await (const part of readParts(body.chunks(), boundary)) {
      if (part.name === "path") {
        if (path !== undefined) throw malformed("it has two paths");
        path = checkPath(await textOf(part, 4 * options.pathMaxBytes), options.pathMaxBytes);
        options.onPath(path);
        isLate = upload !== undefined;
      } else if (part.name === "file") {
        if (upload !== undefined) throw malformed("it has two files");
        upload = agent.write(path, fields.takeNew());
        await copy(part, upload, options);
      } else if (fields.has(part.name)) {
        fields.set(part.name, await textOf(part, 4 * accountMaxLength));
      }
    }
    if (path === undefined) throw malformed("it has no field path");
    if (upload === undefined) throw malformed("it has no field file");
    const late = fields.takeNew();
    if (late !== undefined) upload.attributes(late);
    if (isLate) upload.target(path);
    await upload.end();
  } catch (error) {
    upload?.cancel();
    throw error;
  }
}

/** The same of a body that is the content. */
export async function receiveRaw(
  agent: AgentParts["files"],
  body: UploadBody,
  path: string,
  signal: AbortSignal,
): Promise<void> {
  const { request } = body;
  const upload = agent.write(path);
  signal.addEventListener("abort", () => upload.cancel());
  try {
    if (announcesBody(request)) {
      sendContinue(request);
      for await (const chunk of body.chunks()) await upload.write(chunk);
      if (request.complete === false) throw new CapsuleError("invalid_request", "the body ended early");
    }
    await upload.end();
  } catch (error) {
    upload.cancel();
    throw error;
  }
}

/** Bytes of a form besides the file: boundaries, headers, the path. */
export const formMaxBytes = 1024 * 1024;

async function copy({ body }: Part, upload: Upload, options: UploadOptions): Promise<void> {
  let size = 0;
  for await (const chunk of body) {
    size += chunk.length;
    if (size > options.fileMaxBytes) throw tooLarge(options);
    await upload.write(chunk);
  }
}

/** The field's text. A charset in which the same bytes are another text is refused, and so is one that is not known. */
async function textOf({ name, charset, body }: Part, maxBytes: number): Promise<string> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of body) {
    size += chunk.length;
    if (size > maxBytes) throw malformed(`its field ${name} is longer than ${maxBytes} bytes`);
    chunks.push(chunk);
  }
  const bytes = Buffer.concat(chunks);
  const text = decoded(bytes, "utf-8");
  if (text === undefined) throw malformed(`its field ${name} is not UTF-8`);
  if (charset !== undefined && decoded(bytes, charset) !== text)
    throw malformed(`its field ${name} is in the charset ${charset}; send it in UTF-8`);
  return text;
}

/** undefined: the bytes are not of this charset, or there is none of this name. */
function decoded(bytes: Buffer, charset: string): string | undefined {
  try {
    return new TextDecoder(charset, { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return undefined;
  }
}

function tooLarge({ fileMaxBytes }: UploadOptions): CapsuleError {
  return new CapsuleError(
    "too_large",
    `the file is larger than ${fileMaxBytes} bytes; files/stream/write has no such limit`,
  );
}
