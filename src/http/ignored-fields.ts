/** Names the fields of a JSON body that its route does not know, in a header of the successful answer. */
import type { FastifyReply, FastifyRequest } from "fastify";
import type { App } from "./route.ts";

const header = "x-ignored-fields";
/** Names in one header. */
const namesMax = 20;
/** Unknown fields that are looked at; a body of 1 MiB can have 100 000 of them. */
const lookedAtMax = 1_000;
/** Longest header, so that it fits the buffers of clients and proxies; further names are left out. */
const headerMaxLength = 2_048;

/** Call before the routes are declared. Errors leave the header out: see errors.ts. */
export function nameIgnoredFields(app: App): void {
  app.addHook("preHandler", (request, reply, done) => {
    nameIgnored(request, reply);
    done();
  });
}

/** Sets the header of an answer that is sent before that. */
export function nameIgnored({ body, routeOptions }: FastifyRequest, reply: FastifyReply): void {
  const names = ignoredNames(body, routeOptions.schema?.body);
  if (names !== "") reply.header(header, names);
}

export { header as ignoredFieldsHeader };

function ignoredNames(body: unknown, schema: unknown): string {
  const { properties } = (schema ?? {}) as { properties?: object };
  if (typeof body !== "object" || body === null || properties === undefined) return "";
  const ignored: string[] = [];
  let [length, lookedAt] = [0, 0];
  for (const name in body) {
    if (Object.hasOwn(properties, name)) continue;
    lookedAt += 1;
    if (lookedAt > lookedAtMax) break;
    const added = encoded(name);
    if (length + added.length + 1 > headerMaxLength) continue;
    ignored.push(added);
    length += added.length + 1;
    if (ignored.length === namesMax) break;
  }
  return ignored.join(",");
}

/** Percent-encodes everything but A-Z a-z 0-9 - . _ ~, a lone surrogate as U+FFFD. */
function encoded(name: string): string {
  const hex = (character: string) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`;
  return encodeURIComponent(name.slice(0, headerMaxLength).toWellFormed()).replaceAll(/[!'()*]/g, hex);
}
