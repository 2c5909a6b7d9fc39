/** Kept output over kills and upgrades of the server. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, TestCapsule } from "../client.ts";
import { TestSocket } from "../conformance/socket.ts";
import { Server } from "../server.ts";
import { OtherVersion } from "./other-version.ts";

const lines = (word: string) => Array.from({ length: 300 }, (_, i) => `${word} ${i}\n`).join("");

/** Ends of a server, each with the start of the next one. */
const successions: Record<string, (server: Server, next: OtherVersion) => Promise<void>> = {
  "two kill -9 of the server": async (server) => {
    await server.kill("SIGKILL");
    await server.start();
    await server.adopted();
  },
  "an upgrade and a restart": async (server, next) => {
    await server.kill("SIGTERM");
    await server.start({}, next.program);
    await server.adopted();
  },
};

const script = "for ((i = 0; i < 300; i++)); do echo line $i; echo error $i >&2; sleep 0.02; done; exit 6";

/** Processes whose output is kept. The client of the one with `survive` leaves. */
const starts: Record<string, (capsule: TestCapsule) => Promise<{ tag: string }>> = {
  background: async (capsule) => (await capsule.exec({ cmd: "bash", args: ["-c", script], background: true })).json,
  survive: async (capsule) => {
    await using socket = await TestSocket.open(capsule, "exec/stream");
    socket.say({ type: "start", cmd: "bash", args: ["-c", script], survive: true });
    return await socket.next("start");
  },
};

for (const [what, succeed] of Object.entries(successions)) {
  test(`clients that come back by offset have all, over ${what} in between`, async () => {
    await using next = await OtherVersion.make("99.0.0");
    await using server = await Server.start();
    const client = await Client.connect(server.url, server.apiKey);
    const capsule = await client.capsule();
    const processes: string[] = [];
    for (const start of Object.values(starts)) processes.push((await start(capsule)).tag);
    const transcripts = processes.map(() => new Transcript());
    for (let successors = 0; successors <= 2; successors++) {
      const current = new TestCapsule(await Client.connect(server.url, server.apiKey), capsule.id);
      for (const [index, tag] of processes.entries())
        await transcripts[index]!.read(current, tag, successors === 2 ? Number.POSITIVE_INFINITY : 700);
      if (successors < 2) await succeed(server, next);
      else
        for (const [index, tag] of processes.entries()) {
          const { output, exitCode, length } = transcripts[index]!;
          assert.deepEqual([output.stdout, output.stderr, exitCode], [lines("line"), lines("error"), 6]);
          const logs = await current.client.call("GET", `${capsule.path}/processes/${tag}/logs`);
          assert.equal(logs.bytes.length, length);
        }
    }
  });
}

/** The output of a process that a client has read, over several connections. */
class Transcript {
  readonly output: Record<string, string> = { stdout: "", stderr: "" };
  exitCode: number | undefined;
  /** Bytes of both streams: the offset of the next one. */
  length = 0;

  /** Leaves after `bytes` more, or at the end. */
  async read(capsule: TestCapsule, tag: string, bytes: number): Promise<void> {
    const leaveAt = this.length + bytes;
    await using socket = await TestSocket.open(capsule, `processes/${tag}/stream?from=${this.length}&offsets=1`);
    await socket.next("start");
    while (this.length < leaveAt) {
      const { type, data, offset, exit_code } = await socket.any();
      if (type === "exit") {
        this.exitCode = exit_code;
        return;
      }
      assert.equal(offset, this.length);
      const read = Buffer.from(data, "base64");
      this.output[type] += read.toString();
      this.length += read.length;
    }
  }
}
