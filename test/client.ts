/**
 * An HTTP client for tests. It sends paths without normalizing them and checks every answer against the OpenAPI
 * document that the server publishes.
 */
import assert from "node:assert/strict";
import http, { type ClientRequest, type IncomingHttpHeaders, type IncomingMessage } from "node:http";
import { Contract, type ContractOptions, type OpenApi } from "./openapi-contract.ts";
import { within } from "./wait-for.ts";

/** Longer than any request: a wait for a status is held for 300 s. */
const answerDeadlineMs = 600_000;

export interface Call {
  /** null: no key. Default: the client's key. */
  key?: string | null;
  json?: unknown;
  body?: string | Buffer;
  /** Sent as multipart/form-data, in this order and without changes. */
  form?: [name: string, content: string | Uint8Array][];
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

export interface Reply {
  status: number;
  headers: IncomingHttpHeaders;
  bytes: Buffer;
  text: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests read the fields that they expect
  json: any;
}

export interface ExecResult {
  stdout: string;
  stderr: string;
  exit_code: number;
  duration_ms: number;
  encoding: "utf-8" | "base64";
  truncated?: boolean;
}

/** The hosts of a cluster, of which each request goes to one. */
export interface Entry {
  /** The base URL for a request; without one, for a request that a test makes itself. */
  urlFor(request?: { method: string; path: string }): string;
}

export class Client {
  readonly key: string;
  readonly contract: Contract;
  readonly #entry: string | Entry;
  readonly #connections = new http.Agent({ keepAlive: true });

  /** `options` are those of the contract with the service's own document. */
  static async connect(entry: string | Entry, key: string, options?: ContractOptions): Promise<Client> {
    const url = typeof entry === "string" ? entry : entry.urlFor();
    const document = (await (await fetch(new URL("/openapi.json", url))).json()) as OpenApi;
    return new Client(entry, key, new Contract(document, options));
  }

  private constructor(entry: string | Entry, key: string, contract: Contract) {
    this.#entry = entry;
    this.key = key;
    this.contract = contract;
  }

  /** A cluster has another one each time. */
  get url(): string {
    return this.#urlFor();
  }

  /** The same service with another key. */
  as(key: string): Client {
    return new Client(this.#entry, key, this.contract);
  }

  close(): void {
    this.#connections.destroy();
  }

  async call(method: string, path: string, call: Call = {}): Promise<Reply> {
    const { payload, headers } = encode(call);
    const request = this.#request(this.#urlFor({ method, path }), method, path, { ...headers, ...call.headers }, call);
    request.end(payload);
    const reply = await answered(`${method} ${path}`, request, "response");
    this.#check(method, path, reply);
    return reply;
  }

  /** As `call`; throws for another status than the expected one. */
  async expect(status: number, method: string, path: string, call: Call = {}): Promise<Reply> {
    const reply = await this.call(method, path, call);
    assert.equal(reply.status, status, `${method} ${path.slice(0, 200)}: ${reply.text.slice(0, 500)}`);
    return reply;
  }

  /** The answer to a WebSocket upgrade. After 101 the connection is dropped. */
  async upgrade(path: string, call: Call = {}): Promise<Reply> {
    const headers = {
      connection: "Upgrade",
      upgrade: "websocket",
      "sec-websocket-version": "13",
      "sec-websocket-key": Buffer.alloc(16, 7).toString("base64"),
      ...call.headers,
    };
    const request = this.#request(this.#urlFor({ method: "GET", path }), "GET", path, headers, call, false);
    request.once("upgrade", (_response, socket) => socket.destroy());
    request.end();
    const reply = await answered(`an upgrade to ${path}`, request, "upgrade");
    this.#check("GET", path, reply);
    return reply;
  }

  /** Creates a capsule and waits until it runs. */
  async capsule(body: Record<string, unknown> = {}): Promise<TestCapsule> {
    const { json } = await this.expect(201, "POST", "/v1/capsules", { json: body });
    const capsule = new TestCapsule(this, json.id);
    try {
      await capsule.until("running");
    } catch (error) {
      await capsule[Symbol.asyncDispose]();
      throw error;
    }
    return capsule;
  }

  /** An existing capsule. */
  known(id: string): TestCapsule {
    return new TestCapsule(this, id);
  }

  #urlFor(request?: { method: string; path: string }): string {
    return typeof this.#entry === "string" ? this.#entry : this.#entry.urlFor(request);
  }

  #request(
    url: string,
    method: string,
    path: string,
    headers: Record<string, string>,
    { key, signal }: Call,
    agent: http.Agent | false = this.#connections,
  ): ClientRequest {
    const { hostname, port } = new URL(url);
    const apiKey = key === undefined ? this.key : key;
    return http.request({
      hostname,
      port,
      method,
      path,
      agent,
      headers: { ...(apiKey === null ? {} : { "x-api-key": apiKey }), ...headers },
      ...(signal === undefined ? {} : { signal }),
    });
  }

  #check(method: string, path: string, { status, headers, bytes, text }: Reply): void {
    const isJson = headers["content-type"]?.startsWith("application/json") === true;
    const body = isJson ? text : bytes.toString("latin1");
    this.contract.check({ method, path: pathOf(path), status, headers, body });
  }
}

