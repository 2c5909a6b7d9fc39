/** Section "States and transitions": every row of its table, and the state that must survive. */
import assert from "node:assert/strict";
import { setTimeout as delay } from "node:timers/promises";
import type { Reply, TestCapsule } from "../../client.ts";
import { waitFor } from "../../wait-for.ts";
import { conforms, section, simultaneously, test } from "../conforms.ts";
import { assertClockSet } from "../guest-clock.ts";
import { endGuest } from "../guest-end.ts";
import { askMemoryProcess, startMemoryProcess } from "../memory-process.ts";
import { Random } from "../random.ts";
import { request } from "../requests.ts";
import { client } from "../service.ts";
import { endpointsWith } from "../specification.ts";

const constant = ["id", "template", "vcpus", "memory_mb", "timeout_sec", "created_at"];

function sameRecord(now: Reply["json"], then: Reply["json"]): void {
  for (const field of constant) assert.deepEqual(now[field], then[field], field);
}

/** A hash of every file under /root/tree. */
function treeHash(capsule: TestCapsule): Promise<string> {
  return capsule.sh("cd /root/tree && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum");
}

/** A background process that writes 1, 2, 3… to /root/log; its tag. */
async function startWriter(capsule: TestCapsule): Promise<string> {
  const script = "i=0; while true; do i=$((i+1)); echo $i >> /root/log; done";
  const { status, json, text } = await capsule.exec({ cmd: "bash", args: ["-c", script], background: true });
  assert.equal(status, 202, text);
  return json.tag;
}

async function holdsEveryLine(capsule: TestCapsule, tag: string): Promise<void> {
  await client.expect(204, "DELETE", `${capsule.path}/processes/${tag}`);
  // A kernel that ends the writer completes a line that crosses two pages.
  const script = "n=$(wc -l < /root/log); echo $n; cmp <(seq $n) <(head -n $n /root/log)";
  assert.ok(Number(await capsule.sh(script)) > 0);
}

async function refusesAllButDelete(capsule: TestCapsule): Promise<void> {
  for (const endpoint of endpointsWith("409 not running").concat("POST /v1/capsules/{id}/resume")) {
    const reply = await request(client, endpoint, capsule);
    assert.equal(reply.status, 409, `${endpoint}: ${reply.text}`);
    assert.equal(reply.json.error.code, "invalid_state");
  }
}

