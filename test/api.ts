/**
 * The real HTTP layer on fake services, with its log captured; every answer is checked against the OpenAPI document.
 */
import type { InjectOptions } from "fastify";
import pino from "pino";
import { loadConfig } from "../src/config.ts";
import { buildServer, type ServerOptions } from "../src/http/app.ts";
import type { App } from "../src/http/route.ts";
import type { Limits } from "../src/wire/limits.ts";
import { FakeServices, keys } from "./fakes/services.ts";
import { Contract, type OpenApi } from "./openapi-contract.ts";

type Method = NonNullable<InjectOptions["method"]>;

interface Call {
  /** null: no key. */
  key?: string | null;
  json?: unknown;
  body?: string | Buffer;
  headers?: Record<string, string>;
}

export interface Reply {
  status: number;
  headers: Record<string, unknown>;
  text: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests read the fields that they expect
  json: any;
}

export class Api {
  readonly services = new FakeServices();
  readonly log: string[] = [];
  readonly app: App;
  readonly limits: Limits;
  #contract: Contract | undefined;

  constructor(limits: Partial<Limits> = {}, options: Partial<ServerOptions> = {}) {
    this.limits = { ...loadConfig({}).limits, vcpus_max: 8, memory_max_mb: 65_536, ...limits };
    const logger = pino({ level: "trace" }, { write: (line) => void this.log.push(line) });
    this.app = buildServer(this.services, {
      limits: this.limits,
      logger,
      version: "0.0.0",
      web: "/nowhere",
      ...options,
    });
  }

  async document(): Promise<OpenApi> {
    return (await this.app.inject("/openapi.json")).json();
  }

  async call(method: Method, url: string, { key = keys.red, json, body, headers = {} }: Call = {}): Promise<Reply> {
    this.#contract ??= new Contract(await this.document());
    const payload = json === undefined ? body : JSON.stringify(json);
    const response = await this.app.inject({
      method,
      url,
      headers: {
        ...(key === null ? {} : { "x-api-key": key }),
        ...(json === undefined ? {} : { "content-type": "application/json" }),
        ...headers,
      },
      ...(payload === undefined ? {} : { payload }),
    });
    const { statusCode: status, payload: text } = response;
    const path = url.split("?", 1)[0] as string;
    this.#contract.check({ method, path, status, headers: response.headers, body: text });
    const isJson = response.headers["content-type"]?.toString().startsWith("application/json");
    return { status, headers: response.headers, text, json: isJson && text !== "" ? JSON.parse(text) : undefined };
  }

  /** Creates a capsule in that status; its id. */
  async capsule(
    status: Parameters<FakeServices["capsules"]["become"]>[1] = "running",
    key: string = keys.red,
  ): Promise<string> {
    const { json } = await this.call("POST", "/v1/capsules", { key });
    if (status !== "starting") this.services.capsules.become(json.id, status);
    return json.id;
  }
}
