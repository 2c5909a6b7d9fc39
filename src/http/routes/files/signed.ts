/** Answers signed URLs: reads a file, or writes one from the raw body. */
import type { FastifyRequest } from "fastify";
import Type from "typebox";
import { SignedQuery } from "../../../wire/file-url.ts";
import { CapsuleParams } from "../../../wire/schema.ts";
import { addAuditDetails } from "../../audit-trail.ts";
import { Bytes, bytesType } from "../../bytes.ts";
import { requestSignal } from "../../client-gone.ts";
import { RangeHeader, readFile } from "../../file-range.ts";
import { checkPath } from "../../guest-path.ts";
import type { App } from "../../route.ts";
import type { RouteContext, Section } from "../../section.ts";
import { UploadBody } from "../../upload-body.ts";
import { receiveRaw } from "../../uploads.ts";

const url = "/capsules/:id/files/signed";
/** A browser runs nothing of an answer: the file's content is the guest's, and the origin is the API's. */
const policy = "sandbox; default-src 'none'";

export const signedUrlsSection: Section = { chapter: "Files", register };

function register(app: App, context: RouteContext): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser("*", (_request: FastifyRequest, _payload: unknown, done: (error: null) => void) =>
    done(null),
  );
  readRoute(app, context);
  writeRoute(app, context);
}

function readRoute(app: App, { services: { capsules }, limits }: RouteContext): void {
  app.get(
    url,
    {
      exposeHeadRoute: false,
      config: {
        action: "files",
        signed: true,
        audit: { action: "file.read", read: true },
        headers: ["Accept-Ranges", "Cache-Control", "Content-Disposition", "Content-Range", "Content-Security-Policy"],
        refuses: ["quota_exceeded", "agent_error", "conflict", "range_not_satisfiable"],
      },
      schema: {
        operationId: "readSignedFile",
        summary: "Read the file of a signed URL",
        params: CapsuleParams,
        querystring: SignedQuery,
        headers: RangeHeader,
        response: { 200: Bytes, 206: Bytes },
      },
    },
    async (request, reply) => {
      const { identity, params, query } = request;
      addAuditDetails(request, { subject: query.path });
      return await capsules.use(identity.teamId, params.id, "files", async (agent) => {
        const path = checkPath(query.path, limits.path_max_bytes);
        const { body } = await readFile(agent, path, request, reply);
        return reply
          .type(bytesType)
          .header("content-disposition", dispositionOf(path))
          .header("content-security-policy", policy)
          .send(body);
      });
    },
  );
}

function writeRoute(app: App, { services: { capsules }, limits, chunkTurns }: RouteContext): void {
  app.put(
    url,
    {
      config: {
        action: "files",
        signed: true,
        audit: { action: "file.write" },
        headers: ["Cache-Control"],
        refuses: ["quota_exceeded", "agent_error", "no_space"],
      },
      bodyLimit: Number.MAX_SAFE_INTEGER,
      validatorCompiler: () => () => true, // the query is signed, and the body is the file's content
      schema: {
        operationId: "writeSignedFile",
        summary: "Write the file of a signed URL",
        params: CapsuleParams,
        querystring: SignedQuery,
        consumes: [bytesType],
        body: Type.String({ format: "binary" }),
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      const { identity, params, query } = request;
      const body = new UploadBody(request, reply, chunkTurns);
      addAuditDetails(request, { subject: query.path });
      await capsules.use(identity.teamId, params.id, "files", async (agent) => {
        const path = checkPath(query.path, limits.path_max_bytes);
        capsules.requireWritable(identity.teamId);
        await receiveRaw(agent, body, path, requestSignal(reply));
      });
      return reply.code(204).send(null);
    },
  );
}

/** RFC 6266: a name in ASCII for old clients, and the whole one. */
export function dispositionOf(path: string): string {
  const name = path.slice(path.lastIndexOf("/") + 1) || "file";
  const plain = name.replace(/[^A-Za-z0-9._ -]/gu, "_");
  const encoded = encodeURIComponent(name).replace(
    /['()*]/g,
    (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`,
  );
  return `attachment; filename="${plain}"; filename*=UTF-8''${encoded}`;
}
