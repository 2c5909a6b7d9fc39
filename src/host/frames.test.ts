/** Frames to the agent and syncs of files that the frequent changes of a capsule cost: each new one is paid for by every request. */
import assert from "node:assert/strict";
import { once } from "node:events";
import fs from "node:fs";
import { open } from "node:fs/promises";
import { syncBuiltinESMExports } from "node:module";
import net from "node:net";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { AgentProcess } from "../../test/agent-process.ts";
import { hostOfPaused, id } from "../../test/fakes/paused-host.ts";
import { Transcript } from "../../test/fakes/transcript.ts";
import type { Agent } from "../agent/agent.ts";
import { connectAgent } from "../agent/connection.ts";
import { FrameParser, FrameType } from "../agent/frames.ts";
import { Verb } from "../agent/protocol.ts";

const nameOfVerb = new Map<number, string>(Object.entries(Verb).map(([name, number]) => [number, name]));
const nameOfType = new Map<number, string>(Object.entries(FrameType).map(([name, number]) => [number, name]));

/** A socket before the agent's own, and the frames that hosts send through it: verbs by name, other frames by type, without HELLO. */
async function countedAgent(t: TestContext): Promise<{ process: AgentProcess; socketPath: string; taken(): string[] }> {
  const process = await AgentProcess.start();
  t.after(() => process[Symbol.asyncDispose]());
  const socketPath = join(process.dir, "counted.sock");
  const frames: string[] = [];
  const server = net.createServer((host) => {
    const guest = net.connect(process.socketPath);
    const parser = new FrameParser((type, _flags, _epoch, _stream, payload) => {
      if (type === FrameType.HELLO) return; // repeated every 100 ms until the agent answers
      const verb = type === FrameType.OPEN ? nameOfVerb.get(payload.readUInt16LE(0)) : undefined;
      frames.push(verb ?? nameOfType.get(type) ?? String(type));
    });
    host.on("data", (bytes) => parser.push(bytes as Buffer));
    for (const socket of [host, guest]) socket.on("error", () => {});
    host.pipe(guest).pipe(host);
  });
  await once(server.listen(socketPath), "listening");
  t.after(() => server.close());
  return { process, socketPath, taken: () => frames.splice(0) };
}

/** Counts fsync and fdatasync of this process's JavaScript; SQLite's own follow from its statements. */
async function countedSyncs(t: TestContext): Promise<() => number> {
  let count = 0;
  const counted = <F extends (...args: never[]) => unknown>(call: F): F =>
    function (this: unknown, ...args: Parameters<F>) {
      count++;
      return call.apply(this, args);
    } as F;
  const probe = await open(import.meta.filename);
  const handle = Object.getPrototypeOf(probe) as { sync(): Promise<void>; datasync(): Promise<void> };
  await probe.close();
  const replaced = [
    [fs, ["fsync", "fdatasync", "fsyncSync", "fdatasyncSync"]],
    [handle, ["sync", "datasync"]],
  ] as const;
  for (const [owner, names] of replaced) {
    for (const name of names) {
      const methods = owner as unknown as Record<string, (...args: never[]) => unknown>;
      const own = methods[name]!;
      methods[name] = counted(own);
      t.after(() => {
        methods[name] = own;
        syncBuiltinESMExports();
      });
    }
  }
  syncBuiltinESMExports();
  return () => {
    const counts = count;
    count = 0;
    return counts;
  };
}

test("a resume, a command and a pause send these frames, and sync so often", async (t) => {
  const counted = await countedAgent(t);
  const agents: Agent[] = [];
  t.after(() => {
    for (const agent of agents) agent.close();
  });
  const { host } = await hostOfPaused(t, async (_path, deadlineMs, signal, protocol) => {
    const agent = await connectAgent(counted.socketPath, { deadlineMs, signal, protocol });
    agents.push(agent);
    return agent;
  });
  const syncs = await countedSyncs(t);

  const guest = await host.restore(id, { owner: "a team" });
  await host.release(guest);
  assert.deepEqual(counted.taken(), ["WAKE", "THAW"]);
  assert.equal(syncs(), 1, "the folder's file with the time of the disk layer");

  const transcript = new Transcript();
  transcript.of(guest.agent.run({ cmd: "/bin/true", args: [] }, transcript));
  assert.equal((await transcript.exit()).exitCode, 0);
  assert.deepEqual(counted.taken(), ["EXEC"]);
  assert.equal(syncs(), 0);

  const share = () => ({ owner: "a team", isOverQuota: false, sharers: ["a team"] });
  await host.save(guest, "pause", { owner: "a team", revision: 9, share });
  assert.deepEqual(counted.taken(), ["FREEZE"]);
  assert.equal(syncs(), 7, "four files and three folders");
});
