/** A query has only parameters that its route declares in `schema.querystring`; any other is refused. */
import { parse } from "node:querystring";
import type { FastifyRequest, preValidationHookHandler, RouteOptions } from "fastify";
import Type from "typebox";
import { CapsuleError } from "../wire/errors.ts";

/** Longest part of a parameter's name in a message. */
const shownNameMax = 60;
const noParameters = Type.Object({});
/** Parameters of a query that are read; more than any path takes. */
const parametersMax = 64;

/** A query of 16 KiB can have thousands of parameters, and is parsed before its key is looked at. */
export function parseQuery(text: string): Record<string, unknown> {
  return parse(text, "&", "=", { maxKeys: parametersMax });
}

/** For the hook `onRoute`. The check comes behind those of key, capsule and state, and before those of the body's fields. */
export function closeQuery(route: RouteOptions): void {
  const querystring = (route.schema?.querystring ?? noParameters) as { properties?: object };
  const known = Object.keys(querystring.properties ?? {});
  const refuse: preValidationHookHandler = (request, _reply, done) => {
    const error = unknownParameter(request, known);
    if (error === undefined) done();
    else done(error);
  };
  route.schema = { ...route.schema, querystring };
  route.preValidation = [refuse, ...[route.preValidation ?? []].flat()];
}

function unknownParameter({ query }: FastifyRequest, known: readonly string[]): CapsuleError | undefined {
  const name = Object.keys(query as object).find((each) => !known.includes(each));
  if (name === undefined) return undefined;
  const shown = name.length <= shownNameMax ? name : `${name.slice(0, shownNameMax - 1)}…`;
  const takes = known.length === 0 ? "takes none" : `takes ${known.join(", ")}`;
  const message = `the query has an unknown parameter ${JSON.stringify(shown)}; this path ${takes}`;
  return new CapsuleError("invalid_request", message, { details: { field: shown } });
}
