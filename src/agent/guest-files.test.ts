/** The file verbs of the real agent. */
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { chmod, lstat, mkdir, readdir, readFile, readlink, symlink, writeFile } from "node:fs/promises";
import { after, before, beforeEach, describe, it } from "node:test";
import { AgentProcess } from "../../test/agent-process.ts";
import { entriesOf } from "../../test/collected.ts";
import { waitFor } from "../../test/wait-for.ts";
import type { Agent } from "./agent.ts";
import { AgentFailure } from "./failure.ts";
import { handshake } from "./handshake.ts";
import { decodeEmpty, limits, listRequest, request, Verb, wakeRequest } from "./protocol.ts";

/** The agent's own limit (docs/AGENT-PROTOCOL.md). */
const fileStreamsMax = 256;

let guest: AgentProcess;
let agent: Agent;
let dir: string;
let tests = 0;

before(async () => {
  guest = await AgentProcess.start();
  agent = await guest.connect();
  await guest.wake(agent);
});
after(() => guest[Symbol.asyncDispose]());
beforeEach(async () => {
  dir = guest.file(`test-${tests++}`);
  await mkdir(dir);
});

async function upload(path: string, content: Uint8Array): Promise<void> {
  const file = agent.write(path);
  await file.write(content);
  assert.deepEqual(await file.end(), { bytes: content.length });
}

async function download(path: string): Promise<{ size: number; content: Buffer }> {
  const { size, body } = await agent.read(path);
  return { size, content: Buffer.concat(await body.toArray()) };
}

function failsWith(...failures: AgentFailure["failure"][]): (error: unknown) => boolean {
  return (error) => error instanceof AgentFailure && failures.includes(error.failure);
}

describe("files", () => {
  it("are read as they were written, at every buffer boundary", async () => {
    const borders = [0, 4_096, 65_536, 131_072, 262_144, 1024 * 1024];
    for (const size of new Set(
      borders.flatMap((border) => [border - 1, border, border + 1]).filter((size) => size >= 0),
    )) {
      const content = randomBytes(size);
      await upload(`${dir}/file`, content);
      assert.ok((await readFile(`${dir}/file`)).equals(content), `${size} bytes written`);
      const read = await download(`${dir}/file`);
      assert.equal(read.size, size);
      assert.ok(read.content.equals(content), `${size} bytes read`);
    }
    assert.deepEqual(await readdir(dir), ["file"]);
  });

  it("travel many at a time, in both directions", async () => {
    const contents = Array.from({ length: 12 }, (_, i) => randomBytes(i * 300_000 + 17));
    await Promise.all(contents.map((content, i) => upload(`${dir}/${i}`, content)));
    const read = await Promise.all(contents.map((_, i) => download(`${dir}/${i}`)));
    assert.ok(read.every(({ content }, i) => content.equals(contents[i]!)));
  });

  it("keep owner, mode and links when they are written again; new ones are 0644", async () => {
    await upload(`${dir}/new`, Buffer.from("1"));
    assert.equal((await lstat(`${dir}/new`)).mode & 0o7777, 0o644);
    await chmod(`${dir}/new`, 0o700);
    await symlink("new", `${dir}/link`);
    await upload(`${dir}/link`, Buffer.from("22"));
    assert.equal(await readlink(`${dir}/link`), "new");
    assert.equal(await readFile(`${dir}/new`, "utf8"), "22");
    assert.equal((await lstat(`${dir}/new`)).mode & 0o7777, 0o700);
  });

  it("stay unchanged when an upload is cancelled or its connection is lost", async () => {
    await upload(`${dir}/file`, Buffer.from("old"));
    for (const sizeBytes of [100_000, 6_000_000]) {
      const abandoned = agent.write(`${dir}/file`);
      await abandoned.write(randomBytes(sizeBytes));
      abandoned.cancel();
    }
    const other = await guest.connect();
    const cut = other.write(`${dir}/file`);
    await cut.write(randomBytes(100_000));
    other.close();
    await assert.rejects(cut.end());
    agent = await guest.connect();
    await waitFor("the temporary files are gone", async () => (await readdir(dir)).length === 1);
    assert.equal(await readFile(`${dir}/file`, "utf8"), "old");
  });

  it("can get their target after their content", async () => {
    const content = randomBytes(300_000);
    const file = agent.write(undefined);
    await file.write(content);
    file.target(`${dir}/late`);
    assert.deepEqual(await file.end(), { bytes: content.length });
    assert.ok((await readFile(`${dir}/late`)).equals(content));
    const lost = agent.write(undefined);
    await lost.write(content);
    lost.target(`${dir}/no/such/folder`);
    await assert.rejects(lost.end(), AgentFailure);
  });

  it("are refused at impossible paths", async () => {
    await writeFile(`${dir}/file`, "x");
    const refused = ["not_found", "invalid", "is_directory", "not_directory"] as const;
    for (const path of [dir, `${dir}/no/file`, `${dir}/file/below`]) {
      await assert.rejects(upload(path, Buffer.from("x")), failsWith(...refused), path);
    }
    await assert.rejects(download(`${dir}/missing`), failsWith("not_found"));
    await assert.rejects(download(dir), failsWith("is_directory"));
    await assert.rejects(download("/dev/null"), failsWith("invalid"));
    assert.deepEqual(await readdir(dir), ["file"]);
  });

  it("are read no faster than their reader consumes them, until it cancels", async () => {
    await writeFile(`${dir}/big`, Buffer.alloc(20_000_000));
    const { body } = await agent.read(`${dir}/big`);
    await new Promise((resolve) => body.once("readable", resolve));
    await agent.probe();
    assert.ok(body.readableLength <= 262_144);
    body.destroy();
    await agent.probe();
  });
});

