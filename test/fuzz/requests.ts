/** Random requests to every operation of the OpenAPI document, most of them well-formed, with random errors. */
import { gzipSync } from "node:zlib";
import type { Random } from "../conformance/random.ts";
import type { OpenApi } from "../openapi-contract.ts";
import { endMark, member } from "../tar.ts";
import { chance, nastyTexts, type Pools, pick, type Schema, Values } from "./values.ts";

interface Parameter {
  in: "path" | "query" | "header";
  name: string;
  schema: Schema;
}

export interface Operation {
  method: string;
  path: string;
  parameters: Parameter[];
  json: Schema | undefined;
  hasForm: boolean;
  hasArchive: boolean;
  socket: { client?: Schema; server: Schema } | undefined;
}

export interface FuzzedRequest {
  operation: Operation;
  method: string;
  path: string;
  headers: Record<string, string>;
  /** null: no key; undefined: the valid one. */
  key: string | null | undefined;
  body: Buffer | undefined;
}

interface Described {
  parameters?: Parameter[];
  requestBody?: { content: Record<string, { schema: Schema }> };
  "x-websocket"?: { client?: Schema; server: Schema };
}

export function operationsOf(document: OpenApi): Operation[] {
  return Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods as unknown as Record<string, Described>).map(([method, described]) => ({
      method: method.toUpperCase(),
      path,
      parameters: described.parameters ?? [],
      json: described.requestBody?.content["application/json"]?.schema,
      hasForm: described.requestBody?.content["multipart/form-data"] !== undefined,
      hasArchive: described.requestBody?.content["application/x-tar"] !== undefined,
      socket: described["x-websocket"],
    })),
  );
}

const boundary = "fuzzed-boundary";
const mediaTypes = [
  "application/json",
  "application/json; charset=utf-8",
  "application/json; charset=utf-16",
  "APPLICATION/JSON",
  "text/plain",
  "application/x-www-form-urlencoded",
  "multipart/form-data",
  `multipart/form-data; boundary=${boundary}`,
  'multipart/form-data; boundary=""',
  "a/b/c",
  "",
];
const unusualHeaders: Record<string, string>[] = [
  { expect: "100-continue" },
  { expect: "the impossible" },
  { upgrade: "h2c", connection: "Upgrade" },
  { "content-encoding": "gzip" },
  { range: "bytes=0-1" },
  { "if-none-match": "*" },
  { "x-http-method-override": "DELETE" },
  { "x-forwarded-for": "127.0.0.1" },
  { cookie: "a=b; ".repeat(1_000) },
  { accept: "text/html" },
  { "last-event-id": "0-0" },
  { connection: "close" },
];
const keys = [null, "", "x", "csk_", "a".repeat(500), "ü", "Bearer x"];
const otherMethods = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "PROPFIND"];

export class Requests {
  readonly #random: Random;
  readonly #pools: Pools;
  readonly #values: Values;

  constructor(document: OpenApi, random: Random, pools: Pools) {
    this.#random = random;
    this.#pools = pools;
    this.#values = new Values(document.components.schemas as Record<string, Schema>, random, pools);
  }

  to(operation: Operation): FuzzedRequest {
    const random = this.#random;
    const body = this.#body(operation);
    const headers: Record<string, string> = body?.type === undefined ? {} : { "content-type": body.type };
    if (chance(random, 3)) headers["content-type"] = pick(random, mediaTypes);
    if (chance(random, 5)) Object.assign(headers, pick(random, unusualHeaders));
    return {
      operation,
      method: chance(random, 2) ? pick(random, otherMethods) : operation.method,
      path: this.#path(operation),
      headers,
      key: chance(random, 4) ? pick(random, keys) : undefined,
      body: body?.bytes,
    };
  }

  /** A client's message for this socket, as text. */
  message({ socket }: Operation): string {
    const message = this.#values.of(socket?.client ?? {}, "message");
    return this.#garbled(JSON.stringify(message) ?? "");
  }