/** Without the query. */
export function pathOf(target: string): string {
  return target.split("?", 1)[0] ?? "";
}

/** The view as the server at `url` gives it, after a start on another port: URLs of the capsule's ports have that one. */
export function viewAt(url: string, view: Reply["json"]): Reply["json"] {
  return { ...view, port_url: view.port_url.replace(/[0-9]+$/, new URL(url).port) };
}

/** A capsule that `await using` destroys at the end of the scope. */
export class TestCapsule implements AsyncDisposable {
  readonly client: Client;
  readonly id: string;

  constructor(client: Client, id: string) {
    this.client = client;
    this.id = id;
  }

  get path(): string {
    return `/v1/capsules/${this.id}`;
  }

  async view(): Promise<Reply["json"]> {
    return (await this.client.expect(200, "GET", this.path)).json;
  }

  /**
   * Waits for the status and returns the view. Throws with the capsule's error reason when another status is reached.
   */
  async until(status: string, timeoutSec = 300): Promise<Reply["json"]> {
    const { json } = await this.client.expect(200, "GET", `${this.path}?wait=${status}&timeout=${timeoutSec}`);
    assert.equal(json.status, status, `capsule ${this.id} is ${json.status}: ${json.error_reason}`);
    return json;
  }

  exec(json: unknown, call: Call = {}): Promise<Reply> {
    return this.client.call("POST", `${this.path}/exec`, { ...call, json });
  }

  /** A foreground command's result. */
  async run(cmd: string, args: string[] = [], more: Record<string, unknown> = {}): Promise<ExecResult> {
    const reply = await this.exec({ cmd, args, ...more });
    assert.equal(reply.status, 200, `exec ${cmd}: ${reply.text.slice(0, 500)}`);
    return reply.json;
  }

  /** The output of a bash script; throws unless it exits with 0. */
  async sh(script: string, more: Record<string, unknown> = {}): Promise<string> {
    const { stdout, stderr, exit_code } = await this.run("bash", ["-c", script], more);
    assert.equal(exit_code, 0, `${script}\n${stderr}`);
    return stdout.trimEnd();
  }

  async pause(): Promise<Reply["json"]> {
    return (await this.client.expect(200, "POST", `${this.path}/pause`)).json;
  }

  async resume(): Promise<Reply["json"]> {
    return (await this.client.expect(200, "POST", `${this.path}/resume`)).json;
  }

  async stop(): Promise<Reply["json"]> {
    return (await this.client.expect(200, "POST", `${this.path}/stop`)).json;
  }

  async start(): Promise<Reply["json"]> {
    return (await this.client.expect(200, "POST", `${this.path}/start`)).json;
  }

  async ping(): Promise<void> {
    await this.client.expect(204, "POST", `${this.path}/ping`);
  }

  async destroy(): Promise<void> {
    await this.client.expect(204, "DELETE", this.path);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const { status, text } = await this.client.call("DELETE", this.path);
    assert.ok(status === 204 || status === 404, text);
  }
}

function encode({ json, body, form }: Call): { payload?: string | Buffer; headers: Record<string, string> } {
  const payload = form !== undefined ? encodeForm(form) : json === undefined ? body : JSON.stringify(json);
  if (payload === undefined) return { headers: {} };
  const type = form === undefined ? "application/json" : `multipart/form-data; boundary=${boundary}`;
  return { payload, headers: { "content-type": type, "content-length": String(Buffer.byteLength(payload)) } };
}

const boundary = "boundary-of-a-test";

function encodeForm(fields: NonNullable<Call["form"]>): Buffer {
  const parts = fields.flatMap(([name, content]) => {
    const file = typeof content === "string" ? "" : '; filename="file"';
    return [`--${boundary}\r\nContent-Disposition: form-data; name="${name}"${file}\r\n\r\n`, content, "\r\n"];
  });
  return Buffer.concat([...parts, `--${boundary}--\r\n`].map((part) => Buffer.from(part as string)));
}

async function answered(what: string, request: ClientRequest, other: "response" | "upgrade"): Promise<Reply> {
  try {
    return await within(`an answer to ${what.slice(0, 200)}`, read(request, other), { deadlineMs: answerDeadlineMs });
  } catch (error) {
    request.destroy();
    throw error;
  }
}

function read(request: ClientRequest, other: "response" | "upgrade"): Promise<Reply> {
  return new Promise((resolve, reject) => {
    request.once("error", reject);
    if (other === "upgrade") request.once("upgrade", (response) => resolve(replyOf(response, Buffer.alloc(0))));
    request.once("response", (response) => {
      const chunks: Buffer[] = [];
      response.on("data", (chunk: Buffer) => chunks.push(chunk));
      response.once("error", reject);
      response.once("end", () => resolve(replyOf(response, Buffer.concat(chunks))));
    });
  });
}

function replyOf({ statusCode = 0, headers }: IncomingMessage, bytes: Buffer): Reply {
  const isJson = headers["content-type"]?.startsWith("application/json") === true;
  const text = isJson ? bytes.toString() : "";
  return { status: statusCode, headers, bytes, text, json: isJson && text !== "" ? JSON.parse(text) : undefined };
}
