/** The content of a file to be sent: whole where it is there, else as a stream. */
import { type Bytes, utf8 } from "./bytes.ts";

export type FileContent =
  | string
  | Uint8Array
  | ArrayBuffer
  | Blob
  | ReadableStream<Uint8Array>
  | AsyncIterable<Uint8Array | string>;

export function wholeOf(content: FileContent): Blob | undefined {
  if (content instanceof Blob) return content;
  if (typeof content === "string") return new Blob([content]);
  if (content instanceof Uint8Array || content instanceof ArrayBuffer)
    return new Blob([content as Bytes | ArrayBuffer]);
  return undefined;
}

export function formOf(fields: readonly [string, string][], content: Blob): FormData {
  const form = new FormData();
  for (const [name, value] of fields) form.append(name, value);
  form.append("file", content, "file");
  return form;
}

/** A streamed multipart form: the fields, then the bytes of `stream` as the file. */
export function multipart(fields: readonly [string, string][], stream: ReadableStream<Uint8Array>) {
  const boundary = `capsule-${crypto.randomUUID()}`;
  const head = [
    ...fields.map(
      ([name, value]) => `--${boundary}\r\ncontent-disposition: form-data; name="${name}"\r\n\r\n${value}\r\n`,
    ),
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
export function streamOf(
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

export function isBrowser(): boolean {
  const { document, WorkerGlobalScope, process } = globalThis as Record<string, unknown>;
  return document !== undefined || (WorkerGlobalScope !== undefined && process === undefined);
}
