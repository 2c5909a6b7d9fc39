/** The files of one running capsule. Paths are absolute, inside the capsule. */
import { type Bytes, utf8 } from "./bytes.ts";
import { hasCode } from "./errors.ts";
import { camelKeys } from "./key-case.ts";
import type { FileEntry } from "./resources.ts";
import type { CallOptions, Transport } from "./transport.ts";

export type FileContent =
  | string
  | Uint8Array
  | ArrayBuffer
  | Blob
  | ReadableStream<Uint8Array>
  | AsyncIterable<Uint8Array | string>;

export interface ListOptions extends CallOptions {
  /** 0: the directory itself, 1: its children (the default), more: further down. */
  depth?: number;
}

export interface ArchiveOptions extends CallOptions {
  /** Default: `tar`. */
  format?: "tar" | "tar.gz";
  /** Names in the archive are relative to it, and all paths lie in it. Default: `/`. */
  base?: string;
}

export class Files {
  readonly #transport: Transport;
  readonly #capsulePath: string;
  readonly #path: string;

  /** `path`: the capsule's path in the API. */
  constructor(transport: Transport, path: string) {
    this.#transport = transport;
    this.#capsulePath = path;
    this.#path = `${path}/files`;
  }

  /** The whole file. Throws ServiceError `not_found`, `invalid_request` (a directory). */
  async read(path: string, options: CallOptions = {}): Promise<Bytes> {
    const request = { method: "POST", path: `${this.#path}/read`, json: { path }, repeat: "always" } as const;
    return new Uint8Array(await this.#transport.bytes({ ...unlimited, ...request, ...options }));
  }

  /** The whole file as UTF-8 text. */
  async readText(path: string, options: CallOptions = {}): Promise<string> {
    return new TextDecoder().decode(await this.read(path, options));
  }

  /** The file as a stream; it is not buffered as a whole. */
  async readStream(path: string, options: CallOptions = {}): Promise<ReadableStream<Bytes>> {
    const request = { method: "POST", path: `${this.#path}/stream/read`, json: { path }, repeat: "always" } as const;
    const response = await this.#transport.response({ ...request, ...options });
    return response.body as ReadableStream<Bytes>;
  }

  /**
   * Writes the file atomically: until the end, readers see the old content. Its directory must exist. Streams are sent
   * as they come, without buffering; browsers cannot send streams, there they are buffered first.
   */
  async write(path: string, content: FileContent, options: CallOptions = {}): Promise<void> {
    const request = { method: "POST", path: `${this.#path}/stream/write` } as const;
    const whole = wholeOf(content);
    if (whole !== undefined) {
      await this.#transport.done({ ...unlimited, ...request, body: formOf(path, whole), ...options });
      return;
    }
    const stream = streamOf(content as AsyncIterable<Uint8Array | string>);
    if (isBrowser()) {
      const gathered = await new Response(stream as ReadableStream<Bytes>).blob();
      await this.#transport.done({ ...unlimited, ...request, body: formOf(path, gathered), ...options });
      return;
    }
    const { headers, body } = multipart(path, stream);
    await this.#transport.done({ ...unlimited, ...request, headers, body, repeat: "never", ...options });
  }

  /** Ordered by path. */
  async list(path: string, { depth, ...options }: ListOptions = {}): Promise<FileEntry[]> {
    const request = { method: "POST", path: `${this.#path}/list`, json: { path, depth }, repeat: "always" } as const;
    const { entries } = await this.#transport.json<{ entries: unknown }>({ ...request, ...options });
    return camelKeys(entries);
  }

  /** The entry at the path; links are not followed. Undefined: it does not exist. */
  async stat(path: string, options: CallOptions = {}): Promise<FileEntry | undefined> {
    try {
      return (await this.list(path, { ...options, depth: 0 }))[0];
    } catch (error) {
      if (!hasCode(error, "not_found")) throw error;
      // Throws when the capsule itself does not exist.
      await this.#transport.json({ method: "GET", path: this.#capsulePath, ...options });
      return undefined;
    }
  }

  /** Creates the directory and its parents. No error when it exists. */
  async mkdir(path: string, options: CallOptions = {}): Promise<FileEntry> {
    const request = { method: "POST", path: `${this.#path}/mkdir`, json: { path }, repeat: "always" } as const;
    const { entry } = await this.#transport.json<{ entry: unknown }>({ ...request, ...options });
    return camelKeys(entry);
  }

  /** Removes a file, or a directory with its content. */
  async remove(path: string, options: CallOptions = {}): Promise<void> {
    await this.#transport.done({ method: "POST", path: `${this.#path}/remove`, json: { path }, ...options });
  }

  /**
   * Files and directories, these with all in them, as a tar; it is not buffered. An archive without its end mark means a
   * failure half-way, where the stream fails too. Throws ServiceError `not_found`.
   */
  async archive(
    paths: string | readonly string[],
    { format, base, ...options }: ArchiveOptions = {},
  ): Promise<ReadableStream<Bytes>> {
    const json = { paths: typeof paths === "string" ? [paths] : paths, format, base };
    const request = { method: "POST", path: `${this.#path}/archive`, json, repeat: "always" } as const;
    const response = await this.#transport.response({ ...request, ...options });
    return response.body as ReadableStream<Bytes>;
  }

  /**
   * Extracts a tar, as it is or compressed by gzip, into an existing directory. Files of the same name are replaced, others
   * stay, and nothing outside the directory is touched. Streams are sent as they come; browsers buffer them first. Throws
   * ServiceError `invalid_request` (no archive, a damaged one, or names that lead outside), `not_found`, `no_space`.
   */
  async extract(path: string, archive: FileContent, options: CallOptions = {}): Promise<void> {
    const headers = { "content-type": "application/x-tar" };
    const request = { method: "POST", path: `${this.#path}/extract`, query: { path }, headers } as const;
    const whole = wholeOf(archive);
    const stream = whole ?? streamOf(archive as AsyncIterable<Uint8Array | string>);
    const body = isBrowser() ? await new Response(stream as Blob | ReadableStream<Bytes>).blob() : stream;
    const repeat = body instanceof Blob ? "unsent" : "never";
    await this.#transport.done({ ...unlimited, ...request, body, repeat, ...options });
  }
}

/** The time of a transfer depends on the size of the file. */
const unlimited: CallOptions = { timeoutMs: 0 };

function wholeOf(content: FileContent): Blob | undefined {
  if (content instanceof Blob) return content;
  if (typeof content === "string") return new Blob([content]);
  if (content instanceof Uint8Array || content instanceof ArrayBuffer)
    return new Blob([content as Bytes | ArrayBuffer]);
  return undefined;
}

function formOf(path: string, content: Blob): FormData {
  const form = new FormData();
  form.append("path", path);
  form.append("file", content, "file");
  return form;
}

/** A streamed multipart form: the path, then the bytes of `stream` as the file. */
function multipart(path: string, stream: ReadableStream<Uint8Array>) {
  const boundary = `capsule-${crypto.randomUUID()}`;
  const head = [
    `--${boundary}\r\ncontent-disposition: form-data; name="path"\r\n\r\n${path}\r\n`,
    `--${boundary}\r\ncontent-disposition: form-data; name="file"; filename="file"\r\n`,
    "content-type: application/octet-stream\r\n\r\n",
  ].join("");
  async function* parts() {
    yield utf8(head);
    yield* chunksOf(stream);
    yield utf8(`\r\n--${boundary}--\r\n`);
  }
  return { headers: { "content-type": `multipart/form-data; boundary=${boundary}` }, body: streamOf(parts()) };
}

/** Some runtimes lack `ReadableStream.from` and iteration of streams. */
function streamOf(
  content: ReadableStream<Uint8Array> | AsyncIterable<Uint8Array | string>,
): ReadableStream<Uint8Array> {
  if (content instanceof ReadableStream) return content;
  const chunks = content[Symbol.asyncIterator]();
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      const { done, value } = await chunks.next();
      if (done) controller.close();
      else controller.enqueue(typeof value === "string" ? utf8(value) : value);
    },
    async cancel() {
      await chunks.return?.();
    },
  });
}

async function* chunksOf(stream: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array> {
  const reader = stream.getReader();
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) yield next.value;
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function isBrowser(): boolean {
  const { document, WorkerGlobalScope, process } = globalThis as Record<string, unknown>;
  return document !== undefined || (WorkerGlobalScope !== undefined && process === undefined);
}
