import assert from "node:assert/strict";
import { describe, test } from "node:test";
import fc from "fast-check";
import { CapsuleError } from "../wire/errors.ts";
import { boundaryOf, readParts } from "./multipart.ts";

async function* chunked(bytes: Buffer, sizes: Iterable<number>): AsyncGenerator<Buffer, void> {
  let at = 0;
  for (const size of sizes) {
    if (at >= bytes.length) return;
    yield bytes.subarray(at, at + size);
    at += size;
  }
  if (at < bytes.length) yield bytes.subarray(at);
}

async function read(bytes: Buffer, boundary: string, sizes: Iterable<number> = []): Promise<[string, Buffer][]> {
  const parts: [string, Buffer][] = [];
  for await (const { name, body } of readParts(chunked(bytes, sizes), boundary)) {
    const chunks: Buffer[] = [];
    for await (const chunk of body) chunks.push(Buffer.from(chunk));
    parts.push([name, Buffer.concat(chunks)]);
  }
  return parts;
}

function form(boundary: string, parts: [string, Buffer][]): Buffer {
  const pieces = parts.flatMap(([name, body]) => [
    Buffer.from(`--${boundary}\r\nContent-Disposition: form-data; name="${name}"\r\n\r\n`),
    body,
    Buffer.from("\r\n"),
  ]);
  return Buffer.concat([...pieces, Buffer.from(`--${boundary}--\r\n`)]);
}

const named = 'Content-Disposition: form-data; name="a"';

