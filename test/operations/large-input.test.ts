/** A gibibyte on the standard input of a command, through the command line, to a program in a real VM that reads all of it. */
import assert from "node:assert/strict";
import { createCipheriv, createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { test } from "node:test";
import { CommandLine } from "../cli/command-line.ts";
import { Client } from "../client.ts";
import { Server } from "../server.ts";

const totalBytes = 2 ** 30;
const chunkBytes = 2 ** 20;

/** Bytes without a pattern: zeros, encrypted. `hash` is that of the bytes given so far. */
function randomContent(): { chunks: Readable; digest(): string } {
  const cipher = createCipheriv("aes-128-ctr", randomBytes(16), randomBytes(16));
  const zeros = Buffer.alloc(chunkBytes);
  const hash = createHash("sha1");
  function* chunks() {
    for (let bytes = 0; bytes < totalBytes; bytes += chunkBytes) {
      const chunk = cipher.update(zeros);
      hash.update(chunk);
      yield chunk;
    }
  }
  return { chunks: Readable.from(chunks()), digest: () => hash.digest("hex") };
}

test("exec -i passes 1 GiB on, byte by byte", { timeout: 1_200_000 }, async () => {
  await using server = await Server.start();
  const client = await Client.connect(server.url, server.apiKey);
  const { id } = await client.capsule();
  const line = new CommandLine({ CAPSULE_DATA: server.dataDir });
  const { chunks, digest } = randomContent();
  const child = line.start(["exec", "-i", id, "--", "sha1sum"]);
  const [output, ended] = [child.stdout.toArray(), once(child, "close")];
  await pipeline(chunks, child.stdin);
  assert.deepEqual(await ended, [0, null]);
  assert.equal(Buffer.concat(await output).toString(), `${digest()}  -\n`);
});
