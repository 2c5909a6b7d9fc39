/** The last bytes to a program whose connection was accepted before it was decided: a TLS alert, or an HTTP answer. */
import { STATUS_CODES } from "node:http";

const alertType = 21;
const fatal = 2;
const accessDenied = 49;
const internalError = 80;

/** How the first bytes of the connection speak. */
export type Speech = "tls" | "http" | "other";

export type RefusalKind = "not permitted" | "no address";

export function refusalBytes(speech: Speech, kind: RefusalKind, reason: string): Buffer {
  if (speech === "other") return Buffer.alloc(0);
  if (speech === "tls") {
    return Buffer.from([alertType, 3, 3, 0, 2, fatal, kind === "not permitted" ? accessDenied : internalError]);
  }
  const status = kind === "not permitted" ? 403 : 502;
  const body = `${reason}\n`;
  const head = [
    `HTTP/1.1 ${status} ${STATUS_CODES[status]}`,
    "Content-Type: text/plain; charset=utf-8",
    `Content-Length: ${Buffer.byteLength(body)}`,
    "Connection: close",
  ];
  return Buffer.from(`${head.join("\r\n")}\r\n\r\n${body}`);
}
