/** Files of a capsule: read, write (both also as streams), list, mkdir, remove. */
import { Readable } from "node:stream";
import type { FastifyRequest } from "fastify";
import Type from "typebox";
import type { GuestEntry } from "../../agent/agent.ts";
import type { AgentParts } from "../../capsules/agent-parts.ts";
import { type FileEntry, FileListing, ListBody, MadeDirectory, PathBody, WriteForm } from "../../wire/file.ts";
import { CapsuleParams } from "../../wire/schema.ts";
import { TeamSemaphore } from "../access/in-flight.ts";
import { addAuditDetails } from "../audit-trail.ts";
import { guestReplyMs, onClosed, requestSignal } from "../client-gone.ts";
import { JsonListing } from "../large-answer.ts";
import { boundaryOf } from "../multipart.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";
import { checkPath, formMaxBytes, receiveFile } from "../uploads.ts";

const bytesType = "application/octet-stream";
const Binary = Type.Unsafe<Buffer | Readable>({ type: "string", format: "binary" });
const Bytes = { content: { [bytesType]: { schema: Binary } } };
const config = { action: "files" as const, refuses: ["quota_exceeded" as const, "agent_error" as const] };
/** Listings of one team at once. */
export const listingsMax = 8;
/** A file up to this size is answered in one piece, with its length. */
const wholeMaxBytes = 64 * 1024;

export const filesSection: Section = { chapter: "Files", register };
export const fileUploadsSection: Section = { chapter: "Files", register: writeRoutes };

function register(app: App, context: RouteContext): void {
  const { services, limits } = context;
  const access: FileAccess = {
    use: ({ identity }, id, work) => services.capsules.use(identity.teamId, id, "files", work),
    pathIn: (body) => checkPath(body.path, limits.path_max_bytes),
    requireWritable: ({ identity }) => services.capsules.requireWritable(identity.teamId),
  };
  readRoutes(app, access);
  listRoute(app, access, context);
  changeRoutes(app, access);
}

type FileAgent = AgentParts["files"];

/** The first steps of these routes. */
interface FileAccess {
  use<T>(request: FastifyRequest, id: string, work: (agent: FileAgent) => Promise<T>): Promise<T>;
  /** Throws invalid_request. */
  pathIn(body: { path: string }): string;
  /** Throws no_space. */
  requireWritable(request: FastifyRequest): void;
}

function readRoutes(app: App, { use, pathIn }: FileAccess): void {
  for (const [url, summary, asStream] of [
    ["/capsules/:id/files/read", "Read a file", false],
    ["/capsules/:id/files/stream/read", "Read a file, chunked", true],
  ] as const) {
    app.post(
      url,
      {
        config: { ...config, audit: { action: "file.read", read: true } },
        schema: { summary, params: CapsuleParams, body: PathBody, response: { 200: Bytes } },
      },
      async (request, reply) => {
        addAuditDetails(request, { subject: request.body.path });
        return await use(request, request.params.id, async (agent) => {
          const { body } = await agent.read(pathIn(request.body), requestSignal(reply));
          return reply.type(bytesType).send(asStream ? body : await wholeIfSmall(body));
        });
      },
    );
  }
}

function listRoute(app: App, { use, pathIn }: FileAccess, { limits, answers }: RouteContext): void {
  const semaphore = new TeamSemaphore(listingsMax);
  app.post(
    "/capsules/:id/files/list",
    {
      config: { ...config, audit: { action: "file.list", read: true }, refuses: [...config.refuses, "no_capacity"] },
      schema: {
        summary: "List a directory",
        params: CapsuleParams,
        body: ListBody(limits),
        response: { 200: FileListing },
      },
    },
    async (request, reply) => {
      addAuditDetails(request, { subject: request.body.path });
      const { depth = 1 } = request.body;
      const path = pathIn(request.body);
      const signal = requestSignal(reply);
      const charge = answers.open(request.identity.teamId);
      const leave = await semaphore.acquire(request.identity.teamId, signal);
      onClosed(reply, () => {
        leave();
        charge.release();
      });
      return await use(request, request.params.id, async (agent) => {
        const listing = new JsonListing("entries", charge, entryBody);
        const { list_entries_max: entriesMax, listing_max_bytes: bytesMax } = limits;
        await agent.list({ path, depth, entriesMax, bytesMax }, listing, signal);
        return listing.send(reply);
      });
    },
  );
}