describe("readParts", () => {
  test("property: the parts are read back, however the bytes are chunked", async () => {
    const boundary = "xYx";
    // Bodies made of the boundary's characters contain many partial boundaries.
    const piece = fc.constantFrom("\r", "\n", "-", "--", "x", "Y", "\r\n--x", "\r\n--xY", "\r\n--", "text", "\0");
    const body = fc
      .array(piece, { maxLength: 30 })
      .map((pieces) => pieces.join(""))
      .filter((text) => !text.includes("--xYx")) // removing it could join its halves to another one
      .map((text) => Buffer.from(text));
    const parts = fc.array(fc.tuple(fc.constantFrom("path", "file", "other"), body), { minLength: 1, maxLength: 4 });
    const sizes = fc.array(fc.integer({ min: 1, max: 20 }), { maxLength: 100 });
    await fc.assert(
      fc.asyncProperty(parts, sizes, async (expected, cuts) => {
        assert.deepEqual(await read(form(boundary, expected), boundary, cuts), expected);
      }),
      { numRuns: 500 },
    );
  });

  test("chunks of one byte give the same parts as one chunk", async () => {
    const expected: [string, Buffer][] = [
      ["path", Buffer.from("/tmp/ä")],
      ["file", Buffer.from([0, 255, 13, 10, 45, 45])],
    ];
    const bytes = form("b", expected);
    assert.deepEqual(await read(bytes, "b", Array(bytes.length).fill(1)), expected);
  });

  test("preamble, epilogue, padding, other headers, unusual quoting and skipped parts are accepted", async () => {
    const bytes = Buffer.from(
      'preamble\r\n--b \t\r\ncontent-type: text/plain\r\ncontent-disposition: form-data; filename="; name=no"; name="a\\"b"' +
        "\r\n\r\none\r\n--b\r\nContent-Disposition:form-data;NAME=plain\r\n\r\n\r\n--b--epilogue --b",
    );
    assert.deepEqual(await read(bytes, "b"), [
      ['a"b', Buffer.from("one")],
      ["plain", Buffer.from("")],
    ]);
    const names: string[] = [];
    for await (const { name } of readParts(chunked(bytes, [7, 7, 7]), "b")) names.push(name);
    assert.deepEqual(names, ['a"b', "plain"]);
  });

  const encoded = (...headers: string[]) =>
    Buffer.from(
      `--b\r\n${[...headers, 'Content-Disposition: form-data; name="file"'].join("\r\n")}\r\n\r\nYQ==\r\n--b--`,
    );

  for (const header of [
    "Content-Transfer-Encoding: binary",
    "content-transfer-encoding:8bit ",
    "CONTENT-TRANSFER-ENCODING : 7Bit",
    "Content-Transfer-Encoding:\r\n\tbinary",
    "Content-Transfer-Encoding:",
    "Content-Encoding: identity",
  ]) {
    test(`a part with ${JSON.stringify(header)} is its bytes`, async () => {
      assert.deepEqual(await read(encoded(header), "b"), [["file", Buffer.from("YQ==")]]);
    });
  }

  for (const [headers, encoding] of [
    [["Content-Transfer-Encoding: base64"], "Content-Transfer-Encoding base64"],
    [["content-transfer-encoding : Quoted-Printable"], "Content-Transfer-Encoding Quoted-Printable"],
    [["Content-Transfer-Encoding:\r\n base64"], "Content-Transfer-Encoding base64"],
    [["Content-Transfer-Encoding: x-uuencode"], "Content-Transfer-Encoding x-uuencode"],
    [["Content-Transfer-Encoding: binary", "Content-Transfer-Encoding: base64"], "Content-Transfer-Encoding base64"],
    [["Content-Encoding: gzip"], "Content-Encoding gzip"],
  ] as const) {
    test(`a part with ${JSON.stringify(headers)} is refused, with the encoding's name`, async () => {
      await assert.rejects(read(encoded(...headers), "b"), {
        code: "invalid_request",
        message: `the form cannot be read: its field file has the ${encoding}; send its bytes as they are`,
      });
    });
  }

  test("a part's other headers are ignored, whatever their names", async () => {
    await read(encoded("Constructor: x", "__proto__: x", "X-Other: x"), "b");
  });

  test("a part has the charset of its Content-Type", async () => {
    const types = ["text/plain", "text/plain; charset=utf-8", 'text/plain; a="b;c" ; CharSet="Shift_JIS"'];
    const bodies = types.map((type) => `--b\r\nContent-Type: ${type}\r\n${named}\r\n\r\n\r\n`).join("");
    const charsets: (string | undefined)[] = [];
    for await (const { charset } of readParts(chunked(Buffer.from(`${bodies}--b--`), []), "b")) charsets.push(charset);
    assert.deepEqual(charsets, [undefined, "utf-8", "Shift_JIS"]);
  });

  const bad: [string, string][] = [
    ["nothing", ""],
    ["no boundary", "hello"],
    ["no last boundary", '--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--b\r\n'],
    ["an end in the headers", "--b\r\nContent-Disposition: form-data"],
    ["a part without a name", "--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--"],
    ["a part without headers", "--b\r\n\r\n\r\nx\r\n--b--"],
    ["endless headers", `--b\r\nX: ${"x".repeat(20_000)}\r\n\r\n`],
    ["text behind the boundary", '--bx\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n--b--'],
    ["too many parts", `${'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n'.repeat(101)}--b--`],
  ];
  for (const [what, text] of bad) {
    test(`refuses ${what}`, async () => {
      const isRefusal = (error: unknown) => error instanceof CapsuleError && error.code === "invalid_request";
      await assert.rejects(read(Buffer.from(text), "b"), isRefusal);
    });
  }
});

describe("boundaryOf", () => {
  test("finds it quoted, plain and among other parameters", () => {
    assert.equal(boundaryOf("multipart/form-data; boundary=abc"), "abc");
    assert.equal(boundaryOf('Multipart/Form-Data;charset=utf-8;BOUNDARY="a b:c"'), "a b:c");
  });

  for (const [type, code] of [
    [undefined, "unsupported_media_type"],
    ["application/json", "unsupported_media_type"],
    ["multipart/mixed; boundary=a", "unsupported_media_type"],
    ["multipart/form-data", "invalid_request"],
    ["multipart/form-data; boundary=", "invalid_request"],
    [`multipart/form-data; boundary=${"x".repeat(71)}`, "invalid_request"],
  ] as const) {
    test(`${type?.slice(0, 50)} is ${code}`, () => {
      assert.throws(
        () => boundaryOf(type),
        (error) => error instanceof CapsuleError && error.code === code,
      );
    });
  }
});
