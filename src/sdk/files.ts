/** The files of one running capsule. Paths are absolute, inside the capsule. */
import type { Bytes } from "./bytes.ts";
import { hasCode } from "./errors.ts";
import { type FileContent, formOf, isBrowser, multipart, streamOf, wholeOf } from "./file-content.ts";
import { camelKeys } from "./key-case.ts";
import type { FileEntry } from "./resources.ts";
import type { CallOptions, Transport } from "./transport.ts";
import { Watch, type WatchOptions } from "./watch.ts";

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

/** Part of a file. Beyond the end of the file: ServiceError `range_not_satisfiable`. */
export interface ReadOptions extends CallOptions {
  /** First byte, from 0. */
  offset?: number;
  /** At most so many bytes, at least 1; default: up to the end. */
  length?: number;
}

export interface WriteOptions extends CallOptions {
  /** Makes missing directories above the file, 0755 and of the same owner. Default: false. */
  parents?: boolean;
  /** As for chmod. Default: the old file's, for a new one 0644. */
  mode?: string | number;
  /** A user of the guest, whose first group the file gets, or a uid. Default: the old file's, for a new one root. */
  owner?: string | number;
}

export interface MoveOptions extends CallOptions {
  /** Replaces a file or link; a directory never. Default: false. */
  overwrite?: boolean;
}

export interface RecursiveOptions extends CallOptions {
  /** All below it too; no link there is followed. Default: false. */
  recursive?: boolean;
}

export interface ChownOptions extends RecursiveOptions {
  /** A user of the guest or a uid; left out: the owner stays. */
  owner?: string | number;
  /** A group of the guest or a gid; left out: the group stays. */
  group?: string | number;
}

export interface UrlOptions extends CallOptions {
  /** GET reads the file; PUT writes it, with the content as the request's body. Default: GET. */
  method?: "GET" | "PUT";
  /** Life of the URL in seconds, at most a week. Default: 3 600. */
  expiresSec?: number;
}

export interface SignedUrl {
  url: string;
  /** ISO 8601. */
  expiresAt: string;
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

  /** The whole file or a part of it. Throws ServiceError `not_found`, `invalid_request` (a directory). */
  async read(path: string, { offset, length, ...options }: ReadOptions = {}): Promise<Bytes> {
    const headers = rangeHeader(offset, length);
    const json = { path };
    const request = { method: "POST", path: `${this.#path}/read`, json, headers, repeat: "always" } as const;
    const { status, body } = await this.#transport.answer({ ...unlimited, ...request, ...options });
    const bytes = new Uint8Array(body);
    // A file of unknown size, as those of /proc, is sent as a whole.
    if (status === 206 || (offset === undefined && length === undefined)) return bytes;
    return bytes.slice(offset ?? 0, length === undefined ? undefined : (offset ?? 0) + length);
  }

  /** The file as UTF-8 text, the whole or a part of it. */
  async readText(path: string, options: ReadOptions = {}): Promise<string> {
    return new TextDecoder().decode(await this.read(path, options));
  }

  /** The file as a stream, the whole or a part of it; it is not buffered. Files of /proc are always whole. */
  async readStream(path: string, { offset, length, ...options }: ReadOptions = {}): Promise<ReadableStream<Bytes>> {
    const headers = rangeHeader(offset, length);
    const json = { path };
    const request = { method: "POST", path: `${this.#path}/stream/read`, json, headers, repeat: "always" } as const;
    const response = await this.#transport.response({ ...request, ...options });
    return response.body as ReadableStream<Bytes>;
  }

  /**
   * Writes the file atomically: until the end, readers see the old content. Streams are sent as they come, without
   * buffering; browsers cannot send streams, there they are buffered first.
   */
  async write(
    path: string,
    content: FileContent,
    { parents, mode, owner, ...options }: WriteOptions = {},
  ): Promise<void> {
    const request = { method: "POST", path: `${this.#path}/stream/write` } as const;
    const fields: [string, string][] = [["path", path]];
    if (parents !== undefined) fields.push(["parents", String(parents)]);
    if (mode !== undefined) fields.push(["mode", octal(mode)]);
    if (owner !== undefined) fields.push(["owner", String(owner)]);
    const whole = wholeOf(content);
    if (whole !== undefined) {
      await this.#transport.done({ ...unlimited, ...request, body: formOf(fields, whole), ...options });
      return;
    }
    const stream = streamOf(content as AsyncIterable<Uint8Array | string>);
    if (isBrowser()) {
      const gathered = await new Response(stream as ReadableStream<Bytes>).blob();
      await this.#transport.done({ ...unlimited, ...request, body: formOf(fields, gathered), ...options });
      return;
    }
    const { headers, body } = multipart(fields, stream);
    await this.#transport.done({ ...unlimited, ...request, headers, body, repeat: "never", ...options });
  }

