import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { Pipe } from "./pipe.ts";

const idleReader = { space: () => Buffer.alloc(1), filled() {}, drained() {}, lost() {} };

test("writes of one tick are sent together at its end, or at flush()", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "pipe-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const path = join(folder, "guest.sock");
  const server = createServer().listen(path);
  await once(server, "listening");
  const pipe = new Pipe(path, idleReader);
  const [guest] = (await once(server, "connection")) as [Socket];
  let heard = "";
  guest.on("data", (bytes: Buffer) => {
    heard += bytes;
  });
  pipe.write(Buffer.from("first "));
  await once(guest, "data"); // it is connected from here on

  pipe.write(Buffer.from("one "));
  pipe.write(Buffer.from("two "));
  assert.equal(pipe.queuedBytes, 8);
  pipe.flush();
  assert.equal(pipe.queuedBytes, 0);
  pipe.flush();
  pipe.write(Buffer.from("three"));
  assert.equal(pipe.queuedBytes, 5);
  await once(guest, "data");
  while (heard.length < "first one two three".length) await once(guest, "data");
  assert.equal(heard, "first one two three");
  assert.equal(pipe.queuedBytes, 0);
  const gone = once(guest, "end");
  pipe.destroy();
  await gone;
  server.close();
});
