/** Requests to one service with one key: time limits, retries, and opening of WebSockets. */
import { ConnectionError, connectionErrorOf, refusalOf, ServiceError } from "./errors.ts";
import { refuseUnknown } from "./options.ts";
import { fetchPort } from "./port-fetch.ts";
import { type Repeat, retryDelayMs, sleep } from "./retry.ts";
import { after } from "./timer.ts";

/** The part of the WebSocket standard in use. The npm package `ws` has it, plus `pause` and `resume`. */
export interface WebSocketLike {
  readonly bufferedAmount: number;
  binaryType?: string;
  onopen: ((event: never) => void) | null;
  onmessage: ((event: never) => void) | null;
  onerror: ((event: never) => void) | null;
  onclose: ((event: never) => void) | null;
  send(data: string | Uint8Array): void;
  close(code?: number, reason?: string): void;
  pause?(): void;
  resume?(): void;
}

export type WebSocketClass = new (url: string) => WebSocketLike;

export interface ClientOptions {
  /**
   * Address of the service. Default: `CAPSULE_URL` of the environment, in a browser the page's own origin, else
   * `http://127.0.0.1:8080`.
   */
  url?: string;
  /** Default: `CAPSULE_API_KEY` of the environment. */
  apiKey?: string;
  /** Time limit of a request, milliseconds; 0: none. Default: 60 000. Waits and commands have other limits. */
  timeoutMs?: number;
  /** Number of retries where a retry is safe. Default: 3. */
  retries?: number;
  /** Default: the global one. */
  fetch?: typeof globalThis.fetch;
  /** Default: the global one; where there is none, as in Node 20, that of the npm package `ws`, if it is installed. */
  WebSocket?: WebSocketClass;
}

/** Options of every call. */
export interface CallOptions {
  /** Aborts the call, which throws the signal's reason. */
  signal?: AbortSignal | undefined;
  /** Overrides the client's; milliseconds, 0: no limit. */
  timeoutMs?: number | undefined;
}

export interface Request extends CallOptions {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** From `/v1` on. */
  path: string;
  /** A list is sent as the same parameter several times. */
  query?: Record<string, string | number | boolean | readonly string[] | undefined>;
  json?: unknown;
  /** Instead of `json`. */
  body?: FormData | Blob | ReadableStream<Uint8Array>;
  headers?: Record<string, string>;
  /** Statuses above 399 that are answers and not refusals. */
  accept?: readonly number[];
  /** Default: GET `always`, others `unsent`. */
  repeat?: Repeat;
  /** Whether the service answers it without a key. */
  isKeyless?: true;
  /** Is told when an attempt has failed that the service may have carried out. */
  sent?: { isUnsure: boolean };
}

const requestNames: Record<keyof Request, true> = {
  ...{ method: true, path: true, query: true, json: true, body: true, headers: true },
  ...{ accept: true, repeat: true, isKeyless: true, sent: true, signal: true, timeoutMs: true },
};

/** Takes a client's options apart from others. */
export function splitClientOptions<T extends ClientOptions>(
  options: T,
): { client: ClientOptions; rest: Omit<T, keyof ClientOptions> } {
  const { url, apiKey, timeoutMs, retries, fetch, WebSocket, ...rest } = options;
  const given = Object.entries({ url, apiKey, timeoutMs, retries, fetch, WebSocket });
  return { client: Object.fromEntries(given.filter(([, value]) => value !== undefined)), rest };
}

/** Methods pass on the options that they do not know themselves. */
function refuseUnknownIn(request: Request): void {
  const unknown = Object.entries(request).filter(([name]) => !Object.hasOwn(requestNames, name));
  if (unknown.length > 0) refuseUnknown(`this call (${request.method} ${request.path})`, Object.fromEntries(unknown));
}

const noKey = "there is no API key: set CAPSULE_URL and CAPSULE_API_KEY, or pass the options url and apiKey";
const defaults = { url: "http://127.0.0.1:8080", timeoutMs: 60_000, retries: 3 };

export class Transport {
  /** Without a slash at the end. */
  readonly url: string;
  readonly #apiKey: string | undefined;
  /** No key, and neither a page nor an own `fetch` that could add one. */
  readonly #lacksKey: boolean;
  readonly #timeoutMs: number;
  readonly #retries: number;
  readonly #isOwnFetch: boolean;
  readonly #fetch: typeof globalThis.fetch;
  #WebSocket: WebSocketClass | undefined;

  constructor(options: ClientOptions = {}) {
    const url = options.url ?? variable("CAPSULE_URL") ?? pageOrigin() ?? defaults.url;
    this.url = url.replace(/\/+$/, "");
    this.#apiKey = options.apiKey ?? variable("CAPSULE_API_KEY");
    this.#lacksKey = this.#apiKey === undefined && options.fetch === undefined && pageOrigin() === undefined;
    this.#timeoutMs = options.timeoutMs ?? defaults.timeoutMs;
    this.#retries = options.retries ?? defaults.retries;
    this.#isOwnFetch = options.fetch !== undefined;
    this.#fetch = options.fetch ?? ((input, init) => globalThis.fetch(input, init));
    this.#WebSocket = options.WebSocket ?? (globalThis.WebSocket as unknown as WebSocketClass | undefined);
  }

  /** The answer's JSON. */
  json<T>(request: Request): Promise<T> {
    return this.#carry(request, async (response) => (await response.json()) as T);
  }

