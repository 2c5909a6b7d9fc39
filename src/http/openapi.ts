/**
 * The OpenAPI document, from the schemas that also check requests and serialize responses. A route's error responses
 * follow from its declaration: it needs a key unless it is open, its action needs a state, its body can be malformed.
 */
import { STATUS_CODES } from "node:http";
import swagger from "@fastify/swagger";
import type { RouteOptions } from "fastify";
import Type from "typebox";
import { type ErrorCode, statusOf } from "../wire/errors.ts";
import { requires } from "../wire/requirements.ts";
import { ErrorBody } from "../wire/schema.ts";
import { omittableFields } from "../wire/validation.ts";
import { type AnswerHeader, answerHeaders, answersBesides, headerComponents } from "./answer-headers.ts";
import { apiGuide } from "./api-guide.ts";
import { type App, chapters } from "./route.ts";

type Json = Record<string, unknown>;

declare module "fastify" {
  interface FastifySchema {
    /** A JSON body of the route. */
    example?: object;
  }
}

const anything = Type.Object({}, { additionalProperties: true });
const methodsWithBody = new Set(["POST", "PUT", "PATCH", "DELETE"]);

/** Call before the routes are declared. */
export function describeApi(app: App, version: string): void {
  app.register(swagger, {
    convertConstToEnum: false,
    openapi: {
      openapi: "3.1.0",
      info: { title: "Capsule", version, description: apiGuide },
      servers: [{ url: "/", description: "The server that has this document." }],
      tags: chapters.map((name) => ({ name })),
      components: {
        securitySchemes: {
          apiKey: { type: "apiKey", in: "header", name: "X-API-Key" },
          bearer: { type: "http", scheme: "bearer", description: "The same key." },
        },
      },
    },
    transform: ({ schema, url, route }) => {
      const { body, example, ...described } = schema ?? {};
      return {
        url,
        schema: {
          ...described,
          ...(body === undefined ? {} : { body: { ...withNulls(body), ...(example && { examples: [example] }) } }),
          tags: [chapterOf(route)],
          security: route.config?.open || route.config?.signed ? [] : [{ apiKey: [] }, { bearer: [] }],
          response: { ...successes(route), ...refusals(route) },
        },
      };
    },
    transformObject: (document) => ("openapiObject" in document ? finish(document.openapiObject) : {}),
  });
  app.register(async (root) => {
    let text: string | undefined;
    root.get(
      "/openapi.json",
      {
        config: { open: true, chapter: "Service" },
        schema: { operationId: "getOpenApi", summary: "This document", response: { 200: anything } },
      },
      (_request, reply) => {
        text ??= JSON.stringify(root.swagger());
        reply.header("content-type", "application/json; charset=utf-8").send(text);
      },
    );
  });
}

/** A body whose optional fields allow null; validation.ts drops them. */
function withNulls(body: unknown): object {
  const schema = body as { properties?: Record<string, { type?: string; enum?: unknown[] }> };
  const properties = { ...schema.properties };
  for (const name of omittableFields(schema)) {
    const { type, ...field } = properties[name] ?? {};
    if (type === undefined) continue;
    const values = field.enum === undefined ? {} : { enum: [...field.enum, null] };
    properties[name] = { ...field, ...values, type: [type, "null"].flat() } as never;
  }
  return { ...schema, properties };
}

function chapterOf({ url, config }: RouteOptions): string {
  if (config?.chapter === undefined) throw new Error(`${url} is in no section, so it has no chapter`);
  return config.chapter;
}

function successes({ schema, config = {} }: RouteOptions): Json {
  const entries = Object.entries((schema?.response ?? {}) as Record<string, object>);
  return Object.fromEntries(
    entries.map(([status, body]) => [
      status,
      { ...body, description: STATUS_CODES[status] ?? "", headers: marked(headersOf(schema, config)) },
    ]),
  );
}

function headersOf(schema: RouteOptions["schema"], { headers = [] }: { headers?: AnswerHeader[] }): AnswerHeader[] {
  return schema?.body === undefined ? headers : [...headers, "X-Ignored-Fields"];
}