export const pauseAndResume = section(import.meta, "pause and resume", () => {
  conforms("POST /v1/capsules/{id}/pause 200", "Response 200: Capsule with `status` = `paused`", async () => {
    await using capsule = await client.capsule({ timeout_sec: 1_000 });
    const running = await capsule.view();
    const paused = await capsule.pause();
    assert.equal(paused.status, "paused");
    sameRecord(paused, running);
    assert.ok(paused.last_updated > running.last_updated);
    assert.equal(paused.started_at, running.started_at);
    assert.equal(paused.last_active_at, null);
    assert.deepEqual(await capsule.view(), paused);
  });

  conforms(
    "POST /v1/capsules/{id}/resume 200",
    "Response 200: Capsule with `status` = `running`; `started_at` updated",
    async () => {
      await using capsule = await client.capsule();
      await capsule.run("true");
      const running = await capsule.view();
      await capsule.pause();
      const resumed = await capsule.resume();
      assert.equal(resumed.status, "running");
      sameRecord(resumed, running);
      assert.ok(resumed.started_at > running.started_at);
      assert.equal(resumed.last_active_at, running.last_active_at);
      assert.equal((await capsule.run("echo", ["ready"])).stdout, "ready\n", "returned once the agent is ready");
    },
  );

  test("running processes and in-memory state are preserved, files too, over many cycles", async (t) => {
    const random = new Random(t);
    await using capsule = await client.capsule();
    await startMemoryProcess(capsule);
    await capsule.sh("mkdir /root/tree");
    for (let cycle = 0; cycle < 6; cycle++) {
      const held = await askMemoryProcess(capsule, "change");
      const name = `d${random.below(3)}/f${random.below(8)}`;
      await capsule.sh(
        `cd /root/tree && mkdir -p ${name.slice(0, 2)} && head -c ${random.size(1e6)} /dev/urandom > ${name}`,
      );
      if (random.below(3) === 0) await capsule.sh(`cd /root/tree && rm -f d${random.below(3)}/f${random.below(8)}`);
      const files = await treeHash(capsule);
      await capsule.pause();
      await capsule.resume();
      assert.equal(await askMemoryProcess(capsule, "tell"), held, `memory after cycle ${cycle}`);
      assert.equal(await treeHash(capsule), files, `files after cycle ${cycle}`);
      await capsule.sh("echo 3 > /proc/sys/vm/drop_caches");
      assert.equal(await treeHash(capsule), files, `files on disk after cycle ${cycle}`);
    }
  });

  test("a continuous writer loses nothing: its output before the pause is there, and it continues", async () => {
    await using capsule = await client.capsule();
    const tag = await startWriter(capsule);
    // The last line may be incomplete where it crosses two pages; the line before it is complete.
    const written = async () => Number((await capsule.run("tail", ["-n2", "/root/log"])).stdout.split("\n", 1)[0]);
    let seen = 0;
    for (let cycle = 0; cycle < 3; cycle++) {
      const before = seen;
      seen = await waitFor("it writes", async () => {
        const now = await written();
        return now > before && now;
      });
      await capsule.pause();
      await capsule.resume();
      assert.ok((await written()) >= seen);
    }
    await holdsEveryLine(capsule, tag);
  });

  test("repeated pause and resume of several capsules at once; the first exec never fails", async () => {
    const capsules = await Promise.all([client.capsule(), client.capsule(), client.capsule()]);
    try {
      await Promise.all(
        capsules.map(async (capsule, which) => {
          await capsule.sh(`echo ${which} > /dev/shm/which`);
          for (let cycle = 0; cycle < 6; cycle++) {
            await capsule.pause();
            await capsule.resume();
            assert.equal((await capsule.run("cat", ["/dev/shm/which"])).stdout, `${which}\n`);
          }
        }),
      );
    } finally {
      await Promise.all(capsules.map((capsule) => capsule[Symbol.asyncDispose]()));
    }
  });

  test("two pauses at once: one 200, one 409; two resumes likewise", async () => {
    await using capsule = await client.capsule();
    for (const [action, status] of [
      ["pause", "paused"],
      ["resume", "running"],
    ] as const) {
      const replies = await Promise.all([1, 2, 3].map(() => client.call("POST", `${capsule.path}/${action}`)));
      assert.deepEqual(replies.map((reply) => reply.status).toSorted(), [200, 409, 409]);
      assert.equal((await capsule.view()).status, status);
    }
    assert.equal((await capsule.run("true")).exit_code, 0);
  });

  test("an exec in progress when the capsule is paused gets an error and no exit code", async () => {
    await using capsule = await client.capsule();
    const running = capsule.exec({ cmd: "bash", args: ["-c", "exec sleep 5005"], timeout: 0 });
    await waitFor("it runs", async () => (await capsule.run("pgrep", ["-xf", "sleep 5005"])).exit_code === 0);
    await capsule.pause();
    const { status, json } = await running;
    assert.deepEqual([status, json.error.code], [409, "invalid_state"]);
    await capsule.resume();
    assert.equal(await capsule.sh("echo fine"), "fine");
  });
});

/**
 * Calls and pings a capsule for longer than its TTL, and asserts after each that it runs. False, with the capsule resumed, if it was
 * paused after a call that took as long as the TTL, as on a busy machine.
 */
