/**
 * A guest that sends invalid frames on its agent's port harms only its own capsule: that one becomes `error` with a
 * reason or gives wrong answers. The daemon's memory stays bounded, and other capsules keep working.
 */
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { after, before, describe, test } from "node:test";
import type { Reply, TestCapsule } from "../client.ts";
import { TestSocket } from "../conformance/socket.ts";
import { waitFor } from "../wait-for.ts";
import { isLong } from "./faults-form.ts";
import { type Forgery, startForging } from "./forged-frames.ts";
import { World } from "./world.ts";

const listMax = 1_000;
const growthMaxBytes = 128 << 20;
const askAgainMs = 2_000;
const forgeryDeadlineMs = 300_000;
/** The daemon reads some 2 KiB of other things in a second: a flood is much more, also in the longest of the times below. */
const floodBytes = 1 << 20;
const quietBytes = 64 << 10;
const floodMs = 20_000;
const floodDeadlineMs = 300_000;

let world: World;
let bystander: TestCapsule;
before(async () => {
  const env = { CAPSULE_LIST_ENTRIES_MAX: String(listMax), CAPSULE_SILENCE_MS: "20000" };
  world = await World.start({ env, errors: [/"message":"the guest agent broke the protocol: /] });
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
 * The first answer that differs from the real agent's. A request sent right before the agent was frozen is never
 * answered, so each request is aborted and repeated, the first time after 2 s and then after twice the time before.
 */
function forgedAnswer(capsule: TestCapsule, ask: Ask, truth: number): Promise<Reply> {
  let waitMs = askAgainMs;
  return waitFor(
    "a forged answer",
    async () => {
      const reply = await ask(capsule, AbortSignal.timeout(waitMs)).catch(() => undefined);
      if (reply === undefined) waitMs *= 2;
      return reply?.status === truth ? undefined : reply;
    },
    { deadlineMs: forgeryDeadlineMs },
  );
}

interface Breach {
  ask?: Ask;
  reason: RegExp;
}

const breaches: Partial<Record<Forgery, Breach>> = {
  answer_to_unopened_stream: { reason: /a stream never opened/ },
  flood_of_other_epochs: { reason: /frames for closed streams/ },
  second_start: { reason: /a process that started twice/ },
  huge_frame: { reason: /a payload of 4294967295 bytes/ },
  negative_sizes: { ask: file("list"), reason: /a listing of 4294967295 items, of which 1 arrived/ },
  repeated_halt: { reason: /a second halt notice/ },
  nonsense: { reason: /broke the protocol/ },
};

/**
 * In the long form only: cases that unit tests and the fuzzer cover too, and one that lasts as long as
 * CAPSULE_SILENCE_MS.
 */
const moreBreaches: typeof breaches = {
  exit_of_unopened_stream: { reason: /a stream never opened/ },
  second_end: { reason: /an end after 0 bytes/ },
  frame_without_end: { reason: /stopped answering/ },
};

/** Runs commands in another capsule, one after the other, until `work` is done. */
async function meanwhile(work: Promise<unknown>): Promise<number> {
  let isOver = false;
  const end = () => {
    isOver = true;
  };
  work.then(end, end);
  let commands = 0;
  for (; !isOver; commands++) assert.equal(await bystander.sh(`echo ${commands}`), String(commands));
  await work;
  return commands;
}

/** Peak memory of the daemon since `forgetPeak`. */
function peakBytes(): number {
  return 1024 * Number(/^VmHWM:\s+(\d+) kB/m.exec(readFileSync(`/proc/${world.server.pid}/status`, "utf8"))?.[1]);
}

/** By the daemon, from guests and clients. */
function bytesRead(): number {
  return Number(/^rchar: (\d+)$/m.exec(readFileSync(`/proc/${world.server.pid}/io`, "utf8"))?.[1]);
}

/** Resolves when the daemon reads no more of a new capsule's files, which are many MiB. */
async function hasRead(): Promise<void> {
  await waitFor("the daemon reads little", async () => {
    const before = bytesRead();
    await bystander.sh("sleep 1");
    return bytesRead() - before < quietBytes;
  });
}

function forgetPeak(): void {
  writeFileSync(`/proc/${world.server.pid}/clear_refs`, "5");
}

describe("a guest that forges frames", { timeout: 600_000 }, () => {
  for (const [forgery, { ask = exec, reason }] of Object.entries({ ...breaches, ...(isLong && moreBreaches) })) {
    test(`${forgery}: its capsule becomes error, and nothing else is affected`, async () => {
      await using capsule = await world.client.capsule();
      forgetPeak();
      const before = peakBytes();
      await startForging(capsule, forgery as Forgery);
      await meanwhile(
        (async () => {
          const { status, json } = await forgedAnswer(capsule, ask, 200);
          assert.ok(status === 502 || status === 409, `${status}: ${JSON.stringify(json)}`);
          const { error_reason } = await capsule.until("error");
          assert.match(error_reason, reason);
        })(),
      );
      assert.ok(peakBytes() - before < growthMaxBytes, `${peakBytes() - before} bytes more`);
    });
  }

  test("output beyond the window makes the capsule error", async () => {
    await using capsule = await world.client.capsule();
    await startForging(capsule, "output_beyond_the_window");
    forgetPeak();
    const before = peakBytes();
    const lied = () =>
      waitFor(
        "the end of a guest whose output is not read",
        async () => {
          const { status, error_reason } = await capsule.view();
          if (status === "error") return error_reason;
          await using socket = await TestSocket.open(capsule, "exec/stream").catch(() => undefined);
          if (socket === undefined) return undefined; // it became error in between
          socket.say({ type: "start", cmd: "true" });
          socket.socket.pause();
          await capsule.client.call("GET", `${capsule.path}?wait=error&timeout=2`);
          socket.socket.resume();
          return undefined;
        },
        { deadlineMs: forgeryDeadlineMs },
      );
    await meanwhile(lied().then((reason) => assert.match(reason, /data beyond the window/)));
    assert.ok(peakBytes() - before < growthMaxBytes, `${peakBytes() - before} bytes more`);
  });

  test("an endless listing is refused, and costs the daemon little memory", async () => {
    await using capsule = await world.client.capsule();
    await startForging(capsule, "endless_listing");
    forgetPeak();
    const before = peakBytes();
    await meanwhile(
      (async () => {
        const { status, json } = await forgedAnswer(capsule, file("list"), 200);
        assert.deepEqual([status, json.error.code], [400, "invalid_request"]);
        assert.match(json.error.message, new RegExp(`more than ${listMax} entries`));
      })(),
    );
    assert.ok(peakBytes() - before < growthMaxBytes, `${peakBytes() - before} bytes more`);
  });

  test("a file that claims a petabyte has the length of its content", async () => {
    await using capsule = await world.client.capsule();
    await startForging(capsule, "huge_file");
    const { status, bytes } = await forgedAnswer(capsule, file("read"), 400);
    assert.deepEqual([status, bytes.toString()], [200, "x"]);
  });

  test("endless output of single bytes costs the daemon little memory and does not block other capsules", async () => {
    await using capsule = await world.client.capsule();
    await hasRead();
    await startForging(capsule, "single_bytes_of_output");
    forgetPeak();
    const before = peakBytes();
    const aborter = new AbortController();
    let waitMs = floodMs;
    /** Asks once. A request sent right before the agent was frozen gets neither an answer nor the flood, which the next one gets. */
    const ask = async (): Promise<boolean> => {
      const beginning = bytesRead();
      let isAnswered = false;
      void exec(capsule, aborter.signal)
        .catch(() => undefined)
        .then(() => {
          isAnswered = true;
        });
      const outcome = () => (isAnswered ? "answer" : bytesRead() - beginning > floodBytes && "flood");
      const end = await waitFor("the flood", outcome, { deadlineMs: waitMs }).catch(() => undefined);
      if (end === undefined) waitMs *= 2;
      return end === "flood";
    };
    await waitFor("a flood of output", ask, { deadlineMs: floodDeadlineMs });
    const during = bytesRead();
    const over = Promise.withResolvers<void>();
    const commands = meanwhile(over.promise);
    try {
      for (let answers = 0; answers < 20; answers++) await bystander.sh("true");
      await waitFor("the output goes on", () => bytesRead() - during > floodBytes, { deadlineMs: floodDeadlineMs });
    } finally {
      over.resolve();
    }
    assert.ok((await commands) > 0);
    aborter.abort();
    assert.ok(peakBytes() - before < growthMaxBytes, `${peakBytes() - before} bytes more`);
  });
});

test("in the end rows, VMs and folders are consistent, and nothing is left", async () => {
  await world.assertConsistent();
  await world.assertNoResidue();
});
