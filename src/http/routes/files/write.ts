/** Writes files from multipart forms. A section of its own, since its bodies are not JSON and the handler reads them itself. */
import type { FastifyRequest } from "fastify";
import Type from "typebox";
import { WriteForm } from "../../../wire/file.ts";
import { CapsuleParams } from "../../../wire/schema.ts";
import { addAuditDetails } from "../../audit-trail.ts";
import { requestSignal } from "../../client-gone.ts";
import { boundaryOf } from "../../multipart.ts";
import type { App } from "../../route.ts";
import type { RouteContext, Section } from "../../section.ts";
import { UploadBody } from "../../upload-body.ts";
import { formMaxBytes, receiveFile } from "../../uploads.ts";

export const fileWritesSection: Section = { chapter: "Files", register };

function register(app: App, { services: { capsules }, limits, chunkTurns }: RouteContext): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser("*", (_request: FastifyRequest, _payload: unknown, done: (error: null) => void) =>
    done(null),
  );

  for (const [url, operationId, summary, fileMaxBytes] of [
    ["/capsules/:id/files/write", "writeFile", "Write a file of limited size", limits.file_write_max_bytes],
    ["/capsules/:id/files/stream/write", "writeLargeFile", "Write a file of any size", Number.POSITIVE_INFINITY],
  ] as const) {
    app.post(
      url,
      {
        config: {
          action: "files",
          audit: { action: "file.write" },
          refuses: ["quota_exceeded", "agent_error", "conflict", "no_space"],
        },
        bodyLimit: Math.min(fileMaxBytes + formMaxBytes, Number.MAX_SAFE_INTEGER),
        validatorCompiler: () => () => true, // receiveFile checks the form as it arrives
        schema: {
          operationId,
          summary,
          params: CapsuleParams,
          consumes: ["multipart/form-data"],
          body: WriteForm,
          response: { 204: Type.Null() },
        },
      },
      async (request, reply) => {
        const { identity, params, headers } = request;
        const body = new UploadBody(request, reply, chunkTurns);
        const options = {
          pathMaxBytes: limits.path_max_bytes,
          fileMaxBytes,
          onPath: (path: string) => addAuditDetails(request, { subject: path }),
        };
        await capsules.use(identity.teamId, params.id, "files", async (agent) => {
          capsules.requireWritable(identity.teamId);
          const boundary = boundaryOf(headers["content-type"]);
          await receiveFile(agent, body, boundary, options, requestSignal(reply));
        });
        return reply.code(204).send(null);
      },
    );
  }
}
