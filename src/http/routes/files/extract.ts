/** Extracts archives. A section of its own, since its bodies are not JSON and the handler reads them itself. */
import type { FastifyRequest } from "fastify";
import Type from "typebox";
import type { AgentParts } from "../../../capsules/agent-parts.ts";
import { ExtractQuery } from "../../../wire/file.ts";
import { CapsuleParams } from "../../../wire/schema.ts";
import { addAuditDetails } from "../../audit-trail.ts";
import { requestSignal } from "../../client-gone.ts";
import { sendContinue } from "../../expect-continue.ts";
import { checkPath } from "../../guest-path.ts";
import { unpacked } from "../../gzip.ts";
import type { App } from "../../route.ts";
import type { RouteContext, Section } from "../../section.ts";
import { UploadBody } from "../../upload-body.ts";
import { validatorCompiler } from "../../validation.ts";

type CheckedPart = Parameters<typeof validatorCompiler>[0];

export const fileExtractSection: Section = { chapter: "Files", register };

function register(app: App, { services: { capsules }, limits, gzipSlots, chunkTurns }: RouteContext): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser("*", (_request: FastifyRequest, _payload: unknown, done: (error: null) => void) =>
    done(null),
  );
  app.post(
    "/capsules/:id/files/extract",
    {
      config: {
        action: "files",
        audit: { action: "file.extract" },
        refuses: ["quota_exceeded", "agent_error", "conflict", "no_space"],
      },
      bodyLimit: Number.MAX_SAFE_INTEGER,
      schema: {
        operationId: "extractArchive",
        summary: "Extract an archive into a directory",
        description:
          "A tar, as it is or compressed by gzip; which of the two, its first bytes say. Nothing outside the directory is " +
          "touched. What was written before a failure stays.",
        params: CapsuleParams,
        querystring: ExtractQuery,
        consumes: ["application/x-tar", "application/gzip"],
        body: Type.Unsafe<unknown>({ type: "string", format: "binary" }),
        response: { 204: Type.Null() },
      },
      // The guest checks the body as it arrives.
      validatorCompiler: (part: CheckedPart) => (part.httpPart === "body" ? () => true : validatorCompiler(part)),
    },
    async (request, reply) => {
      const { identity, params, query } = request;
      const body = new UploadBody(request, reply, chunkTurns);
      addAuditDetails(request, { subject: query.path });
      const signal = requestSignal(reply);
      const begin = () => gzipSlots.acquire(identity.teamId, signal);
      await capsules.use(identity.teamId, params.id, "files", async (agent) => {
        const path = checkPath(query.path, limits.path_max_bytes);
        capsules.requireWritable(identity.teamId);
        sendContinue(body.request);
        await receiveArchive(agent, body, { path, begin, signal });
      });
      return reply.code(204).send(null);
    },
  );
}

/** Resolves when the guest has extracted all. `begin`: see `unpacked`. */
async function receiveArchive(
  agent: AgentParts["files"],
  body: UploadBody,
  { path, begin, signal }: { path: string; begin: () => Promise<() => void>; signal: AbortSignal },
): Promise<void> {
  const upload = agent.extract(path);
  signal.addEventListener("abort", () => upload.cancel());
  try {
    for await (const piece of unpacked(body.chunks(), begin)) await upload.write(piece);
    await upload.end();
  } catch (error) {
    upload.cancel();
    throw error;
  }
}
