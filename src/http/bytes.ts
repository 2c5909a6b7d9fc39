/** Answers that are bytes. */
import type { Readable } from "node:stream";
import Type from "typebox";

export const bytesType = "application/octet-stream";
const Binary = Type.Unsafe<Buffer | Readable>({ type: "string", format: "binary" });
export const Bytes = { content: { [bytesType]: { schema: Binary } } };
