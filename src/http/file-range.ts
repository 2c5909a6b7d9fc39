/** Reads a file or, with the header Range, a part of it (RFC 9110, section 14). */
import { Readable } from "node:stream";
import type { FastifyReply, FastifyRequest } from "fastify";
import Type from "typebox";
import type { ByteRange } from "../agent/agent.ts";
import { partOf } from "../agent/byte-range.ts";
import type { AgentParts } from "../capsules/agent-parts.ts";
import { CapsuleError } from "../wire/errors.ts";
import { requestSignal } from "./client-gone.ts";

export const RangeHeader = Type.Object({
  range: Type.Optional(
    Type.String({
      description:
        "`bytes=first-last`, `bytes=first-` or `bytes=-count`: one part of the file. Anything else is ignored, and all of it is the answer.",
    }),
  ),
});

/** A position beyond it lies behind the end of every file. */
const positionMax = Number.MAX_SAFE_INTEGER - 1;

/** Undefined: the whole file is meant. */
export function rangeOf(header: unknown): ByteRange | undefined {
  if (typeof header !== "string") return undefined;
  const [, first, last] = /^bytes=[ \t]*(\d*)-(\d*)[ \t]*$/i.exec(header) ?? [];
  if (first === undefined || last === undefined || first + last === "") return undefined;
  if (first === "") return { suffix: position(last) };
  if (last === "") return { first: position(first) };
  // Compared as they are written: two positions beyond every end are in order, too.
  return BigInt(last) < BigInt(first) ? undefined : { first: position(first), last: position(last) };
}

function position(digits: string): number {
  return Math.min(Number(digits), positionMax);
}

/**
 * Sets the status and the headers of a part. Throws range_not_satisfiable. A validator in If-Range matches nothing, since the
 * answers have none, so the whole file is sent.
 */
export async function readFile(
  agent: AgentParts["files"],
  path: string,
  { headers }: FastifyRequest,
  reply: FastifyReply,
): Promise<{ body: Readable; isPart: boolean }> {
  reply.header("accept-ranges", "bytes");
  const range = headers["if-range"] === undefined ? rangeOf(headers.range) : undefined;
  const { size, body } = await agent.read(path, requestSignal(reply), range);
  if (range === undefined) return { body, isPart: false };
  if (size === 0) {
    const content = await unlessEmpty(body); // files in /proc have the size 0 and content
    if (content !== undefined) return { body: content, isPart: false };
  }
  const { first, count } = partOf(range, size);
  if (count === 0) {
    body.destroy();
    reply.header("content-range", `bytes */${size}`);
    throw new CapsuleError(
      "range_not_satisfiable",
      `the range lies behind the end of the file, which has ${size} bytes`,
    );
  }
  reply
    .code(206)
    .header("content-range", `bytes ${first}-${first + count - 1}/${size}`)
    .header("content-length", count);
  return { body, isPart: true };
}

async function unlessEmpty(body: Readable): Promise<Readable | undefined> {
  const rest: AsyncIterator<Buffer> = body[Symbol.asyncIterator]();
  const { done, value } = await rest.next();
  if (done) return undefined;
  async function* whole() {
    yield value;
    for (let next = await rest.next(); !next.done; next = await rest.next()) yield next.value;
  }
  const stream = Readable.from(whole(), { objectMode: false });
  stream.once("close", () => body.destroy());
  return stream;
}
