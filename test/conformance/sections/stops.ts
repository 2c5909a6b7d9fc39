/** Stop, start and reboot: the disk is kept, memory and processes are not. */
import assert from "node:assert/strict";
import type { Reply, TestCapsule } from "../../client.ts";
import { waitFor } from "../../wait-for.ts";
import { section, test } from "../conforms.ts";
import { endGuest, guestGone } from "../guest-end.ts";
import { client, expectErrors } from "../service.ts";
import { TestSocket } from "../socket.ts";

const panic = "echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger";

/** Runs the script in the background; its end is not waited for. */
async function leave(capsule: TestCapsule, script: string): Promise<string> {
  const { status, json, text } = await capsule.exec({ cmd: "bash", args: ["-c", script], background: true });
  assert.equal(status, 202, text);
  return json.tag;
}

/** Resolves with the capsule when it runs again, after a run that began at `startedAt`. */
async function ranAgain(capsule: TestCapsule, startedAt: string): Promise<Reply["json"]> {
  return waitFor("the capsule runs again", async () => {
    const view = await capsule.view();
    assert.ok(["starting", "running"].includes(view.status), `${view.status}: ${view.error_reason}`);
    return view.status === "running" && view.started_at !== startedAt ? view : undefined;
  });
}

async function refuses(capsule: TestCapsule, verb: "stop" | "start", pattern: RegExp): Promise<void> {
  assertRefused(await client.call("POST", `${capsule.path}/${verb}`), pattern);
}

function assertRefused({ status, json, text }: Reply, pattern: RegExp): void {
  assert.equal(status, 409, text);
  assert.equal(json.error.code, "invalid_state");
  assert.match(json.error.message, pattern);
}

/** Stops a running capsule, which refuses other changes meanwhile. False if the stop was over before, as on a busy machine. */
async function refusesWhileItStops(capsule: TestCapsule): Promise<boolean> {
  if ((await capsule.view()).status === "stopped") await capsule.start();
  await leave(capsule, "trap '' TERM; touch /run/ready; while :; do sleep 1; done");
  await waitFor("it ignores SIGTERM", async () => (await capsule.sh("ls /run")).includes("ready"));
  let isOver = false;
  const stopping = capsule.stop().finally(() => {
    isOver = true;
  });
  const beingStopped = () => capsule.exec({ cmd: "true" });
  await waitFor("the stop has begun", async () => (await beingStopped()).status === 409);
  for (const [verb, pattern] of [
    ["start", /it is running/],
    ["stop", /it is being stopped/],
  ] as const) {
    const reply = await client.call("POST", `${capsule.path}/${verb}`);
    // This answer may be read before that of the stop.
    isOver ||= reply.status === 200 || /it is stopped/.test(reply.text);
    if (isOver) break;
    assertRefused(reply, pattern);
  }
  const wasOver = isOver;
  assert.equal((await stopping).status, "stopped");
  return !wasOver;
}

