/** Checks answers against the OpenAPI document that the server publishes. */
import assert from "node:assert/strict";
import { Ajv2020, type ValidateFunction } from "ajv/dist/2020.js";

interface Operation {
  responses: Record<string, { content?: Record<string, { schema?: object }> }>;
}

export interface OpenApi {
  openapi: string;
  paths: Record<string, Record<string, Operation>>;
  components: { schemas: Record<string, object> };
}

export interface Answer {
  method: string;
  path: string;
  status: number;
  contentType: string | undefined;
  body: string;
}

export class Contract {
  readonly #ajv = new Ajv2020({ strict: false, validateFormats: false });
  readonly #document: OpenApi;
  readonly #compiled = new Map<string, ValidateFunction>();

  constructor(document: OpenApi) {
    this.#document = document;
    this.#ajv.addSchema(document, "api");
  }

  /** Throws an assertion error that names the operation when the document does not allow the answer. */
  check(answer: Answer): void {
    const route = this.#route(answer.path);
    const operation = route === undefined ? undefined : this.#document.paths[route]?.[answer.method.toLowerCase()];
    if (route === undefined || operation === undefined) {
      this.#isError(answer);
      return;
    }
    const where = `${answer.method} ${route} ${answer.status}`;
    const response = operation.responses[String(answer.status)];
    assert.ok(response, `${where} is not in the document: ${answer.body.slice(0, 300)}`);
    if (response.content === undefined) {
      assert.equal(answer.body, "", `${where} should have no body`);
      return;
    }
    const mediaType = (answer.contentType ?? "").split(";", 1)[0] as string;
    assert.ok(response.content[mediaType], `${where}: ${mediaType} is not in the document`);
    if (mediaType !== "application/json") return;
    const pointer = [
      "paths",
      route,
      answer.method.toLowerCase(),
      "responses",
      answer.status,
      "content",
      mediaType,
      "schema",
    ];
    this.#matches(`api#/${pointer.map(escapePointer).join("/")}`, answer.body, where);
  }

  #isError(answer: Answer): void {
    if (answer.status < 400 || answer.method === "HEAD") return;
    this.#matches("api#/components/schemas/Error", answer.body, `${answer.method} ${answer.path} ${answer.status}`);
  }

  #matches(ref: string, body: string, where: string): void {
    let validate = this.#compiled.get(ref);
    if (validate === undefined) {
      validate = this.#ajv.compile({ $ref: ref });
      this.#compiled.set(ref, validate);
    }
    assert.ok(validate(JSON.parse(body)), `${where}: ${this.#ajv.errorsText(validate.errors)}: ${body}`);
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

function escapePointer(part: string | number): string {
  return encodeURIComponent(String(part).replaceAll("~", "~0").replaceAll("/", "~1"));
}
