/**
 * Checks answers against the OpenAPI document that the server publishes, with Ajv: the status, every header, the media type,
 * and every field of the body must be described. So must events and WebSocket messages.
 */
import assert from "node:assert/strict";
import { Ajv2020, type ValidateFunction } from "ajv/dist/2020.js";
import addFormats from "ajv-formats";

interface Response {
  headers?: Record<string, { $ref: string }>;
  content?: Record<string, { schema?: object }>;
}

interface Operation {
  responses: Record<string, Response>;
  "x-events"?: Record<string, object>;
}

export interface OpenApi {
  openapi: string;
  paths: Record<string, Record<string, Operation>>;
  components: {
    schemas: Record<string, object>;
    headers: Record<string, { required?: boolean; schema: { type: string } }>;
    responses: Record<string, Response>;
  };
}

export interface Answer {
  method: string;
  path: string;
  status: number;
  headers: Record<string, unknown>;
  /** The schema of a JSON answer; undefined: not to be checked. */
  body: string | undefined;
}

/** Where a response or schema is in the document. */
type Place = (string | number)[];

/** Headers of HTTP and of the WebSocket handshake, which no API describes. */
const ofHttp = new Set(
  ["connection", "content-length", "content-type", "date", "keep-alive", "transfer-encoding"].concat(
    ["upgrade", "sec-websocket-accept"], // of status 101
  ),
);
/** For browsers, and not part of the API. */
const pages = /^\/(?:$|icon\.svg$|assets\/|docs(?:\/|$))/;

export interface ContractOptions {
  /** False for the release before, whose document describes no headers. */
  describesHeaders: boolean;
}

export class Contract {
  readonly #ajv = new Ajv2020({ strict: false });
  readonly #document: OpenApi;
  readonly #compiled = new Map<string, ValidateFunction>();

  readonly #describesHeaders: boolean;

  constructor(document: OpenApi, { describesHeaders }: ContractOptions = { describesHeaders: true }) {
    this.#document = document;
    this.#describesHeaders = describesHeaders;
    addFormats.default(this.#ajv);
    this.#ajv.addSchema(closed(document) as OpenApi, "api");
  }

  /** Throws an assertion error that names the operation when the document does not allow the answer. */
  check(answer: Answer): void {
    const { method, path, status } = answer;
    const route = this.#route(path);
    const operation = route === undefined ? undefined : this.#document.paths[route];
    const verb = method === "HEAD" && operation?.head === undefined ? "get" : method.toLowerCase();
    const place = operation?.[verb]?.responses[status] && ["paths", route!, verb, "responses", status];
    const where = `${method} ${route ?? path} ${status}`;
    if (place !== undefined) this.#conforms(answer, place, where);
    else if (status === 431) this.#conforms(answer, ["components", "responses", "NoRequest"], where);
    else if (operation?.[verb] === undefined || (method === "HEAD" && status === 405)) this.#besides(answer, where);
    else assert.fail(`${where} is not in the document: ${answer.body?.slice(0, 300)}`);
  }

  /** One event of a stream of `GET path`. */
  checkEvent(path: string, name: string, data: unknown): void {
    const route = this.#route(path) as string;
    const place = ["paths", route, "get", "x-events", name];
    assert.ok(this.#document.paths[route]?.get?.["x-events"]?.[name], `${route}: event ${name} is not in the document`);
    this.#matches(place, data, `${route}: event ${name}`);
  }

  /** A message of the server on the WebSocket of `GET path`. */
  checkMessage(path: string, message: unknown): void {
    const route = this.#route(path) as string;
    this.#matches(["paths", route, "get", "x-websocket", "server"], message, `${route}: message`);
  }

  /** An answer that belongs to no operation. */
  #besides(answer: Answer, where: string): void {
    if (pages.test(answer.path) && answer.status < 500) return;
    const isOptions = answer.method === "OPTIONS" && answer.status === 204;
    assert.ok(isOptions || [400, 401, 404, 405, 429].includes(answer.status), `${where} is not in the document`);
    this.#conforms(answer, ["components", "responses", isOptions ? "Options" : "NoOperation"], where);
  }

  #conforms({ method, headers, body }: Answer, place: Place, where: string): void {
    const response = place.reduce((value: unknown, key) => (value as Record<string, unknown>)[key], this.#document);
    const { headers: described = {}, content } = response as Response;
    if (this.#describesHeaders) this.#checkHeaders(headers, described, where);
    if (body === undefined) return;
    if (content === undefined || method === "HEAD") {
      assert.equal(body, "", `${where} should have no body`);
      return;
    }
    const mediaType = String(headers["content-type"] ?? "").split(";", 1)[0] as string;
    assert.ok(content[mediaType], `${where}: ${mediaType} is not in the document`);
    if (mediaType === "application/json") {
      this.#matches([...place, "content", mediaType, "schema"], JSON.parse(body), where);
    }
  }

  #checkHeaders(headers: Answer["headers"], described: NonNullable<Response["headers"]>, where: string): void {
    const names = new Map(Object.keys(described).map((name) => [name.toLowerCase(), name]));
    for (const [name, value] of Object.entries(headers)) {
      if (ofHttp.has(name)) continue;
      const known = names.get(name);
      assert.ok(known !== undefined, `${where}: the header ${name} is not in the document`);
      const { type } = this.#document.components.headers[known]!.schema;
      const place = ["components", "headers", known, "schema"];
      this.#matches(place, type === "integer" ? Number(value) : value, `${where}: ${name}`);
    }
    for (const [name, known] of names) {
      const isRequired = this.#document.components.headers[known]?.required === true;
      assert.ok(!isRequired || headers[name] !== undefined, `${where}: the header ${name} is missing`);
    }
  }

  #matches(place: Place, value: unknown, where: string): void {
    const ref = `api#/${place.map(escapePointer).join("/")}`;
    let validate = this.#compiled.get(ref);
    if (validate === undefined) {
      validate = this.#ajv.compile({ $ref: ref });
      this.#compiled.set(ref, validate);
    }
    const text = () => JSON.stringify(value)?.slice(0, 1_000);
    assert.ok(validate(value), `${where}: ${this.#ajv.errorsText(validate.errors)}: ${text()}`);
  }

  #route(path: string): string | undefined {
    const segments = path.split("/");
    const fits = (route: string) => {
      const parts = route.split("/");
      return parts.length === segments.length && parts.every((part, i) => part.startsWith("{") || part === segments[i]);
    };
    const routes = Object.keys(this.#document.paths).filter(fits);
    return routes.find((route) => !route.includes("{")) ?? routes[0];
  }
}

/** The document with every object closed that does not say what other fields it may have. */
function closed(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(closed);
  if (typeof value !== "object" || value === null) return value;
  const copy = Object.fromEntries(Object.entries(value).map(([key, each]) => [key, closed(each)]));
  const isOpen = copy.type === "object" && copy.properties !== undefined && copy.additionalProperties === undefined;
  return isOpen ? { ...copy, additionalProperties: false } : copy;
}

function escapePointer(part: string | number): string {
  return encodeURIComponent(String(part).replaceAll("~", "~0").replaceAll("/", "~1"));
}
