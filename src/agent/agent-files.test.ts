/** Special cases of the real agent's file verbs: mounts, and paths with missing folders. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { after, before, describe, it } from "node:test";
import { AgentProcess } from "../../test/agent-process.ts";
import type { Agent } from "./agent.ts";
import { AgentFailure } from "./failure.ts";

let guest: AgentProcess;
let agent: Agent;

before(async () => {
  guest = await AgentProcess.start();
  agent = await guest.connect();
  await guest.wake(agent);
});
after(() => guest[Symbol.asyncDispose]());

/** A second mount of a file system: a rename into it fails although the device is the same. */
async function bindMount(name: string): Promise<string> {
  const dir = guest.file(name);
  await mkdir(dir);
  execFileSync("mount", ["--bind", dir, dir]);
  return dir;
}

async function upload(path: string, content: string): Promise<void> {
  const file = agent.write(path);
  await file.write(Buffer.from(content));
  await file.end();
}

function failsWith(failure: AgentFailure["failure"]): (error: unknown) => boolean {
  return (error) => error instanceof AgentFailure && error.failure === failure;
}

describe("a write", () => {
  it("through a missing folder is refused, with dots or without", async () => {
    await mkdir(guest.file("there"));
    for (const path of ["missing/file", "missing/../file", "there/missing/../../file"])
      await assert.rejects(upload(`${guest.dir}/${path}`, "x"), failsWith("invalid"), path);
    await upload(`${guest.dir}/there/../file`, "x");
  });

  it("whose target is set last can be on another mount of the same file system", async () => {
    const dir = await bindMount("mounted");
    try {
      const content = randomBytes(3 * 1024 * 1024 + 7);
      const file = agent.write(undefined);
      await file.write(content);
      file.target(`${dir}/file`);
      assert.deepEqual(await file.end(), { bytes: content.length });
      assert.ok((await readFile(`${dir}/file`)).equals(content));
      assert.deepEqual(await readdir(dir), ["file"]);
    } finally {
      execFileSync("umount", [dir]);
    }
  });
});

describe("a removal", () => {
  it("of a tree that contains a mount removes nothing", async () => {
    const tree = guest.file("tree");
    await mkdir(`${tree}/a/b`, { recursive: true });
    const mounted = await bindMount("tree/a/b/with space");
    try {
      for (const name of ["0", "a/0", "a/b/0", "z"]) await writeFile(`${tree}/${name}`, "");
      const before = await readdir(tree, { recursive: true });
      await assert.rejects(agent.remove(tree), failsWith("invalid"));
      assert.deepEqual(await readdir(tree, { recursive: true }), before);
    } finally {
      execFileSync("umount", [mounted]);
    }
    await agent.remove(tree);
    await assert.rejects(readdir(tree), { code: "ENOENT" });
  });
});
