/** The output of a background process over kills of the server. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, TestCapsule } from "../client.ts";
import { TestSocket } from "../conformance/socket.ts";
import { Server } from "../server.ts";

const lines = (word: string) => Array.from({ length: 300 }, (_, i) => `${word} ${i}\n`).join("");

test("a client that comes back by offset has all, over two kill -9 of the server in between", async () => {
  await using server = await Server.start();
  let client = await Client.connect(server.url, server.apiKey);
  let capsule = await client.capsule();
  const script = "for ((i = 0; i < 300; i++)); do echo line $i; echo error $i >&2; sleep 0.02; done; exit 6";
  const { json } = await capsule.exec({ cmd: "bash", args: ["-c", script], background: true });
  const output: Record<string, string> = { stdout: "", stderr: "" };
  let [next, kills] = [0, 0];
  let exitCode: number | undefined;
  while (exitCode === undefined) {
    await using socket = await TestSocket.open(capsule, `processes/${json.tag}/stream?from=${next}&offsets=1`);
    await socket.next("start");
    const leaveAt = next + 700;
    while (next < leaveAt && exitCode === undefined) {
      const { type, data, offset, exit_code } = await socket.any();
      exitCode = exit_code;
      if (type === "exit") break;
      assert.equal(offset, next);
      const bytes = Buffer.from(data, "base64");
      output[type] += bytes.toString();
      next += bytes.length;
    }
    if (kills === 2 || exitCode !== undefined) continue;
    kills++;
    await server.kill("SIGKILL");
    await server.start();
    client = await Client.connect(server.url, server.apiKey);
    capsule = new TestCapsule(client, capsule.id);
  }
  assert.deepEqual([output.stdout, output.stderr, exitCode, kills], [lines("line"), lines("error"), 6, 2]);
  const logs = await client.call("GET", `${capsule.path}/processes/${json.tag}/logs`);
  assert.equal(logs.bytes.length, next);
});