async function staysActive(capsule: TestCapsule, ttlMs: number): Promise<boolean> {
  let lastMs = -Infinity; // the time began somewhere before
  for (let round = 0; round < 5; round++) {
    await delay(2_500); // five of them are longer than the TTL
    const beganMs = performance.now();
    const reply = await (round % 2 === 0 ? client.call("POST", `${capsule.path}/ping`) : capsule.exec({ cmd: "true" }));
    const { status } = await capsule.view();
    const isLate = performance.now() - lastMs >= ttlMs;
    if (isLate && (status === "paused" || reply.status === 409)) {
      await capsule.until("paused");
      await capsule.resume();
      return false;
    }
    assert.equal(reply.status, round % 2 === 0 ? 204 : 200, reply.text);
    assert.equal(status, "running");
    lastMs = beganMs;
  }
  return true;
}

export const time = simultaneously(import.meta, "time", () => {
  test("the guest's clock is right at the first exec after a pause of 2 s", async () => {
    await using capsule = await client.capsule();
    await capsule.run("date", ["+%s%N"]);
    const pauseOnce = async () => {
      await capsule.pause();
      await delay(2_000); // real time must pass
      await capsule.resume();
    };
    await pauseOnce();
    await assertClockSet({
      host: async () => Date.now(),
      guest: async () => Number((await capsule.run("date", ["+%s%N"])).stdout) / 1e6,
      again: pauseOnce,
    });
  });

  test("no exec call or ping for `timeout_sec` seconds: paused, same as pause; GET does not count", async () => {
    // Its first run may be over before the answer to a wait for `running`.
    const { json } = await client.expect(201, "POST", "/v1/capsules", { json: { timeout_sec: 2 } });
    await using capsule = client.known(json.id);
    const polling = waitFor("paused", async () => (await capsule.view()).status === "paused");
    const paused = await capsule.until("paused");
    await polling;
    const idleMs = Date.parse(paused.last_updated) - Date.parse(paused.started_at);
    assert.ok(idleMs >= 2_000 && idleMs < 60_000, String(idleMs));
    assert.equal(paused.timeout_sec, 2);
    await capsule.resume();
    const again = await capsule.until("paused");
    assert.ok(again.last_updated > paused.last_updated, "the time runs anew after a resume");
  });

  test("files survive an auto-pause with a writer running", async () => {
    await using capsule = await client.capsule();
    await capsule.sh("mkdir /root/tree; head -c 1000000 /dev/urandom > /root/tree/a");
    const hash = await treeHash(capsule);
    const tag = await startWriter(capsule);
    await client.expect(200, "PATCH", capsule.path, { json: { timeout_sec: 1 } });
    await capsule.until("paused");
    await client.expect(200, "PATCH", capsule.path, { json: { timeout_sec: 0 } });
    await capsule.resume();
    assert.equal(await treeHash(capsule), hash);
    await holdsEveryLine(capsule, tag);
  });

  test("exec calls and pings postpone it", async () => {
    await using capsule = await client.capsule({ timeout_sec: 12 });
    const isPostponed = () => staysActive(capsule, 12_000);
    await waitFor("calls within the TTL", isPostponed, { deadlineMs: 600_000 });
    const { last_active_at } = await capsule.view();
    const paused = await capsule.until("paused");
    assert.equal(paused.last_active_at, last_active_at);
    const idleMs = Date.parse(paused.last_updated) - Date.parse(last_active_at);
    assert.ok(idleMs >= 11_950 && idleMs < 60_000, String(idleMs));
  });

  test("a foreground exec in progress prevents it", async () => {
    await using capsule = await client.capsule();
    const running = capsule.run("bash", ["-c", "touch /run/begun; sleep 4; echo whole"]);
    await waitFor("it runs", async () => (await capsule.run("test", ["-e", "/run/begun"])).exit_code === 0);
    await client.expect(200, "PATCH", capsule.path, { json: { timeout_sec: 1 } });
    const { stdout, exit_code } = await running;
    assert.deepEqual([stdout, exit_code], ["whole\n", 0]);
    const paused = await capsule.until("paused");
    assert.ok(Date.parse(paused.last_updated) - Date.parse(paused.last_active_at) >= 950);
  });

  test("`0` means auto-pause is disabled", async () => {
    await using capsule = await client.capsule({ timeout_sec: 0 });
    assert.equal((await client.expect(200, "GET", `${capsule.path}?wait=paused&timeout=5`)).json.status, "running");
  });
});

