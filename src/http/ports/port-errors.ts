/** Errors at a port's URL: a page for browsers, JSON for other clients. They name no request, so that all of one kind are the same bytes. */
import type { IncomingMessage, ServerResponse } from "node:http";
import type { CapsuleError } from "../../wire/errors.ts";
import { bodyOf, retryAfterOf } from "../errors.ts";
import { announcesBody } from "../json-body.ts";
import { jsonType } from "../large-answer.ts";

const titles: Partial<Record<number, string>> = {
  400: "The request cannot be understood",
  401: "This address needs a key or a link",
  404: "There is nothing here",
  409: "The capsule is not running",
  429: "Too many requests",
  502: "The capsule gave no answer",
  503: "The service cannot do this now",
  504: "The capsule did not answer in time",
};

/** The response is complete, or its client gone, afterwards. */
export function sendPortError(error: CapsuleError, request: IncomingMessage, response: ServerResponse): void {
  if (response.headersSent || response.destroyed) {
    response.destroy();
    return;
  }
  const isPage = namesHtml(request.headers.accept);
  const body = isPage ? pageOf(error) : JSON.stringify(bodyOf(error));
  const retryAfterSec = retryAfterOf(error);
  if (announcesBody(request) && !request.complete) response.shouldKeepAlive = false;
  response.writeHead(error.status, [
    ...["Content-Type", isPage ? "text/html; charset=utf-8" : jsonType],
    ...["Content-Length", String(Buffer.byteLength(body)), "Cache-Control", "no-store"],
    ...["X-Content-Type-Options", "nosniff", "Vary", "Accept"],
    ...(isPage ? ["Content-Security-Policy", "sandbox; default-src 'none'"] : []),
    ...(retryAfterSec === undefined ? [] : ["Retry-After", String(retryAfterSec)]),
  ]);
  response.end(body);
}

function namesHtml(accept: string | undefined): boolean {
  return /(?:^|,)\s*text\/html\s*(?:;(?!\s*q=0(?:\.0*)?\s*(?:,|$))|,|$)/i.test(accept ?? "");
}

function pageOf({ status, code, message, details }: CapsuleError): string {
  const title = titles[status] ?? "This did not work";
  const ports = Array.isArray(details?.ports) ? details.ports.map(Number).join(", ") : "";
  const more = ports === "" ? "" : `<p>Servers listen on: ${ports}</p>`;
  return (
    `<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">` +
    `<title>${title}</title><h1>${title}</h1><p>${escaped(message)}</p>${more}<p><code>${status} ${code}</code></p></html>\n`
  );
}

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}