function changeRoutes(app: App, { use, pathIn, requireWritable }: FileAccess): void {
  app.post(
    "/capsules/:id/files/mkdir",
    {
      config: { ...config, audit: { action: "file.mkdir" }, refuses: [...config.refuses, "no_space"] },
      schema: {
        summary: "Make a directory and those above it",
        params: CapsuleParams,
        body: PathBody,
        response: { 200: MadeDirectory },
      },
    },
    async (request, reply) => {
      addAuditDetails(request, { subject: request.body.path });
      const made = await use(request, request.params.id, async (agent) => {
        const path = pathIn(request.body);
        requireWritable(request);
        return await agent.mkdir(path, requestSignal(reply, guestReplyMs));
      });
      return { entry: entryBody(made) };
    },
  );

  app.post(
    "/capsules/:id/files/remove",
    {
      config: { ...config, audit: { action: "file.remove" }, refuses: [...config.refuses, "conflict"] },
      schema: {
        summary: "Remove a file or a directory tree",
        params: CapsuleParams,
        body: PathBody,
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      addAuditDetails(request, { subject: request.body.path });
      await use(request, request.params.id, (agent) => agent.remove(pathIn(request.body), requestSignal(reply)));
      return reply.code(204).send(null);
    },
  );
}

/** In a section of their own, since their bodies are not JSON and the handler reads them itself. */
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
        config: { ...config, audit: { action: "file.write" }, refuses: [...config.refuses, "no_space"] },
        bodyLimit: Math.min(fileMaxBytes + formMaxBytes, Number.MAX_SAFE_INTEGER),
        validatorCompiler: () => () => true, // receiveFile checks the form as it arrives
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
        const options = {
          pathMaxBytes: limits.path_max_bytes,
          fileMaxBytes,
          onPath: (path: string) => addAuditDetails(request, { subject: path }),
        };
        await capsules.use(identity.teamId, params.id, "files", async (agent) => {
          capsules.requireWritable(identity.teamId);
          const boundary = boundaryOf(headers["content-type"]);
          await receiveFile(agent, raw, boundary, options, requestSignal(reply));
        });
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
  const stream = Readable.from(concatenated(chunks, rest), { objectMode: false });
  stream.once("close", () => body.destroy());
  return stream;
}

async function* concatenated(chunks: Buffer[], rest: AsyncIterator<Buffer>): AsyncGenerator<Buffer> {
  yield* chunks;
  for (let next = await rest.next(); !next.done; next = await rest.next()) yield next.value;
}

function entryBody(entry: GuestEntry): FileEntry {
  return {
    name: entry.name,
    path: entry.path,
    type: entry.type,
    size: entry.size,
    permissions: permissionsOf(entry.mode),
    owner: entry.owner,
    group: entry.group,
    modified_at: entry.mtime,
    symlink_target: entry.target,
  };
}

/** Indexed by the four highest bits of st_mode: fifo, character device, directory, block device, file, link, socket. */
const typeLetters = "?pc?d?b?-?l?s???";

/** As `ls -l` writes it. */
export function permissionsOf(mode: number): string {
  return (
    typeLetters.charAt((mode >> 12) & 15) +
    triple(mode >> 6, (mode & 0o4000) !== 0, "s") +
    triple(mode >> 3, (mode & 0o2000) !== 0, "s") +
    triple(mode, (mode & 0o1000) !== 0, "t")
  );
}

/** `special` takes the place of x: in lower case if x is set too, else in upper case. */
function triple(bits: number, isSpecial: boolean, special: string): string {
  const executes = (bits & 1) !== 0;
  const last = isSpecial ? (executes ? special : special.toUpperCase()) : executes ? "x" : "-";
  return (bits & 4 ? "r" : "-") + (bits & 2 ? "w" : "-") + last;
}