export const stoppedAndError = section(import.meta, "stopped and error", () => {
  test("a guest that powers itself off is `stopped`, and refuses what needs a running or paused one", async () => {
    await using capsule = await client.capsule();
    await endGuest(capsule, "poweroff");
    const stopped = await capsule.until("stopped");
    assert.ok(stopped.last_updated > stopped.started_at);
    await refusesAllButDelete(capsule);
    await capsule.destroy();
    await client.expect(404, "GET", capsule.path);
  });

  test("process 1 obeys only its own signals for power-off and reboot", async () => {
    await using capsule = await client.capsule();
    const { started_at } = await capsule.view();
    const accidental = "import os\nfor s in range(1, 65):\n  if s not in (38, 39): os.kill(1, s)";
    assert.equal((await capsule.run("python3", ["-c", accidental])).exit_code, 0);
    await capsule.exec({ cmd: "bash", args: ["-c", "pkill -TERM -u root; pkill -INT -u root"] });
    assert.equal(await capsule.sh("echo alive"), "alive");
    assert.equal((await capsule.view()).started_at, started_at);
  });

  test("a kill of every process inside does no harm", async () => {
    await using capsule = await client.capsule();
    await capsule.exec({ cmd: "bash", args: ["-c", "kill -9 1; kill -15 -1; kill -9 -1"] });
    assert.equal((await capsule.view()).status, "running");
    assert.equal(await capsule.sh("echo alive"), "alive");
    await capsule.pause();
    await capsule.resume();
    assert.equal(await capsule.sh("echo alive"), "alive");
  });
});

export const starting = section(import.meta, "starting", () => {
  test("a capsule that is not yet running refuses everything but DELETE, which removes it", async () => {
    // A base must be booted for a new shape first, so the capsule is not running yet at the first requests.
    const { json } = await client.expect(201, "POST", "/v1/capsules", { json: { memory_mb: 201 } });
    const path = `/v1/capsules/${json.id}`;
    let refused = 0;
    for (const endpoint of endpointsWith("409 not running").concat("POST /v1/capsules/{id}/resume")) {
      const reply = await request(client, endpoint, { id: json.id });
      const { status } = (await client.call("GET", path)).json;
      if (!["pending", "starting"].includes(status)) break; // it runs, or was paused by this request
      assert.equal(reply.status, 409, `${endpoint}: ${reply.text}`);
      assert.equal(reply.json.error.code, "invalid_state");
      refused++;
    }
    assert.ok(refused > 0, "the capsule ran before the first request");
    await client.expect(204, "DELETE", path);
    await client.expect(404, "GET", path);
  });
});

export const removed = section(import.meta, "`running`, `paused`, `stopped`: DELETE → removed", () => {
  test("a DELETE during a pause or resume waits for it and then succeeds", async () => {
    for (const action of ["pause", "resume"]) {
      const capsule = await client.capsule();
      if (action === "resume") await capsule.pause();
      const changing = client.call("POST", `${capsule.path}/${action}`);
      const destroying = capsule.destroy();
      const [{ status }] = await Promise.all([changing, destroying]);
      assert.ok([200, 404, 409].includes(status), `${action}: ${status}`);
      await client.expect(404, "GET", capsule.path);
      await client.expect(404, "POST", `${capsule.path}/resume`);
    }
  });

  test("a paused capsule", async () => {
    const capsule = await client.capsule();
    await capsule.pause();
    await capsule.destroy();
    await client.expect(404, "GET", capsule.path);
  });
});
