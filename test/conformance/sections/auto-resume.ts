/** Requests for a real capsule with `auto_resume` that is paused. */
import assert from "node:assert/strict";
import type { TestCapsule } from "../../client.ts";
import { waitFor } from "../../wait-for.ts";
import { section, test } from "../conforms.ts";
import { client, shown } from "../service.ts";
import { TestSocket } from "../socket.ts";

/** When the capsule last reached `running`. */
async function startedAt(capsule: TestCapsule): Promise<string> {
  return (await capsule.view()).started_at;
}

async function ping(capsule: TestCapsule): Promise<number> {
  return (await client.call("POST", `${capsule.path}/ping`)).status;
}

export const autoResume = section(import.meta, "auto_resume", () => {
  test("a hundred requests on a pausing and on a paused capsule are one resume each, and answers of all", async () => {
    await using capsule = await client.capsule({ auto_resume: true });
    await capsule.sh("echo 0 > /root/count");
    for (const isPausing of [true, false]) {
      const before = await startedAt(capsule);
      const pausing = capsule.pause();
      if (isPausing) await waitFor("a pause is under way", async () => (await ping(capsule)) === 409);
      else await pausing;
      // Half of them are files: an agent takes no more commands at once that have not begun.
      const file = { json: { path: "/root/count" } };
      const asked = Array.from({ length: 100 }, (_, at) =>
        at % 2 === 0
          ? capsule.exec({ cmd: "cat", args: ["/root/count"], timeout: 0 }) // the last waits for all others
          : client.call("POST", `${capsule.path}/files/stat`, file),
      );
      const [, answers] = await Promise.all([pausing, Promise.all(asked)]);
      for (const { status, text } of answers) assert.equal(status, 200, text);
      assert.notEqual(await startedAt(capsule), before);
    }
    await shown(async () => {
      const { json: log } = await client.expect(200, "GET", `/v1/audit?capsule=${capsule.id}&limit=1000`);
      const own = log.entries.filter(({ action }: { action: string }) => action === "capsule.resume");
      assert.deepEqual(
        own.map(({ key_id, subject }: { key_id: string; subject: string }) => [key_id, subject]),
        [
          ["", "auto_resume"],
          ["", "auto_resume"],
        ],
      );
    });
  });

  test("streams, terminals, processes, files and signed URLs go on; the rest stays paused", async () => {
    await using capsule = await client.capsule({ auto_resume: true });
    await capsule.sh("echo kept > /root/note");
    const { json: signed } = await client.expect(200, "POST", `${capsule.path}/files/url`, {
      json: { path: "/root/note" },
    });
    await capsule.pause();
    const paused = await capsule.view();
    assert.equal(paused.status, "paused");
    assert.equal(await ping(capsule), 409);
    assert.equal((await client.call("POST", `${capsule.path}/pause`)).status, 409);
    await client.expect(200, "PATCH", capsule.path, { json: { labels: { a: "b" } } });
    assert.equal((await fetch(`${signed.url}x`)).status, 401);
    assert.deepEqual(await capsule.view(), { ...paused, labels: { a: "b" } });

    assert.equal(await (await fetch(signed.url)).text(), "kept\n");
    await capsule.pause();
    await using socket = await TestSocket.open(capsule, "exec/stream");
    socket.say({ type: "start", cmd: "cat", args: ["/root/note"] });
    await socket.next("start");
    assert.equal((await socket.next("stdout")).data, "kept\n");
    await capsule.pause();
    await using terminal = await TestSocket.open(capsule, "pty");
    terminal.say({ type: "start", cmd: "cat", args: ["/root/note"] });
    await terminal.next("started");
    await capsule.pause();
    assert.equal((await client.expect(200, "GET", `${capsule.path}/processes`)).status, 200);
    await capsule.pause();
    const found = await client.expect(200, "POST", `${capsule.path}/files/stat`, { json: { path: "/root/note" } });
    assert.equal(found.json.entry.size, "kept\n".length);
  });
});
