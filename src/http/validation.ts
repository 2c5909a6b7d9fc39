/**
 * Checks requests against their schemas. Digits in a query become a number where the schema has an integer, and
 * one value a list where it has an array. In a body null
 * for an optional field is the same as leaving it out, since generated clients send it.
 */
import type { FastifySchemaCompiler } from "fastify";
import type { TSchema } from "typebox";
import { CapsuleError } from "../wire/errors.ts";
import { withoutChecked } from "../wire/schema.ts";
import { compileCheck, dropNulls } from "../wire/validation.ts";

const partNames: Record<string, string> = { body: "body", querystring: "query", params: "path", headers: "headers" };

export const validatorCompiler: FastifySchemaCompiler<TSchema> = ({ schema, httpPart = "body" }) => {
  const check = compileCheck(withoutChecked(schema));
  const lists = httpPart === "querystring" ? fieldsOf(schema, "array") : [];
  const numbers = httpPart === "querystring" ? fieldsOf(schema, "integer") : [];
  return (input: unknown) => {
    const value = (input ?? {}) as Record<string, unknown>;
    for (const key of lists) if (typeof value[key] === "string") value[key] = [value[key]];
    for (const key of numbers) if (key in value) value[key] = numberFrom(value[key]);
    if (httpPart === "body") dropNulls(schema, value);
    const result = check(value);
    if ("value" in result) return result;
    const { path, problem } = result.flaw;
    const field = path.slice(1);
    return {
      error: new CapsuleError(
        "invalid_request",
        `the request's ${partNames[httpPart]} cannot be used: ${field === "" ? "it" : field} ${problem}`,
        field === "" ? {} : { details: { field } },
      ),
    };
  };
};

function fieldsOf(schema: TSchema, type: "array" | "integer"): string[] {
  const { properties = {} } = schema as { properties?: Record<string, { type?: string }> };
  return Object.keys(properties).filter((key) => properties[key]?.type === type);
}

function numberFrom(text: unknown): unknown {
  return typeof text === "string" && /^\d{1,15}$/.test(text) ? Number(text) : text;
}
