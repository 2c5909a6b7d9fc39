/** The real agent without memory to allocate: requests fail with an answer, and the agent lives on. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import path from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { AgentProcess } from "../../test/agent-process.ts";
import { entriesOf, processesOf } from "../../test/collected.ts";
import { Transcript } from "../../test/fakes/transcript.ts";
import { tar } from "../../test/tar.ts";
import type { Agent } from "./agent.ts";
import { AgentFailure } from "./failure.ts";

const deadline = { timeout: 120_000 };

/** Limits the agent's memory to what it has now, or not at all. */
async function limitMemory({ process }: AgentProcess, isLimited: boolean): Promise<void> {
  const status = await readFile(`/proc/${process.pid}/status`, "utf8");
  const bytes = Number(/^VmSize:\s+(\d+) kB$/m.exec(status)?.[1]) * 1024;
  await promisify(execFile)("prlimit", [`--pid=${process.pid}`, `--as=${isLimited ? bytes : "unlimited"}:unlimited`]);
}

async function extract(agent: Agent, folder: string): Promise<void> {
  const upload = agent.extract(folder);
  try {
    await upload.write(tar({ name: "extracted", content: "content" }));
    await upload.end();
  } catch (error) {
    upload.cancel();
    throw error;
  }
}

async function echo(agent: Agent, args: string[]): Promise<string> {
  const transcript = new Transcript();
  transcript.of(agent.run({ cmd: "/bin/echo", args }, transcript));
  await transcript.exit();
  return transcript.text("stdout");
}

test(
  "requests that need memory fail, others are served, and all are when there is memory again",
  deadline,
  async () => {
    await using guest = await AgentProcess.start();
    const agent = await guest.connect();
    await guest.wake(agent);
    const folder = path.join(guest.dir, "many");
    await mkdir(folder);
    await Promise.all(Array.from({ length: 2_000 }, (_, i) => writeFile(path.join(folder, `${i}`.repeat(50)), "")));
    const file = path.join(guest.dir, "file");
    await writeFile(file, "content");
    const isRefused = (error: unknown) => error instanceof AgentFailure && error.failure === "too_many";
    const long = Array.from({ length: 200_000 }, () => "long");
    await limitMemory(guest, true);
    for (let round = 0; round < 3; round++) {
      await assert.rejects(echo(agent, long), isRefused);
      await Promise.all([
        assert.rejects(processesOf(agent), isRefused),
        assert.rejects(extract(agent, guest.dir), isRefused),
        entriesOf(agent, folder, 1, 100_000).catch((error) => assert.ok(isRefused(error), String(error))),
        agent.read(file).then(
          ({ body }) => body.resume(),
          (error) => assert.ok(isRefused(error), String(error)),
        ),
      ]);
      await agent.probe();
    }
    await limitMemory(guest, false);
    await extract(agent, guest.dir);
    assert.equal(await readFile(path.join(guest.dir, "extracted"), "utf8"), "content");
    assert.equal((await echo(agent, long.slice(0, 20_000))).length, 100_000);
    assert.equal((await entriesOf(agent, folder, 1, 100_000)).length, 2_000);
    assert.ok((await processesOf(agent)).length > 0);
  },
);
