/** Changes directories: mkdir, remove. */
import Type from "typebox";
import { MadeDirectory, PathBody } from "../../../wire/file.ts";
import { CapsuleParams } from "../../../wire/schema.ts";
import { addAuditDetails } from "../../audit-trail.ts";
import { guestReplyMs, requestSignal } from "../../client-gone.ts";
import { entryBody } from "../../file-entry.ts";
import { checkPath } from "../../guest-path.ts";
import type { App } from "../../route.ts";
import type { RouteContext, Section } from "../../section.ts";

export const fileChangesSection: Section = { chapter: "Files", register };

function register(app: App, context: RouteContext): void {
  mkdirRoute(app, context);
  removeRoute(app, context);
}

function mkdirRoute(app: App, { services: { capsules }, limits }: RouteContext): void {
  app.post(
    "/capsules/:id/files/mkdir",
    {
      config: {
        action: "files",
        audit: { action: "file.mkdir" },
        refuses: ["quota_exceeded", "agent_error", "no_space"],
      },
      schema: {
        summary: "Make a directory and those above it",
        params: CapsuleParams,
        body: PathBody,
        response: { 200: MadeDirectory },
      },
    },
    async (request, reply) => {
      addAuditDetails(request, { subject: request.body.path });
      const made = await capsules.use(request.identity.teamId, request.params.id, "files", async (agent) => {
        const path = checkPath(request.body.path, limits.path_max_bytes);
        capsules.requireWritable(request.identity.teamId);
        return await agent.mkdir(path, requestSignal(reply, guestReplyMs));
      });
      return { entry: entryBody(made) };
    },
  );
}

function removeRoute(app: App, { services: { capsules }, limits }: RouteContext): void {
  app.post(
    "/capsules/:id/files/remove",
    {
      config: {
        action: "files",
        audit: { action: "file.remove" },
        refuses: ["quota_exceeded", "agent_error", "conflict"],
      },
      schema: {
        summary: "Remove a file or a directory tree",
        params: CapsuleParams,
        body: PathBody,
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      addAuditDetails(request, { subject: request.body.path });
      await capsules.use(request.identity.teamId, request.params.id, "files", (agent) =>
        agent.remove(checkPath(request.body.path, limits.path_max_bytes), requestSignal(reply)),
      );
      return reply.code(204).send(null);
    },
  );
}
