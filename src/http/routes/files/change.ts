/** Changes files and directories: mkdir, remove, move, chmod, chown. */
import Type from "typebox";
import { CapsuleError } from "../../../wire/errors.ts";
import { ChmodBody, ChownBody, MoveBody, OneEntry, PathBody } from "../../../wire/file.ts";
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
  moveRoute(app, context);
  chmodRoute(app, context);
  chownRoute(app, context);
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
        operationId: "makeDirectory",
        summary: "Make a directory and those above it",
        example: { path: "/srv/app/data" },
        params: CapsuleParams,
        body: PathBody,
        response: { 200: OneEntry },
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
        operationId: "removeFile",
        summary: "Remove a file or a directory tree",
        example: { path: "/tmp/old" },
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

function moveRoute(app: App, { services: { capsules }, limits }: RouteContext): void {
  app.post(
    "/capsules/:id/files/move",
    {
      config: {
        action: "files",
        audit: { action: "file.move" },
        refuses: ["quota_exceeded", "agent_error", "conflict", "no_space"],
      },
      schema: {
        operationId: "moveFile",
        summary: "Move a file or a directory tree, across file systems too",
        example: { from: "/tmp/a.txt", to: "/root/a.txt", overwrite: true },
        params: CapsuleParams,
        body: MoveBody,
        response: { 200: OneEntry },
      },
    },
    async (request, reply) => {
      const { identity, params, body } = request;
      addAuditDetails(request, { subject: `${body.from} → ${body.to}` });
      const moved = await capsules.use(identity.teamId, params.id, "files", (agent) => {
        const from = checkPath(body.from, limits.path_max_bytes, "from");
        const to = checkPath(body.to, limits.path_max_bytes, "to");
        return agent.move({ from, to, overwrite: body.overwrite ?? false }, requestSignal(reply));
      });
      return { entry: entryBody(moved) };
    },
  );
}

function chmodRoute(app: App, { services: { capsules }, limits }: RouteContext): void {
  app.post(
    "/capsules/:id/files/chmod",
    {
      config: {
        action: "files",
        audit: { action: "file.chmod" },
        refuses: ["quota_exceeded", "agent_error", "conflict"],
      },
      schema: {
        operationId: "changeMode",
        summary: "Set the mode of a file or a directory tree",
        example: { path: "/root/run.sh", mode: "755" },
        params: CapsuleParams,
        body: ChmodBody,
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      const { identity, params, body } = request;
      addAuditDetails(request, { subject: body.path });
      await capsules.use(identity.teamId, params.id, "files", (agent) => {
        const path = checkPath(body.path, limits.path_max_bytes);
        const mode = Number.parseInt(body.mode, 8);
        return agent.chmod(path, mode, body.recursive ?? false, requestSignal(reply));
      });
      return reply.code(204).send(null);
    },
  );
}

function chownRoute(app: App, { services: { capsules }, limits }: RouteContext): void {
  app.post(
    "/capsules/:id/files/chown",
    {
      config: {
        action: "files",
        audit: { action: "file.chown" },
        refuses: ["quota_exceeded", "agent_error", "conflict"],
      },
      schema: {
        operationId: "changeOwner",
        summary: "Set the owner and group of a file or a directory tree",
        example: { path: "/srv/app", owner: "user", recursive: true },
        params: CapsuleParams,
        body: ChownBody,
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      const { identity, params, body } = request;
      const { owner, group, recursive = false } = body;
      addAuditDetails(request, { subject: body.path });
      await capsules.use(identity.teamId, params.id, "files", (agent) => {
        if (owner === undefined && group === undefined)
          throw new CapsuleError("invalid_request", "an owner or a group is needed", { details: { field: "owner" } });
        const path = checkPath(body.path, limits.path_max_bytes);
        return agent.chown(path, { owner, group }, recursive, requestSignal(reply));
      });
      return reply.code(204).send(null);
    },
  );
}
