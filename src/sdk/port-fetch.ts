/**
 * HTTP requests to a server in a capsule, at the URL of its port. Names below localhost lead nowhere in Node's resolver, and `fetch` sets
 * Host by itself; so those are asked for at the service's own address, with Node's client. In a browser, or with a `fetch` of the client's
 * own, they are the URL.
 */
import { connectionErrorOf } from "./errors.ts";

export interface PortFetch {
  /** The URL of the port, without a path. */
  url: string;
  /** From `/` on, with its query. */
  path: string;
  init: RequestInit;
  apiKey: string | undefined;
  /** Address of the service. */
  service: string;
  fetch: typeof globalThis.fetch;
  /** `fetch` is not the runtime's own. */
  isOwnFetch: boolean;
}

/** The part of Node's modules in use; the SDK has no types of Node. */
interface NodeMessage {
  statusCode?: number;
  statusMessage?: string;
  rawHeaders: string[];
}
interface NodeRequest {
  once(event: "response", listener: (message: NodeMessage) => void): NodeRequest;
  on(event: "error", listener: (error: Error) => void): NodeRequest;
  end(body?: Uint8Array): void;
}
interface NodeHttp {
  request(options: object): NodeRequest;
}
interface NodeStream {
  Readable: {
    toWeb(message: NodeMessage): ReadableStream<Uint8Array>;
    fromWeb(body: ReadableStream<Uint8Array>): {
      pipe(to: NodeRequest): void;
      on(event: "error", on: () => void): void;
    };
  };
}

/** The answer of the server, or of the service, with any status. No redirect is followed: it would take the key along. */
export async function fetchPort({ url, path, init, apiKey, service, ...by }: PortFetch): Promise<Response> {
  const target = new URL(path.startsWith("/") ? `${url}${path}` : `${url}/${path}`);
  const isStream = init.body instanceof ReadableStream;
  const request = new Request(target, {
    ...init,
    redirect: "manual",
    ...(isStream ? ({ duplex: "half" } as object) : {}),
  });
  if (apiKey !== undefined) request.headers.set("x-api-key", apiKey);
  try {
    if (by.isOwnFetch || !target.hostname.endsWith(".localhost") || "document" in globalThis)
      return await by.fetch(request);
    return await send(request, target, { service: new URL(service), isStream });
  } catch (error) {
    if (request.signal.aborted) throw request.signal.reason;
    throw connectionErrorOf(error, service);
  }
}

async function send(
  request: Request,
  target: URL,
  { service, isStream }: { service: URL; isStream: boolean },
): Promise<Response> {
  // Bundlers for browsers would look for the modules.
  const [httpName, streamName] = [service.protocol === "https:" ? "node:https" : "node:http", "node:stream"];
  const http = (await import(httpName)) as NodeHttp;
  const { Readable } = (await import(streamName)) as NodeStream;
  const body = request.body === null || isStream ? undefined : new Uint8Array(await request.arrayBuffer());
  const headers = Object.fromEntries(request.headers);
  headers.host = target.host;
  if (body !== undefined) headers["content-length"] = String(body.length);
  const hostname = service.hostname.replace(/^\[|\]$/g, "");
  const sent = http.request({
    ...{ method: request.method, path: `${target.pathname}${target.search}`, headers, signal: request.signal },
    ...{ hostname, servername: hostname, port: service.port },
  });
  const message = await new Promise<NodeMessage>((resolve, reject) => {
    sent.once("response", resolve).on("error", reject);
    if (request.body === null || !isStream) sent.end(body);
    else {
      const stream = Readable.fromWeb(request.body);
      stream.on("error", () => reject(new TypeError("the body's stream failed")));
      stream.pipe(sent);
    }
  });
  const { statusCode: status = 0, statusMessage: statusText = "", rawHeaders } = message;
  const received = new Headers();
  for (let at = 0; at + 1 < rawHeaders.length; at += 2)
    received.append(rawHeaders[at] as string, rawHeaders[at + 1] as string);
  const isEmpty = request.method === "HEAD" || [204, 205, 304].includes(status);
  const stream = Readable.toWeb(message);
  if (isEmpty) void stream.cancel();
  return new Response(isEmpty ? null : stream, { status, statusText, headers: received });
}