describe("folders", () => {
  beforeEach(async () => {
    await mkdir(`${dir}/a/b/c`, { recursive: true });
    await writeFile(`${dir}/a/file`, "12345");
    await symlink("../nowhere", `${dir}/a/link`);
  });

  const paths = (entries: { path: string }[]) => entries.map(({ path }) => path.slice(dir.length));

  it("list themselves, their children, or everything below", async () => {
    assert.deepEqual(paths(await entriesOf(agent, `${dir}/a`, 0, 100)), ["/a"]);
    assert.deepEqual(paths(await entriesOf(agent, `${dir}/a`, 1, 100)), ["/a/b", "/a/file", "/a/link"]);
    assert.deepEqual(paths(await entriesOf(agent, dir, 9, 100)), ["/a", "/a/b", "/a/b/c", "/a/file", "/a/link"]);
    assert.deepEqual(paths(await entriesOf(agent, `${dir}/a/file`, 3, 100)), ["/a/file"]);
    await assert.rejects(entriesOf(agent, `${dir}/x`, 1, 100), failsWith("not_found"));
    await assert.rejects(entriesOf(agent, dir, 9, 4), failsWith("too_large"));
  });

  it("describe their entries", async () => {
    const [folder, file, link] = await entriesOf(agent, `${dir}/a`, 1, 100);
    const stat = await lstat(`${dir}/a/file`);
    assert.deepEqual(file, {
      name: "file",
      path: `${dir}/a/file`,
      type: "file",
      size: 5,
      mode: stat.mode,
      owner: "root",
      group: "root",
      mtime: Math.floor(stat.mtimeMs / 1_000),
      target: null,
    });
    assert.deepEqual([folder?.type, folder?.target], ["directory", null]);
    assert.deepEqual([link?.type, link?.target], ["symlink", "../nowhere"]);
  });

  it("of thousands of entries are listed completely", async () => {
    const names = Array.from({ length: 2_000 }, (_, i) => `${"n".repeat(i % 200)}-${i}`);
    await mkdir(`${dir}/many`);
    await Promise.all(names.map((name) => writeFile(`${dir}/many/${name}`, "")));
    const entries = await entriesOf(agent, `${dir}/many`, 1, 2_000);
    assert.deepEqual(entries.map(({ name }) => name).sort(), names.sort());
  });

  it("whose listing was cancelled make room for others", async () => {
    await mkdir(`${dir}/many`);
    const names = Array.from({ length: 1_500 }, (_, i) => `${"n".repeat(200)}-${i}`);
    await Promise.all(names.map((name) => writeFile(`${dir}/many/${name}`, "")));
    await using own = await AgentProcess.start();
    const { channel } = await handshake(own.socketPath, { deadlineMs: 60_000, silenceMs: 60_000 });
    const entropy = randomBytes(64);
    await channel.call(Verb.WAKE, wakeRequest({ entropy, hostname: "x", machineId: "0".repeat(32) }, 0n), decodeEmpty);
    await channel.call(Verb.THAW, request(Verb.THAW), decodeEmpty);
    // Nothing is consumed, so each listing stops when its window is full.
    const stalled = () => {
      const { promise, resolve, reject } = Promise.withResolvers<void>();
      let bytes = 0;
      const stream = channel.open(Verb.LIST, listRequest(`${dir}/many`, 1, 10_000), {
        event() {},
        data: (_output, chunk) => {
          bytes += chunk.length;
          if (bytes > limits.windowBytes - 4_096) resolve();
        },
        result: () => reject(new Error("it was not stopped by its window")),
        failed: reject,
      });
      return { stream, promise };
    };
    const listings = Array.from({ length: fileStreamsMax }, stalled);
    await Promise.all(listings.map(({ promise }) => promise));
    await assert.rejects(stalled().promise, failsWith("too_many"));
    for (const { stream } of listings) stream.cancel();
    await stalled().promise;
    channel.close(new Error("the test is over"));
  });

  it("are made with missing parents, and removed with their content", async () => {
    const made = await agent.mkdir(`${dir}/x/y/z`);
    assert.deepEqual([made.path, made.type, made.name], [`${dir}/x/y/z`, "directory", "z"]);
    assert.equal((await agent.mkdir(`${dir}/x/y/z`)).type, "directory");
    for (const path of [`${dir}/a/file`, `${dir}/a/file/below`]) {
      await assert.rejects(agent.mkdir(path), failsWith("invalid", "not_directory"), path);
    }
    await agent.remove(`${dir}/a/link`);
    await agent.remove(`${dir}/a`);
    await agent.remove(`${dir}/x`);
    assert.deepEqual(await readdir(dir), []);
    await assert.rejects(agent.remove(`${dir}/a`), failsWith("not_found"));
  });
});