  /** For answers without a body. */
  async done(request: Request): Promise<void> {
    await this.#carry(request, (response) => response.arrayBuffer());
  }

  answer(request: Request): Promise<{ status: number; body: ArrayBuffer }> {
    return this.#carry(request, async (response) => ({ status: response.status, body: await response.arrayBuffer() }));
  }

  /** The time limit applies until the headers arrive; the body has none. */
  response(request: Request): Promise<Response> {
    return this.#carry(request, async (response) => response);
  }

  /**
   * A WebSocket that is still connecting. It carries a one-time ticket, since browsers cannot set the key's header.
   * Throws `unreachable` when the runtime has no WebSocket and none was given or is installed.
   */
  async socket(path: string, query: Record<string, string>, options: CallOptions): Promise<WebSocketLike> {
    this.#WebSocket ??= await installedWebSocket();
    const { ticket } = await this.json<{ ticket: string }>({
      ...options,
      method: "POST",
      path: "/v1/ws-tickets",
      json: { path },
      repeat: "always",
    });
    const search = new URLSearchParams({ ...query, ticket });
    return new this.#WebSocket(`${this.url.replace(/^http/, "ws")}${path}?${search}`);
  }

  /** An answer at the URL of a port, with any status. */
  fetchPort(portUrl: string, port: number, path: string, init: RequestInit): Promise<Response> {
    const url = portUrl.replace("{port}", String(port));
    const [service, isOwnFetch] = [this.url, this.#isOwnFetch];
    return fetchPort({ url, path, init, apiKey: this.#apiKey, service, fetch: this.#fetch, isOwnFetch });
  }

  async #carry<T>(request: Request, read: (response: Response) => Promise<T>): Promise<T> {
    refuseUnknownIn(request);
    if (this.#lacksKey && request.isKeyless !== true) throw new ServiceError("unauthorized", noKey);
    const repeat = request.repeat ?? (request.method === "GET" ? "always" : "unsent");
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.#attempt(request, read);
      } catch (error) {
        if (request.sent !== undefined && !isUndone(error)) request.sent.isUnsure = true;
        const delayMs = attempt < this.#retries ? retryDelayMs(error, attempt, repeat) : undefined;
        if (delayMs === undefined) throw error;
        await sleep(delayMs, request.signal);
      }
    }
  }

  async #attempt<T>(request: Request, read: (response: Response) => Promise<T>): Promise<T> {
    const timeoutMs = request.timeoutMs ?? this.#timeoutMs;
    const late = new AbortController();
    const callOff = after(timeoutMs, () => late.abort());
    const signal = request.signal === undefined ? late.signal : AbortSignal.any([request.signal, late.signal]);
    try {
      const response = await this.#fetch(this.#address(request), this.#init(request, signal));
      if (!response.ok && request.accept?.includes(response.status) !== true) throw await refusalOf(response);
      return await read(response);
    } catch (error) {
      if (error instanceof ServiceError || error instanceof ConnectionError) throw error;
      if (request.signal?.aborted) throw request.signal.reason;
      if (late.signal.aborted) {
        const what = `${request.method} ${request.path}`;
        throw new ConnectionError("timed_out", `${what} had no answer within ${timeoutMs} ms`, { cause: error });
      }
      throw connectionErrorOf(error, this.url);
    } finally {
      callOff();
    }
  }

  #address({ path, query = {} }: Request): string {
    const search = new URLSearchParams();
    for (const [key, value] of Object.entries(query))
      for (const each of [value ?? []].flat()) search.append(key, String(each));
    return `${this.url}${path}${search.size === 0 ? "" : `?${search}`}`;
  }

  #init(request: Request, signal: AbortSignal): RequestInit {
    const { method, json, body } = request;
    const headers: Record<string, string> = { ...request.headers };
    if (this.#apiKey !== undefined) headers["x-api-key"] = this.#apiKey;
    // A redirect would take the key along, to whatever server it names.
    const init: RequestInit & { duplex?: "half" } = { method, headers, signal, redirect: "error" };
    if (json !== undefined) {
      headers["content-type"] = "application/json";
      init.body = JSON.stringify(json);
    } else if (body !== undefined) {
      init.body = body as NonNullable<RequestInit["body"]>;
      if (body instanceof ReadableStream) init.duplex = "half";
    }
    return init;
  }
}

/** Whether the service refused the request, or never had it. */
function isUndone(error: unknown): boolean {
  return error instanceof ServiceError || (error instanceof ConnectionError && error.code === "unreachable");
}

const packageOfSockets: string = "ws"; // in a variable, so that no bundler looks for it

async function installedWebSocket(): Promise<WebSocketClass> {
  try {
    return (await import(packageOfSockets)).WebSocket;
  } catch (cause) {
    const message =
      "this runtime has no WebSocket, which streams, terminals and commands without a time limit need: npm install ws, or pass " +
      "its class as the option WebSocket";
    throw new ConnectionError("unreachable", message, { cause });
  }
}

/** A variable of the environment, where the runtime has one; empty counts as unset. */
function variable(name: string): string | undefined {
  const { process } = globalThis as { process?: { env?: Record<string, string | undefined> } };
  return process?.env?.[name] || undefined;
}

function pageOrigin(): string | undefined {
  const { document, location } = globalThis as { document?: unknown; location?: { origin: string } };
  return document === undefined ? undefined : location?.origin;
}
