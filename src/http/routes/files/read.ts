/** Reads files, whole or as a stream. */
import { Readable } from "node:stream";
import { PathBody } from "../../../wire/file.ts";
import { CapsuleParams } from "../../../wire/schema.ts";
import { addAuditDetails } from "../../audit-trail.ts";
import { Bytes, bytesType } from "../../bytes.ts";
import { RangeHeader, readFile } from "../../file-range.ts";
import { checkPath } from "../../guest-path.ts";
import type { App } from "../../route.ts";
import type { RouteContext, Section } from "../../section.ts";

/** A file up to this size is answered in one piece, with its length. */
const wholeMaxBytes = 64 * 1024;

export const fileReadsSection: Section = { chapter: "Files", register };

function register(app: App, { services: { capsules }, limits }: RouteContext): void {
  for (const [url, operationId, summary, asStream] of [
    ["/capsules/:id/files/read", "readFile", "Read a file", false],
    ["/capsules/:id/files/stream/read", "streamFile", "Read a file, chunked", true],
  ] as const) {
    app.post(
      url,
      {
        config: {
          action: "files",
          audit: { action: "file.read", read: true },
          headers: ["Accept-Ranges", "Content-Range"],
          refuses: ["quota_exceeded", "agent_error", "conflict", "range_not_satisfiable"],
        },
        schema: {
          operationId,
          summary,
          example: { path: "/etc/hostname" },
          params: CapsuleParams,
          headers: RangeHeader,
          body: PathBody,
          response: { 200: Bytes, 206: Bytes },
        },
      },
      async (request, reply) => {
        addAuditDetails(request, { subject: request.body.path });
        return await capsules.use(request.identity.teamId, request.params.id, "files", async (agent) => {
          const path = checkPath(request.body.path, limits.path_max_bytes);
          const file = await readFile(agent, path, request, reply);
          return reply.type(bytesType).send(asStream || file.isPart ? file.body : await wholeIfSmall(file.body));
        });
      },
    );
  }
}

async function wholeIfSmall(body: Readable): Promise<Buffer | Readable> {
  const chunks: Buffer[] = [];
  let size = 0;
  const rest: AsyncIterator<Buffer> = body[Symbol.asyncIterator]();
  while (size <= wholeMaxBytes) {
    const next = await rest.next();
    if (next.done) return Buffer.concat(chunks, size);
    chunks.push(next.value);
    size += next.value.length;
  }
  const stream = Readable.from(concatenated(chunks, rest), { objectMode: false });
  stream.once("close", () => body.destroy());
  return stream;
}

async function* concatenated(chunks: Buffer[], rest: AsyncIterator<Buffer>): AsyncGenerator<Buffer> {
  yield* chunks;
  for (let next = await rest.next(); !next.done; next = await rest.next()) yield next.value;
}
