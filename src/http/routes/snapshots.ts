/** Templates: list, capture, delete. */
import type { FastifyRequest } from "fastify";
import Type from "typebox";
import type { TemplateView } from "../../templates/templates.ts";
import { IdempotencyHeaders } from "../../wire/idempotency.ts";
import {
  CaptureBody,
  CaptureQuery,
  ListTemplatesQuery,
  Template,
  TemplateList,
  TemplateParams,
} from "../../wire/template.ts";
import { addAuditDetails } from "../audit-trail.ts";
import { idOf } from "../gate.ts";
import { keptAnswer } from "../idempotency.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";
import type { CapsulesService } from "../services.ts";
import { timestamp } from "../timestamps.ts";

export const snapshotsSection: Section = { chapter: "Templates", register };

function register(app: App, context: RouteContext): void {
  listRoute(app, context);
  captureRoute(app, context);
  deleteRoute(app, context);
}

function listRoute(app: App, { services: { templates }, lists }: RouteContext): void {
  app.get(
    "/snapshots",
    {
      schema: {
        operationId: "listTemplates",
        summary: "List templates",
        querystring: ListTemplatesQuery,
        response: { 200: TemplateList },
      },
    },
    async ({ identity, query }, reply) => {
      const listed = await templates.list(identity.teamId, query.type);
      await lists.send(reply, listed, { encode: templateBody, schema: Template });
      return reply;
    },
  );
}

function captureRoute(app: App, { services: { templates, capsules } }: RouteContext): void {
  app.post(
    "/snapshots",
    {
      config: {
        audit: { action: "template.create", durable: true },
        capsuleField: "sandbox_id",
        idempotent: true,
        headers: ["Idempotent-Replayed"],
        refuses: [
          "not_found",
          "conflict",
          "invalid_state",
          "template_name_taken",
          "name_reserved",
          "agent_error",
          "no_space",
        ],
      },
      schema: {
        operationId: "captureTemplate",
        summary: "Capture a running capsule into a template; the capsule is destroyed",
        example: { sandbox_id: "web", name: "tools" },
        body: CaptureBody,
        querystring: CaptureQuery,
        headers: IdempotencyHeaders,
        response: { 201: Template },
      },
      // The capsule is named in the body: 404 and 409 come before the other fields' 400, as for an id in the path.
      preValidation: (request, _reply, done) => {
        permitCapture(request, capsules);
        done();
      },
    },
    async (request, reply) => {
      const { identity, body, query } = request;
      if (body.name !== undefined) addAuditDetails(request, { subject: body.name });
      using kept = keptAnswer(request, reply.code(201));
      const asked = { capsuleId: body.sandbox_id, name: body.name, overwrite: query.overwrite === "true" };
      const template = await templates.capture(
        identity.teamId,
        asked,
        (view) => kept.keep(templateBody(view)),
        (view) => kept.keyed(templateBody(view)),
      );
      addAuditDetails(request, { subject: template.name });
      return reply.send(templateBody(template));
    },
  );
}

function deleteRoute(app: App, { services: { templates } }: RouteContext): void {
  app.delete(
    "/snapshots/:name",
    {
      config: { audit: { action: "template.delete", durable: true }, refuses: ["not_found"] },
      schema: {
        operationId: "deleteTemplate",
        summary: "Delete a snapshot template",
        params: TemplateParams,
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      const { identity, params } = request;
      addAuditDetails(request, { subject: params.name });
      await templates.delete(identity.teamId, params.name);
      return reply.code(204).send(null);
    },
  );
}

/** Replaces the name of a capsule in the body by its id. Throws "not_found" and "invalid_state". */
function permitCapture(request: FastifyRequest, capsules: CapsulesService): void {
  const body = (request.body ?? {}) as { sandbox_id?: unknown };
  if (typeof body.sandbox_id !== "string" || body.sandbox_id === "") return;
  const id = idOf(request.identity.teamId, body.sandbox_id, capsules);
  body.sandbox_id = id;
  addAuditDetails(request, { capsuleId: id });
  capsules.permit(request.identity.teamId, id, "snapshot");
}

export function templateBody(view: TemplateView): Template {
  return {
    name: view.name,
    type: view.type,
    vcpus: view.vcpus,
    memory_mb: view.memoryMb,
    size_bytes: view.sizeBytes,
    created_at: timestamp(view.createdAt),
  };
}