/** As the plugin takes them; `finish` replaces them by references. */
function marked(names: readonly AnswerHeader[]): Json {
  return Object.fromEntries(names.map((name) => [name, { type: "string" }]));
}

/** Headers of refusals, by status. */
const refusalHeaders: Record<number, AnswerHeader[]> = {
  401: ["WWW-Authenticate"],
  416: ["Content-Range"],
  429: ["Retry-After"],
  503: ["Retry-After"],
};

/** Headers of a route that its refusals have too. */
const ofAllAnswers: ReadonlySet<AnswerHeader> = new Set(["Accept-Ranges", "Cache-Control"]);

/** Codes of a request that waits for a resume. */
const resumeRefusals: ErrorCode[] = ["conflict", "quota_exceeded", "agent_error", "no_capacity", "timeout"];

/** Error responses of a route, by status; codes with the same status share one. */
function refusals({ method, config = {}, schema }: RouteOptions): Json {
  const codes = new Set<ErrorCode>(config.refuses ?? []);
  // "unavailable" is the answer of a cluster whose database is away.
  if (!config.open) for (const code of ["unauthorized", "unavailable"] as const) codes.add(code);
  codes.add("quota_exceeded");
  // "agent_error": the row of a capsule that no host of the cluster holds is none that a host has written.
  if (config.action !== undefined) for (const code of ["not_found", "agent_error"] as const) codes.add(code);
  if (config.action !== undefined && requires[config.action] !== null) codes.add("invalid_state");
  if (config.action !== undefined && requires[config.action] === "resumable")
    for (const code of resumeRefusals) codes.add(code);
  if (schema?.body !== undefined || schema?.querystring !== undefined) codes.add("invalid_request");
  if ([method].flat().some((each) => methodsWithBody.has(each))) {
    for (const code of ["invalid_request", "request_timeout", "too_large", "unsupported_media_type"] as const)
      codes.add(code);
  }
  codes.add("internal_error");
  const responses: Json = {};
  for (const [status, group] of Map.groupBy(codes, (code) => statusOf[code])) {
    const headers = marked([
      ...(refusalHeaders[status] ?? []),
      ...(config.headers ?? []).filter((name) => ofAllAnswers.has(name)),
    ]);
    responses[status] = { ...ErrorBody, description: group.join(", "), headers };
  }
  return responses;
}

/** Moves schemas with a title to the components, and marks the bodies that may be omitted. */
function finish(document: object): object {
  const schemas: Json = {};
  const paths = lift((document as { paths: Json }).paths, schemas) as Record<string, Record<string, Json>>;
  for (const { requestBody, responses } of Object.values(paths).flatMap((operations) => Object.values(operations))) {
    if (requestBody !== undefined) (requestBody as Json).required = !isOptional(requestBody as Json);
    for (const [status, response] of Object.entries(responses as Record<string, Json>)) {
      if (status !== "101") response.headers = answerHeaders(Object.keys(response.headers ?? {}));
    }
  }
  const { components } = document as { components: Json };
  const besides = answersBesides({ $ref: "#/components/schemas/Error" });
  return { ...document, paths, components: { ...components, schemas, headers: headerComponents, responses: besides } };
}

function lift(value: unknown, schemas: Json): unknown {
  if (Array.isArray(value)) return value.map((each) => lift(each, schemas));
  if (typeof value !== "object" || value === null) return value;
  const lifted = Object.fromEntries(Object.entries(value).map(([key, each]) => [key, lift(each, schemas)]));
  if (typeof lifted.title !== "string" || lifted.type !== "object") return lifted;
  const { title, description: _, ...schema } = lifted;
  schemas[title] = schema;
  return { $ref: `#/components/schemas/${title}` };
}

function isOptional({ content }: Json): boolean {
  const media = (content as Record<string, { schema: { required?: string[] } }>)["application/json"];
  return media !== undefined && (media.schema.required ?? []).length === 0;
}