  #path({ path, parameters }: Operation): string {
    const random = this.#random;
    const signed = this.#pools["signed URLs"] as readonly string[];
    if (path.endsWith("/files/signed") && signed.length > 0 && chance(random, 80)) return this.#changed(signed);
    const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => this.#segment(name));
    const query = parameters
      .filter((each) => each.in === "query" && (each.name === "timeout" || chance(random, 60)))
      .map(({ name, schema }) => `${name}=${encoded(this.#values.of(schema, `?${name}`))}`);
    if (chance(random, 3)) query.push(encoded(pick(random, nastyTexts)));
    const whole = query.length === 0 ? filled : `${filled}?${query.join("&")}`;
    return chance(random, 2) ? whole + pick(random, ["/", "/%", "/%zz", "//", "/..", "/%2e%2e/", "/;a=b"]) : whole;
  }

  /** One of the URLs, sometimes with another byte. */
  #changed(urls: readonly string[]): string {
    const random = this.#random;
    const url = pick(random, urls);
    if (!chance(random, 30)) return url;
    const at = 1 + random.below(url.length - 1);
    return url.slice(0, at) + pick(random, ["0", "A", "&", "%00", ""]) + url.slice(at + 1);
  }

  #segment(name: string): string {
    const random = this.#random;
    const pool = this.#pools[`{${name}}`];
    return encoded(pool !== undefined && chance(random, 92) ? pick(random, pool) : pick(random, nastyTexts));
  }

  #body(operation: Operation): { bytes: Buffer; type?: string } | undefined {
    const random = this.#random;
    if (operation.hasForm) return { bytes: this.#form(), type: `multipart/form-data; boundary=${boundary}` };
    if (operation.hasArchive) return { bytes: this.#archive(), type: "application/x-tar" };
    if (operation.path.endsWith("/files/signed") && operation.method === "PUT")
      return { bytes: Buffer.from(random.bytes(random.size(30_000))), type: "application/octet-stream" };
    if (operation.json === undefined && !chance(random, 3)) return undefined;
    if (chance(random, 3)) return undefined;
    const text = JSON.stringify(this.#values.of(operation.json ?? {})) ?? "";
    return { bytes: Buffer.from(this.#garbled(text)), type: "application/json" };
  }

  /** The text, sometimes damaged. */
  #garbled(text: string): string {
    const random = this.#random;
    if (!chance(random, 6)) return text;
    return pick<() => string>(random, [
      () => text.slice(0, random.below(text.length + 1)),
      () => `${text}${text}`,
      () => text.replace(/\d+/, "1e999"),
      () => text.replace(/[a-z]/, "\\u0000"),
      () => text.replace("{", '{"__proto__":{"x":1},'),
      () => "[".repeat(20_000),
      () => `{"a":${'{"a":'.repeat(5_000)}`,
      () => `\ufeff${text}`,
      () => `"${"x".repeat(1_100_000)}"`,
      () => Buffer.from(text, "utf16le").toString("latin1"),
      () => "",
    ])();
  }

  /** A tar of random members, sometimes compressed, sometimes damaged. */
  #archive(): Buffer {
    const random = this.#random;
    const members = Array.from({ length: random.size(6) }, () => {
      const name = pick(random, ["f", "d/", "d/f", "link", "link/f", "../f", "/root/f", "x".repeat(300), ""]);
      const kind = pick(random, ["0", "0", "0", "1", "2", "3", "5", "6", "D", "K", "L", "S", "V", "g", "x", "\0", "?"]);
      const link = pick(random, ["", "f", "d", "..", "/etc/passwd"]);
      const content = pick(random, ["", "9 path=a\n", "18 GNU.sparse.x=1\n", "text".repeat(random.size(500))]);
      return member({ name, kind, link, content });
    });
    const tar = Buffer.concat(chance(random, 5) ? members : [...members, endMark]);
    const whole = chance(random, 30) ? gzipSync(tar) : tar;
    if (chance(random, 20)) whole[random.below(whole.length)] = random.below(256);
    return chance(random, 5) ? whole.subarray(0, random.below(whole.length)) : whole;
  }

  #form(): Buffer {
    const random = this.#random;
    const content = random.bytes(random.size(30_000));
    const part = (name: string, more: string, value: Buffer | string) => [
      `--${boundary}\r\nContent-Disposition: form-data; name="${name}"${more}\r\n\r\n`,
      value,
      "\r\n",
    ];
    const parts = [
      part("path", "", String(this.#values.of({ type: "string" }, "path"))),
      part("file", '; filename="f"', content),
    ];
    if (chance(random, 20)) parts.reverse();
    if (chance(random, 5)) parts.splice(random.below(2), 1);
    if (chance(random, 5)) parts.push(part(pick(random, ["path", "file", "other", ""]), "", "again"));
    const end = chance(random, 3) ? "" : `--${boundary}--\r\n`;
    const whole = Buffer.concat([...parts.flat(), end].map((each) => Buffer.from(each as string)));
    return chance(random, 3) ? whole.subarray(0, random.below(whole.length)) : whole;
  }
}

function encoded(value: unknown): string {
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  return encodeURIComponent(text.toWellFormed());
}
