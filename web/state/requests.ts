/** One request to the service, and what it says when it refuses. */
import type { ErrorBody } from "../../src/wire/error-body.ts";
import type { ErrorCode } from "../../src/wire/errors.ts";

/** The service's own words. `code` is undefined when something between us and it answered instead. */
export class Refusal extends Error {
  readonly status: number;
  readonly code: ErrorCode | undefined;

  constructor(status: number, code: ErrorCode | undefined, message: string) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export interface Request {
  method?: string;
  key?: string;
  json?: unknown;
  form?: FormData;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

/** Resolves with an answer below 400; throws Refusal, or an Error that says that the server cannot be reached. */
export async function ask(
  path: string,
  { method = "GET", key, json, form, headers, signal }: Request,
): Promise<Response> {
  const all = new Headers(headers);
  if (key !== undefined) all.set("x-api-key", key);
  if (json !== undefined) all.set("content-type", "application/json");
  const body = form ?? (json === undefined ? null : JSON.stringify(json));
  const response = await fetch(path, { method, headers: all, body, signal: signal ?? null }).catch((error: unknown) => {
    if (signal?.aborted) throw error;
    throw new Error("the server cannot be reached; is it running?");
  });
  if (response.status >= 400) throw await refusalOf(response);
  return response;
}

async function refusalOf(response: Response): Promise<Refusal> {
  const text = await response.text();
  try {
    const { code, message } = (JSON.parse(text) as ErrorBody).error;
    return new Refusal(response.status, code, message);
  } catch {
    return new Refusal(response.status, undefined, `the server answered ${response.status} ${response.statusText}`);
  }
}