export const stopAndStart = section(import.meta, "stop and start", () => {
  test("files survive a stop and a start, programs end by SIGTERM, and the capsule is the same one", async () => {
    await using capsule = await client.capsule({ timeout_sec: 3_600 });
    const running = await capsule.view();
    const host = await capsule.sh("hostname; cat /etc/machine-id");
    await capsule.sh("echo kept > /root/kept");
    await leave(capsule, "trap 'echo bye > /root/bye; exit' TERM; touch /run/ready; while :; do sleep 0.1; done");
    await waitFor("the handler is set", async () => (await capsule.sh("ls /run")).includes("ready"));
    await using socket = await TestSocket.open(capsule, "pty");
    socket.say({ type: "start" });
    await socket.next("started");
    const stopped = await capsule.stop();
    assert.equal(stopped.status, "stopped");
    assert.ok(stopped.last_updated > running.last_updated);
    assert.equal(stopped.started_at, running.started_at);
    await refuses(capsule, "stop", /it is stopped, not running/);
    const started = await capsule.start();
    assert.equal(started.status, "running");
    assert.ok(started.started_at > running.started_at);
    await refuses(capsule, "start", /it is running, not stopped or error/);
    assert.equal(await capsule.sh("cat /root/kept /root/bye"), "kept\nbye");
    assert.equal(await capsule.sh("hostname; cat /etc/machine-id"), host);
    assert.equal(await capsule.sh("ls /run | grep -c ready || true"), "0", "memory is gone");
  });

  test("a started capsule is paused, resumed, stopped again and captured as any other", async () => {
    await using capsule = await client.capsule({ memory_mb: 256 });
    await capsule.sh("echo one > /root/one");
    await capsule.stop();
    await capsule.start();
    await leave(capsule, "echo two > /root/two; exec sleep 1000");
    await waitFor("the file is written", async () => (await capsule.run("pgrep", ["-x", "sleep"])).exit_code === 0);
    await capsule.pause();
    await refuses(capsule, "stop", /it is paused, not running/);
    await refuses(capsule, "start", /it is paused, not stopped or error/);
    await capsule.resume();
    assert.equal(await capsule.sh("cat /root/one /root/two; pgrep -c sleep"), "one\ntwo\n1");
    await capsule.stop();
    await capsule.start();
    const name = `started-${capsule.id.slice(3, 12)}`;
    await client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: capsule.id, name } });
    await using child = await client.capsule({ template: name });
    await child.stop();
    await child.start();
    assert.equal(await child.sh("cat /root/one /root/two"), "one\ntwo");
    await child.stop();
    await client.expect(204, "DELETE", `/v1/snapshots/${name}`);
    const { json } = await client.expect(409, "POST", `${child.path}/start`);
    assert.equal(json.error.code, "conflict");
  });

  test("a program that ignores SIGTERM is killed, and what it has written stays", async () => {
    await using capsule = await client.capsule();
    await leave(capsule, "trap '' TERM; echo stubborn > /root/stubborn; touch /run/ready; while :; do sleep 1; done");
    await waitFor("it ignores SIGTERM", async () => (await capsule.sh("ls /run")).includes("ready"));
    assert.equal((await capsule.stop()).status, "stopped");
    await capsule.start();
    assert.equal(await capsule.sh("cat /root/stubborn"), "stubborn");
  });

  test("while it stops it refuses other changes, and a DELETE ends both", async () => {
    const capsule = await client.capsule();
    await waitFor("refusals before it has stopped", () => refusesWhileItStops(capsule), { deadlineMs: 600_000 });
    const starting = client.call("POST", `${capsule.path}/start`);
    await capsule.destroy(); // before the start has begun, while it is under way, or after it
    assert.ok([200, 404].includes((await starting).status));
    await client.expect(404, "GET", capsule.path);
  });
});

export const reboots = section(import.meta, "reboots", () => {
  const ways = { "its reboot program": "reboot", "a reboot at once": "echo b > /proc/sysrq-trigger", "a panic": panic };
  for (const [what, script] of Object.entries(ways)) {
    test(`after ${what} a guest comes back by itself, with its disk, and without its processes`, async () => {
      await using capsule = await client.capsule();
      const { started_at, timeout_sec } = await capsule.view();
      await capsule.sh("echo kept > /root/kept; sync; touch /run/gone");
      await using socket = await TestSocket.open(capsule, "exec/stream");
      socket.say({ type: "start", cmd: "sleep", args: ["1000"] });
      await socket.next("start");
      await endGuest(capsule, script);
      assert.equal((await socket.closed).code, 1011);
      const view = await ranAgain(capsule, started_at);
      assert.equal(view.timeout_sec, timeout_sec);
      assert.equal(await capsule.sh("cat /root/kept; ls /run | grep -c gone || true"), "kept\n0");
    });
  }

  test("a guest that powers itself off is `stopped`, and starts from its disk", async () => {
    await using capsule = await client.capsule();
    await capsule.sh("echo kept > /root/kept");
    await endGuest(capsule, "poweroff");
    await capsule.until("stopped");
    await capsule.start();
    assert.equal(await capsule.sh("cat /root/kept"), "kept");
  });

  test("a command under way when the guest reboots is an error, and never a made-up exit", async () => {
    expectErrors(guestGone);
    await using capsule = await client.capsule();
    const { started_at } = await capsule.view();
    const { status, json, text } = await capsule.exec({ cmd: "bash", args: ["-c", panic], timeout: 0 });
    assert.deepEqual([status, json.error?.code], [502, "agent_error"], text);
    await ranAgain(capsule, started_at);
  });
});
