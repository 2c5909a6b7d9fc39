/** Capsules: create, list, get, change, destroy, pause, resume, stop, start, ping. */
import Type, { type Static } from "typebox";
import type { CapsuleView } from "../../capsules/capsules.ts";
import type { PolicyChange } from "../../capsules/settings.ts";
import {
  Capsule,
  CapsuleList,
  CreateCapsuleBody,
  CreateWaitQuery,
  ListCapsulesQuery,
  UpdateCapsuleBody,
  WaitQuery,
  waitDefaultSec,
} from "../../wire/capsule.ts";
import { createDefaults } from "../../wire/defaults.ts";
import { IdempotencyHeaders } from "../../wire/idempotency.ts";
import { CapsuleParams } from "../../wire/schema.ts";
import { enterTurnAgain } from "../access/team-turns.ts";
import { addAuditDetails } from "../audit-trail.ts";
import { conditionsOf, cursorOf, placeOf } from "../capsule-query.ts";
import { onClosed, requestSignal } from "../client-gone.ts";
import { keptAnswer } from "../idempotency.ts";
import { JsonListing } from "../large-answer.ts";
import { releasedOf } from "../released.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";

export const capsulesSection: Section = { chapter: "Capsules", register };

function register(app: App, context: RouteContext): void {
  createRoute(app, context);
  readRoutes(app, context);
  updateRoute(app, context);
  changeRoutes(app, context);
}

function createRoute(app: App, { services: { capsules }, bodies, limits, turns }: RouteContext): void {
  app.post(
    "/capsules",
    {
      config: {
        audit: { action: "capsule.create", durable: true },
        placed: true,
        idempotent: true,
        headers: ["Idempotent-Replayed"],
        refuses: [
          "not_found",
          "forbidden",
          "conflict",
          "name_taken",
          "quota_exceeded",
          "agent_error",
          "no_capacity",
          "unavailable",
        ],
      },
      schema: {
        operationId: "createCapsule",
        summary: "Create a capsule",
        example: {
          template: "minimal",
          name: "web",
          labels: { env: "test" },
          envs: { CI: "1" },
          memory_mb: 512,
          timeout_sec: 600,
        },
        body: CreateCapsuleBody(limits),
        querystring: CreateWaitQuery(limits),
        headers: IdempotencyHeaders,
        response: { 201: Capsule },
      },
    },
    async (request, reply) => {
      const { identity, body, query } = request;
      using kept = keptAnswer(request, reply.code(201));
      const asked = {
        name: body.name,
        labels: body.labels,
        envs: body.envs,
        template: body.template ?? createDefaults.template,
        vcpus: body.vcpus ?? createDefaults.vcpus,
        memoryMb: body.memory_mb ?? createDefaults.memory_mb,
        diskMb: body.disk_mb,
        timeoutSec: body.timeout_sec ?? limits.timeout_default_sec,
        ...policiesOf(body),
        lifetimeSec: body.lifetime_sec ?? limits.lifetime_default_sec,
        retentionSec: body.retention_sec ?? limits.retention_default_sec,
        ...capsules.networks.parse(body.network ?? {}, limits),
      };
      const capsule = await capsules.create(identity.teamId, asked, ...keeping(kept, bodies));
      addAuditDetails(request, { capsuleId: capsule.id, subject: capsule.template });
      if (query.wait === undefined) return reply.send(bodies.of(capsule));
      const timeoutMs = (query.timeout ?? waitDefaultSec(limits)) * 1_000;
      const waited = await kept.unlessRefused(async () => {
        const view = await capsules.wait(identity.teamId, capsule.id, "running", timeoutMs, requestSignal(reply));
        await enterTurnAgain(turns, request);
        return view();
      });
      kept.replace(bodies.of(waited));
      return reply.send(bodies.of(waited));
    },
  );
}

/** The arguments of a create by which its answer is kept, here and by who decides about the capsule. */
function keeping(kept: ReturnType<typeof keptAnswer>, bodies: RouteContext["bodies"]) {
  return [
    (view: CapsuleView) => kept.keep(bodies.of(view)),
    (view: CapsuleView) => kept.keyed(bodies.of(view)),
  ] as const;
}