  /** Ordered by path. */
  async list(path: string, { depth, ...options }: ListOptions = {}): Promise<FileEntry[]> {
    const request = { method: "POST", path: `${this.#path}/list`, json: { path, depth }, repeat: "always" } as const;
    const { entries } = await this.#transport.json<{ entries: unknown }>({ ...request, ...options });
    return camelKeys(entries);
  }

  /** The entry at the path; a link at its end is not followed. Undefined: it does not exist. */
  async stat(path: string, options: CallOptions = {}): Promise<FileEntry | undefined> {
    const request = { method: "POST", path: `${this.#path}/stat`, json: { path }, repeat: "always" } as const;
    try {
      const { entry } = await this.#transport.json<{ entry: unknown }>({ ...request, ...options });
      return camelKeys(entry);
    } catch (error) {
      // The guest of a capsule that an earlier release saved has no such request.
      if (hasCode(error, "conflict")) return (await this.list(path, { ...options, depth: 0 }))[0];
      if (!hasCode(error, "not_found")) throw error;
      // Throws when the capsule itself does not exist.
      await this.#transport.json({ method: "GET", path: this.#capsulePath, ...options });
      return undefined;
    }
  }

  /** Whether there is a file, directory or link; a link's target may be missing. */
  async exists(path: string, options: CallOptions = {}): Promise<boolean> {
    return (await this.stat(path, options)) !== undefined;
  }

  /**
   * Moves a file or a directory with its content, to another file system too, and resolves with its new entry. Throws
   * ServiceError `conflict` when `to` exists.
   */
  async move(from: string, to: string, { overwrite, ...options }: MoveOptions = {}): Promise<FileEntry> {
    const json = { from, to, overwrite };
    const request = { method: "POST", path: `${this.#path}/move`, json, repeat: "unsent" } as const;
    const { entry } = await this.#transport.json<{ entry: unknown }>({ ...unlimited, ...request, ...options });
    return camelKeys(entry);
  }

  /** `mode`: three or four octal digits, or the number they stand for. A link at the end of the path is followed. */
  async chmod(path: string, mode: string | number, { recursive, ...options }: RecursiveOptions = {}): Promise<void> {
    const json = { path, mode: octal(mode), recursive };
    const request = { method: "POST", path: `${this.#path}/chmod`, json, repeat: "always" } as const;
    await this.#transport.done({ ...unlimited, ...request, ...options });
  }

  /** A link at the end of the path is followed. Throws ServiceError `invalid_request` for an unknown name. */
  async chown(path: string, { owner, group, recursive, ...options }: ChownOptions): Promise<void> {
    const json = { path, owner: textOf(owner), group: textOf(group), recursive };
    const request = { method: "POST", path: `${this.#path}/chown`, json, repeat: "always" } as const;
    await this.#transport.done({ ...unlimited, ...request, ...options });
  }

  /** A URL that reads or writes the file without a key, until it expires or the key or capsule ends. Give it to whom may do that. */
  async url(path: string, { method, expiresSec, ...options }: UrlOptions = {}): Promise<SignedUrl> {
    const json = { path, method, expires_sec: expiresSec };
    const request = { method: "POST", path: `${this.#path}/url`, json, repeat: "always" } as const;
    return camelKeys(await this.#transport.json({ ...request, ...options }));
  }

  /**
   * The changes of a directory from when it resolves. Throws ServiceError `not_found`, `invalid_request` (no directory, or too many
   * below it), `quota_exceeded` (too many watches of the capsule).
   */
  watch(path: string, options: WatchOptions = {}): Promise<Watch> {
    return Watch.open(this.#transport, `${this.#path}/watch`, path, options);
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

function rangeHeader(offset: number | undefined, length: number | undefined): Record<string, string> {
  if (offset === undefined && length === undefined) return {};
  const first = offset ?? 0;
  if (!Number.isSafeInteger(first) || first < 0) throw new TypeError("offset must be a whole number from 0 on");
  if (length === undefined) return { range: `bytes=${first}-` };
  if (!Number.isSafeInteger(length) || length < 1) throw new TypeError("length must be a whole number from 1 on");
  return { range: `bytes=${first}-${first + length - 1}` };
}

function octal(mode: string | number): string {
  return typeof mode === "number" ? mode.toString(8).padStart(3, "0") : mode;
}

function textOf(account: string | number | undefined): string | undefined {
  return account === undefined ? undefined : String(account);
}
