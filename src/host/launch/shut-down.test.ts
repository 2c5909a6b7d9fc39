/** Stops of guests that do as they are told, that do not answer, and that were destroyed meanwhile. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { CapsuleError } from "../../wire/errors.ts";
import type { LiveGuest } from "../guest.ts";
import { shutDown, stopGraceMs } from "./shut-down.ts";

function guest(halt: (termMs: number) => Promise<void>) {
  const calls: unknown[] = [];
  const ended = Promise.withResolvers<void>();
  const agent = {
    halt: (termMs: number) => {
      calls.push(["halt", termMs]);
      return halt(termMs);
    },
  };
  const live = {
    id: "cl-x",
    agent,
    vm: { ended: ended.promise },
    resumeMonitoring: async () => void calls.push("reached"),
    suspendMonitoring: () => calls.push("suspended"),
    settleDisk: async () => void calls.push("settled"),
  };
  return { live: live as unknown as LiveGuest, calls, powerOff: ended.resolve };
}

const never = new Promise<never>(() => {});
const { signal } = new AbortController();

test("the disk is settled when the guest has powered off, and the agent's last half second is part of the grace", async () => {
  const { live, calls, powerOff } = guest(async () => powerOff());
  await shutDown(live, stopGraceMs, signal);
  assert.deepEqual(calls, ["reached", "suspended", ["halt", 9_500], "settled"]);
});

test("an agent that refuses or cannot be reached does not delay the stop", async () => {
  const { live, calls } = guest(() => Promise.reject(new CapsuleError("agent_error", "no connection")));
  await shutDown(live, 100, signal);
  assert.deepEqual(calls, ["reached", "suspended", ["halt", 0], "settled"]);
});

for (const [what, halt] of [
  ["answers and runs on", () => Promise.resolve()],
  ["does not answer", () => never],
] as const) {
  test(`a guest that ${what} is given up 20 s after the grace`, async (t) => {
    t.mock.timers.enable({ apis: ["setTimeout"] });
    const { live, calls } = guest(halt);
    const done = shutDown(live, stopGraceMs, signal);
    await new Promise(setImmediate);
    t.mock.timers.tick(29_999);
    await new Promise(setImmediate);
    assert.equal(calls.includes("settled"), false);
    t.mock.timers.tick(1);
    await done;
    assert.ok(calls.includes("settled"));
  });
}

test("a guest that is being reconnected to is told when it can be reached, within the time of the stop", async () => {
  const { live, calls, powerOff } = guest(async () => powerOff());
  const reached = Promise.withResolvers<void>();
  live.resumeMonitoring = () => reached.promise;
  const done = shutDown(live, stopGraceMs, signal);
  await new Promise(setImmediate);
  assert.deepEqual(calls, []);
  reached.resolve();
  await done;
  assert.deepEqual(calls, ["suspended", ["halt", 9_500], "settled"]);
});

test("a destroy ends the waiting, and nothing is written any more", async () => {
  const abort = new AbortController();
  const { live, calls } = guest(() => never);
  const done = shutDown(live, stopGraceMs, abort.signal);
  abort.abort(new Error("destroyed"));
  await done;
  assert.deepEqual(calls, ["reached", "suspended", ["halt", 9_500]]);
});
