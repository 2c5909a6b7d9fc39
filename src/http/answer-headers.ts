/**
 * The response headers of the API, for the OpenAPI document. It leaves out those of HTTP itself: Date, Content-Type,
 * Content-Length, Transfer-Encoding, Connection, Keep-Alive, and a WebSocket's handshake.
 */

type Json = Record<string, unknown>;

const described = {
  "X-Request-Id": {
    description: "Names this request in the service's log.",
    required: true,
    schema: { type: "string", pattern: "^[0-9a-f]{32}$" },
  },
  "X-Content-Type-Options": {
    description: "Browsers take the content type as it stands.",
    required: true,
    schema: { type: "string", const: "nosniff" },
  },
  "Strict-Transport-Security": {
    description: "Of a service with TLS: browsers use no other scheme.",
    schema: { type: "string", pattern: "^max-age=[0-9]+$" },
  },
  "Retry-After": {
    description: "Seconds after which the same request may succeed.",
    schema: { type: "integer", minimum: 0 },
  },
  "WWW-Authenticate": {
    description: "The scheme in which a key may be sent, besides X-API-Key.",
    schema: { type: "string", const: "Bearer" },
  },
  "X-Next-Cursor": {
    description: "For `cursor` of the next page; missing on the last one.",
    schema: { type: "string" },
  },
  "X-Ignored-Fields": {
    description: "Top-level fields of the body that the operation does not know, percent-encoded, at most 20.",
    schema: { type: "string" },
  },
  "Access-Control-Allow-Origin": {
    description: "The origin of the request, where the operator permits its pages to use the API.",
    schema: { type: "string", format: "uri" },
  },
  "Access-Control-Expose-Headers": {
    description: "Of the same answers: the headers that a page may read.",
    schema: { type: "string" },
  },
  Vary: {
    description: "Where the operator permits pages of any origin.",
    schema: { type: "string", const: "Origin" },
  },
  "Idempotent-Replayed": {
    description: "This is the first answer to the same request with the same Idempotency-Key.",
    schema: { type: "string", const: "true" },
  },
  "Accept-Ranges": {
    description: "The header Range is read.",
    schema: { type: "string", const: "bytes" },
  },
  "Content-Disposition": {
    description: "A browser stores the file under this name and shows it nowhere.",
    schema: { type: "string", pattern: "^attachment; filename=" },
  },
  "Content-Security-Policy": {
    description: "A browser runs nothing of the file.",
    schema: { type: "string", const: "sandbox; default-src 'none'" },
  },
  "Content-Range": {
    description: "Of status 206: which bytes these are, and of how many. Of 416: of how many.",
    schema: { type: "string", pattern: "^bytes ([0-9]+-[0-9]+|\\*)/[0-9]+$" },
  },
  Allow: {
    description: "The path's methods.",
    schema: { type: "string", pattern: "^[A-Z]+(, [A-Z]+)*$" },
  },
  "Cache-Control": {
    description: "The answer is not to be kept.",
    schema: { type: "string", const: "no-store" },
  },
  "X-Dropped-Bytes": {
    description: "Output of both streams that was written before the kept one.",
    schema: { type: "integer", minimum: 0 },
  },
  "X-Accel-Buffering": {
    description: "nginx passes the stream on as it comes.",
    schema: { type: "string", const: "no" },
  },
};

export type AnswerHeader = keyof typeof described;

const always: AnswerHeader[] = [
  "X-Request-Id",
  "X-Content-Type-Options",
  "Strict-Transport-Security",
  "Access-Control-Allow-Origin",
  "Access-Control-Expose-Headers",
  "Vary",
];

/** The document's `components.headers`. */
export const headerComponents: Json = described;

/** Headers of a response that has those of all answers and `more`. */
export function answerHeaders(more: readonly string[] = []): Json {
  return Object.fromEntries([...always, ...more].map((name) => [name, { $ref: `#/components/headers/${name}` }]));
}

/**
 * Answers to requests that are none of the document's operations. It has no place for them but its components, where
 * nothing refers to them.
 */
export function answersBesides(error: Json): Json {
  const content = { "application/json": { schema: error } };
  return {
    NoOperation: {
      description: "Any other path or method: 400, 401, 404, 405 (with Allow) or 429.",
      headers: answerHeaders(["Allow", "Retry-After", "WWW-Authenticate"]),
      content,
    },
    Options: { description: "OPTIONS of any path: 204.", headers: answerHeaders(["Allow"]) },
    NoRequest: { description: "Bytes that are no HTTP request: 400, 408 or 431. The connection is closed.", content },
  };
}
