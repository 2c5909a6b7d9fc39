/** Section "Files": read, write (both also as streams), list, mkdir, remove. */
import { Readable } from "node:stream";
import type { FastifyRequest } from "fastify";
import Type from "typebox";
import type { Agent } from "../../agent/agent.ts";
import { FileListing, ListBody, MadeDirectory, PathBody, WriteForm } from "../../wire/file.ts";
import { CapsuleParams } from "../../wire/schema.ts";
import { TeamSemaphore } from "../access/places.ts";
import { note } from "../audit-trail.ts";
import { onAnswered, patience, promptMs } from "../client-gone.ts";
import { boundaryOf } from "../multipart.ts";
import type { App, RouteContext } from "../route.ts";
import { toFileEntry } from "./file-entries.ts";
import { checkPath } from "./guest-path.ts";
import { receiveFile } from "./uploads.ts";

const bytesType = "application/octet-stream";
const Binary = Type.Unsafe<Buffer | Readable>({ type: "string", format: "binary" });
const Bytes = { content: { [bytesType]: { schema: Binary } } };
const config = { action: "files" as const, refuses: ["quota_exceeded" as const, "agent_error" as const] };
/** Listings of one team at once. Each can be tens of megabytes, from the guest's first entry to the reader's last. */
const listingsMax = 8;
/** Up to here a file is answered in one piece, with its length. */
const wholeMaxBytes = 64 * 1024;

export function fileRoutes(app: App, section: RouteContext): void {
  const { services, limits } = section;
  const door: Door = {
    enter: ({ identity }, id) => services.capsules.enter(identity.teamId, id, "files"),
    pathIn: (body) => checkPath(body.path, limits.path_max_bytes),
  };
  readRoutes(app, door);
  listRoute(app, door, section);
  changeRoutes(app, door);
  app.register(async (uploads: App) => writeRoutes(uploads, section));
}

/** What all of these routes begin with. */
interface Door {
  enter(request: FastifyRequest, id: string): Promise<Agent>;
  /** Throws invalid_request. */
  pathIn(body: { path: string }): string;
}

function readRoutes(app: App, { enter, pathIn }: Door): void {
  for (const [url, summary, asStream] of [
    ["/capsules/:id/files/read", "Read a file", false],
    ["/capsules/:id/files/stream/read", "Read a file, chunked", true],
  ] as const) {
    app.post(
      url,
      { config, schema: { summary, params: CapsuleParams, body: PathBody, response: { 200: Bytes } } },
      async (request, reply) => {
        const agent = await enter(request, request.params.id);
        const { body } = await agent.read(pathIn(request.body), patience(reply));
        return reply.type(bytesType).send(asStream ? body : await wholeIfSmall(body));
      },
    );
  }
}

function listRoute(app: App, { enter, pathIn }: Door, { limits }: RouteContext): void {
  const places = new TeamSemaphore(listingsMax);
  app.post(
    "/capsules/:id/files/list",
    {
      config,
      schema: {
        summary: "List a directory",
        params: CapsuleParams,
        body: ListBody(limits),
        response: { 200: FileListing },
      },
    },
    async (request, reply) => {
      const { depth = 1 } = request.body;
      const path = pathIn(request.body);
      const gone = patience(reply);
      onAnswered(reply, await places.acquire(request.identity.teamId, gone));
      const agent = await enter(request, request.params.id);
      const entries = await agent.list(path, depth, limits.list_entries_max, gone);
      return { entries: entries.map(toFileEntry) };
    },
  );
}

function changeRoutes(app: App, { enter, pathIn }: Door): void {
  app.post(
    "/capsules/:id/files/mkdir",
    {
      config: { ...config, audit: "file.mkdir", refuses: [...config.refuses, "no_space"] },
      schema: {
        summary: "Make a directory and those above it",
        params: CapsuleParams,
        body: PathBody,
        response: { 200: MadeDirectory },
      },
    },
    async (request, reply) => {
      note(request, { subject: request.body.path });
      const agent = await enter(request, request.params.id);
      return { entry: toFileEntry(await agent.mkdir(pathIn(request.body), patience(reply, promptMs))) };
    },
  );

  app.post(
    "/capsules/:id/files/remove",
    {
      config: { ...config, audit: "file.remove" },
      schema: {
        summary: "Remove a file or a directory tree",
        params: CapsuleParams,
        body: PathBody,
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      note(request, { subject: request.body.path });
      const agent = await enter(request, request.params.id);
      await agent.remove(pathIn(request.body), patience(reply));
      return reply.code(204).send(null);
    },
  );
}

/** In a scope of their own, where a body is not JSON and is not read before the handler does. */
function writeRoutes(app: App, { services: { capsules }, limits }: RouteContext): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser("*", (_request: FastifyRequest, _payload: unknown, done: (error: null) => void) =>
    done(null),
  );

  for (const [url, summary, fileMaxBytes] of [
    ["/capsules/:id/files/write", "Write a file of limited size", limits.file_write_max_bytes],
    ["/capsules/:id/files/stream/write", "Write a file of any size", Number.POSITIVE_INFINITY],
  ] as const) {
    app.post(
      url,
      {
        config: { ...config, audit: "file.write", refuses: [...config.refuses, "no_space"] },
        validatorCompiler: () => () => true, // the form checks itself while it arrives
        schema: {
          summary,
          params: CapsuleParams,
          consumes: ["multipart/form-data"],
          body: WriteForm,
          response: { 204: Type.Null() },
        },
      },
      async (request, reply) => {
        const { identity, params, raw, headers } = request;
        const agent = await capsules.enter(identity.teamId, params.id, "files");
        const boundary = boundaryOf(headers["content-type"]);
        const options = {
          pathMaxBytes: limits.path_max_bytes,
          fileMaxBytes,
          onPath: (path: string) => note(request, { subject: path }),
        };
        await receiveFile(agent, raw, boundary, options, patience(reply));
        return reply.code(204).send(null);
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
  const stream = Readable.from(continued(chunks, rest), { objectMode: false });
  stream.once("close", () => body.destroy());
  return stream;
}

async function* continued(chunks: Buffer[], rest: AsyncIterator<Buffer>): AsyncGenerator<Buffer> {
  yield* chunks;
  for (let next = await rest.next(); !next.done; next = await rest.next()) yield next.value;
}
