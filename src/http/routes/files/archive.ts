/** Files and directories as a tar, streamed. */
import type { Readable } from "node:stream";
import Type from "typebox";
import { ArchiveBody } from "../../../wire/file.ts";
import { CapsuleParams } from "../../../wire/schema.ts";
import { addAuditDetails } from "../../audit-trail.ts";
import { onClosed, requestSignal } from "../../client-gone.ts";
import { checkPath } from "../../guest-path.ts";
import { gzipped } from "../../gzip.ts";
import type { App } from "../../route.ts";
import type { RouteContext, Section } from "../../section.ts";

const tarType = "application/x-tar";
const gzipType = "application/gzip";
const Binary = { schema: Type.Unsafe<Readable>({ type: "string", format: "binary" }) };

export const fileArchiveSection: Section = { chapter: "Files", register };

function register(app: App, { services: { capsules }, limits, gzipSlots }: RouteContext): void {
  app.post(
    "/capsules/:id/files/archive",
    {
      config: {
        action: "files",
        audit: { action: "file.archive", read: true },
        refuses: ["quota_exceeded", "agent_error", "conflict"],
      },
      schema: {
        operationId: "archiveFiles",
        summary: "Pack files and directories into an archive",
        example: { paths: ["/srv/app"], format: "tar.gz" },
        description:
          "Sockets and devices are left out. A failure after the first byte closes the connection before the archive's end.",
        params: CapsuleParams,
        body: ArchiveBody,
        response: { 200: { content: { [tarType]: Binary, [gzipType]: Binary } } },
      },
    },
    async (request, reply) => {
      const { format = "tar", paths, base } = request.body;
      addAuditDetails(request, {
        subject: paths.length === 1 ? `${paths[0]}` : `${paths[0]} and ${paths.length - 1} more`,
      });
      const { teamId } = request.identity;
      const signal = requestSignal(reply);
      if (format === "tar.gz") onClosed(reply, await gzipSlots.acquire(teamId, signal));
      return await capsules.use(teamId, request.params.id, "files", async (agent) => {
        for (const path of base === undefined ? paths : [...paths, base]) checkPath(path, limits.path_max_bytes);
        const body = await agent.archive({ paths, base }, signal);
        if (format === "tar") return reply.type(tarType).send(body);
        return reply.type(gzipType).send(gzipped(body));
      });
    },
  );
}
