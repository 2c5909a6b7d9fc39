/**
 * A guest that lies on its agent's own port can hurt nobody but its own capsule: that one ends in `error` with a reason,
 * or goes on as wrong as it is; the daemon keeps its memory, and another capsule its answers.
 */
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { after, before, describe, test } from "node:test";
import type { Reply, TestCapsule } from "../client.ts";
import { eventually } from "../conformance/eventually.ts";
import { TestSocket } from "../conformance/socket.ts";
import { isLong } from "./form.ts";
import { type Lie, startLying } from "./liar.ts";
import { World } from "./world.ts";

const listMax = 1_000;
const growthMaxBytes = 128 << 20;
const askAgainMs = 2_000;
const lieDeadlineMs = 60_000;

let world: World;
let bystander: TestCapsule;
before(async () => {
  world = await World.start({ env: { CAPSULE_LIST_ENTRIES_MAX: String(listMax), CAPSULE_SILENCE_MS: "20000" } });
  bystander = await world.client.capsule();
});
after(() => world[Symbol.asyncDispose]());

type Ask = (capsule: TestCapsule, signal: AbortSignal) => Promise<Reply>;
const exec: Ask = (capsule, signal) => capsule.exec({ cmd: "true", timeout: 0 }, { signal });
const file =
  (verb: "read" | "list"): Ask =>
  ({ client, path }, signal) =>
    client.call("POST", `${path}/files/${verb}`, { json: { path: "/root" }, signal });

/**
 * The first answer that the true agent would not have given. What was asked of it right before it was stopped is never
 * answered, so each question is given up after a while, and asked again.
 */
function lieTo(capsule: TestCapsule, ask: Ask, truth: number): Promise<Reply> {
  return eventually(
    "a lie",
    async () => {
      const reply = await ask(capsule, AbortSignal.timeout(askAgainMs)).catch(() => undefined);
      return reply?.status === truth ? undefined : reply;
    },
    lieDeadlineMs,
  );
}

interface Breach {
  ask?: Ask;
  reason: RegExp;
}

const breaches: Partial<Record<Lie, Breach>> = {
  answer_another_stream: { reason: /a stream never opened/ },
  flood_of_other_epochs: { reason: /frames for closed streams/ },
  second_start: { reason: /a process that started twice/ },
  huge_frame: { reason: /a payload of 4294967295 bytes/ },
  negative_sizes: { ask: file("list"), reason: /a listing of 4294967295 items, of which 1 arrived/ },
  halt_again_and_again: { reason: /a second halt notice/ },
  nonsense: { reason: /broke the protocol/ },
};

/** Told in the long form: those that unit tests and the fuzzer see too, and one that takes as long as silence is borne. */
const moreBreaches: typeof breaches = {
  exit_of_another_stream: { reason: /a stream never opened/ },
  second_end: { reason: /an end after 0 bytes/ },
  frame_without_end: { reason: /stopped answering/ },
};

/** Another capsule's commands, one after the other, until `work` is done. */
async function meanwhile(work: Promise<unknown>): Promise<number> {
  let isOver = false;
  const over = work.finally(() => {
    isOver = true;
  });
  let commands = 0;
  for (; !isOver; commands++) assert.equal(await bystander.sh(`echo ${commands}`), String(commands));
  await over;
  return commands;
}

/** The most memory that the daemon has had since `forgetPeak`. */
function peakBytes(): number {
  return 1024 * Number(/^VmHWM:\s+(\d+) kB/m.exec(readFileSync(`/proc/${world.server.pid}/status`, "utf8"))?.[1]);
}

function forgetPeak(): void {
  writeFileSync(`/proc/${world.server.pid}/clear_refs`, "5");
}

describe("a lying guest", { timeout: 600_000 }, () => {
  for (const [lie, { ask = exec, reason }] of Object.entries({ ...breaches, ...(isLong && moreBreaches) })) {
    test(`${lie}: its capsule ends in error, and only that`, async () => {
      await using capsule = await world.client.capsule();
      forgetPeak();
      const before = peakBytes();
      await startLying(capsule, lie as Lie);
      await meanwhile(
        (async () => {
          const { status, json } = await lieTo(capsule, ask, 200);
          assert.ok(status === 502 || status === 409, `${status}: ${JSON.stringify(json)}`);
          const { error_reason } = await capsule.until("error");
          assert.match(error_reason, reason);
        })(),
      );
      assert.ok(peakBytes() - before < growthMaxBytes, `${peakBytes() - before} bytes more`);
    });
  }

  test("output that nobody takes, and comes all the same, ends the capsule", async () => {
    await using capsule = await world.client.capsule();
    await startLying(capsule, "output_beyond_the_window");
    forgetPeak();
    const before = peakBytes();
    const lied = () =>
      eventually(
        "the end of a guest that is not listened to",
        async () => {
          const { status, error_reason } = await capsule.view();
          if (status === "error") return error_reason;
          await using socket = await TestSocket.open(capsule, "exec/stream");
          socket.say({ type: "start", cmd: "true" });
          socket.socket.pause();
          await capsule.client.call("GET", `${capsule.path}?wait=error&timeout=2`);
          socket.socket.resume();
          return undefined;
        },
        lieDeadlineMs,
      );
    await meanwhile(lied().then((reason) => assert.match(reason, /data beyond the window/)));
    assert.ok(peakBytes() - before < growthMaxBytes, `${peakBytes() - before} bytes more`);
  });

  test("a listing without an end is refused, and the daemon keeps neither it nor the guest's time", async () => {
    await using capsule = await world.client.capsule();
    await startLying(capsule, "endless_listing");
    forgetPeak();
    const before = peakBytes();
    await meanwhile(
      (async () => {
        const { status, json } = await lieTo(capsule, file("list"), 200);
        assert.deepEqual([status, json.error.code], [400, "invalid_request"]);
        assert.match(json.error.message, new RegExp(`more than ${listMax} entries`));
      })(),
    );
    assert.ok(peakBytes() - before < growthMaxBytes, `${peakBytes() - before} bytes more`);
  });

  test("a file of a petabyte is as long as the bytes that come", async () => {
    await using capsule = await world.client.capsule();
    await startLying(capsule, "huge_file");
    const { status, bytes } = await lieTo(capsule, file("read"), 400);
    assert.deepEqual([status, bytes.toString()], [200, "x"]);
  });

  test("output without an end, a byte at a time, costs the daemon no memory and the others not their answers", async () => {
    await using capsule = await world.client.capsule();
    await startLying(capsule, "crumbs_of_output");
    forgetPeak();
    const before = peakBytes();
    const aborter = new AbortController();
    const flooded = eventually("a flood", async () => {
      const json = { cmd: "true", timeout: 0 };
      await world.client.call("POST", `${capsule.path}/exec`, { json, signal: aborter.signal });
      return undefined;
    });
    const commands = meanwhile(flooded.catch(() => {}));
    for (let answers = 0; answers < 20; answers++) await bystander.sh("true");
    aborter.abort();
    assert.ok((await commands) > 0);
    assert.ok(peakBytes() - before < growthMaxBytes, `${peakBytes() - before} bytes more`);
  });
});

test("in the end rows, VMs and folders tell one story, and nothing is left", async () => {
  await world.assertOneStory();
  await world.assertNoResidue();
});