function readRoutes(
  app: App,
  { services: { capsules, released }, bodies, limits, lists, answers, turns }: RouteContext,
): void {
  app.get(
    "/capsules",
    {
      config: { headers: ["X-Next-Cursor"], refuses: ["no_capacity"] },
      schema: {
        operationId: "listCapsules",
        summary: "List the team's capsules, newest first",
        querystring: ListCapsulesQuery,
        response: { 200: CapsuleList },
      },
    },
    async ({ identity, query }, reply) => {
      const { limit = Number.POSITIVE_INFINITY, cursor } = query;
      const conditions = conditionsOf(query);
      const before = cursor === undefined ? undefined : placeOf(cursor, conditions);
      const charge = answers.open(identity.teamId);
      onClosed(reply, () => charge.release());
      const listing = new JsonListing(undefined, charge, (view: CapsuleView) => bodies.of(view));
      const end = await lists.fill(reply, listing, capsules.find(identity.teamId, conditions, { limit, before }));
      if (end !== undefined) reply.header("x-next-cursor", cursorOf(end, conditions));
      return listing.send(reply);
    },
  );

  app.get(
    "/capsules/:id",
    {
      config: { action: "read", ofRow: true },
      schema: {
        operationId: "getCapsule",
        summary: "Get a capsule, now or when it reaches a status",
        params: CapsuleParams,
        querystring: WaitQuery(limits),
        response: { 200: Capsule },
      },
    },
    (request, reply) => {
      const { identity, params, query } = request;
      const ofRow = releasedOf(request);
      if (query.wait === undefined) {
        reply.send(bodies.of(ofRow?.view ?? capsules.get(identity.teamId, params.id)));
        return;
      }
      const until = [query.wait, (query.timeout ?? waitDefaultSec(limits)) * 1_000, requestSignal(reply)] as const;
      const waited =
        ofRow === undefined || released === undefined
          ? capsules.wait(identity.teamId, params.id, ...until)
          : released.wait(ofRow, ...until).then((view) => () => view);
      return waited.then(async (view) => {
        await enterTurnAgain(turns, request);
        return bodies.of(view());
      });
    },
  );
}

/** In the order of an audit entry. */
const settable = [
  ...["name", "labels", "timeout_sec"],
  ...["on_timeout", "lifetime_sec", "on_expiry", "retention_sec", "auto_resume"],
] as (keyof Static<ReturnType<typeof UpdateCapsuleBody>>)[];

function updateRoute(app: App, { services: { capsules }, bodies, limits }: RouteContext): void {
  app.patch(
    "/capsules/:id",
    {
      config: {
        action: "update",
        audit: { action: "capsule.update", durable: true },
        refuses: ["name_taken"],
      },
      schema: {
        operationId: "updateCapsule",
        summary: "Change a capsule's name, labels or policies",
        example: { name: "api", labels: { env: "live", old: null }, timeout_sec: 0 },
        params: CapsuleParams,
        body: UpdateCapsuleBody(limits),
        response: { 200: Capsule },
      },
    },
    async (request) => {
      const { identity, params, body } = request;
      const { name, labels } = body;
      addAuditDetails(request, { subject: settable.filter((field) => body[field] !== undefined).join(", ") });
      return bodies.of(
        await capsules.update(identity.teamId, params.id, {
          ...(name === undefined ? {} : { name }),
          ...(labels === undefined ? {} : { labels }),
          timeoutSec: body.timeout_sec,
          ...policiesOf(body),
        }),
      );
    },
  );
}

const changes = {
  pause: "Pause a running capsule",
  resume: "Resume a paused capsule",
  stop: "Stop a running capsule: its programs end, its disk is kept",
  start: "Start a stopped capsule, or one in error that has its disk, from its disk",
};

function changeRoutes(app: App, { services: { capsules, released }, bodies }: RouteContext): void {
  app.delete(
    "/capsules/:id",
    {
      config: { action: "destroy", ofRow: true, audit: { action: "capsule.destroy", durable: true } },
      schema: {
        operationId: "destroyCapsule",
        summary: "Destroy a capsule",
        params: CapsuleParams,
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      const { identity, params } = request;
      const ofRow = releasedOf(request);
      if (ofRow === undefined) await capsules.destroy(identity.teamId, params.id);
      else await released?.destroy(ofRow);
      return reply.code(204).send(null);
    },
  );

  for (const action of ["pause", "resume", "stop", "start"] as const) {
    app.post(
      `/capsules/:id/${action}`,
      {
        config: {
          action,
          audit: { action: `capsule.${action}`, durable: true },
          refuses: ["conflict", "quota_exceeded", "agent_error", "no_capacity", "no_space"],
        },
        schema: {
          operationId: `${action}Capsule`,
          summary: changes[action],
          params: CapsuleParams,
          response: { 200: Capsule },
        },
      },
      async ({ identity, params }) => bodies.of(await capsules[action](identity.teamId, params.id)),
    );
  }

  app.post(
    "/capsules/:id/ping",
    {
      config: { action: "ping" },
      schema: {
        operationId: "pingCapsule",
        summary: "Keep a capsule alive",
        params: CapsuleParams,
        response: { 204: Type.Null() },
      },
    },
    ({ identity, params }, reply) => {
      capsules.ping(identity.teamId, params.id);
      reply.code(204).send(null);
    },
  );
}

function policiesOf(body: Static<ReturnType<typeof UpdateCapsuleBody>>): PolicyChange {
  return {
    onTimeout: body.on_timeout,
    lifetimeSec: body.lifetime_sec,
    onExpiry: body.on_expiry,
    retentionSec: body.retention_sec,
    autoResume: body.auto_resume,
  };
}
