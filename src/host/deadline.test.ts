import assert from "node:assert/strict";
import { test } from "node:test";
import { unlessAborted, withDeadline } from "./deadline.ts";

const never = new Promise<never>(() => {});

test("a result within the deadline is returned, and no timer is left", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const cleared = t.mock.method(globalThis, "clearTimeout");
  assert.equal(await withDeadline(5, "work", Promise.resolve(1)), 1);
  assert.equal(cleared.mock.callCount(), 1);
  await assert.rejects(withDeadline(5, "work", Promise.reject(new Error("failed"))), /failed/);
});

test("work beyond the deadline rejects with an error that names it", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const waiting = withDeadline(5, "waking capsule cl-1", never);
  t.mock.timers.tick(5);
  await assert.rejects(waiting, { code: "agent_error", message: "waking capsule cl-1 took longer than 5 ms" });
});

test("a signal that fires before the deadline rejects with its reason", async () => {
  const abort = new AbortController();
  const [limited, unlimited] = [withDeadline(60_000, "work", never, abort.signal), unlessAborted(abort.signal, never)];
  const reason = new Error("deleted");
  abort.abort(reason);
  await assert.rejects(limited, reason);
  await assert.rejects(unlimited, reason);
  await assert.rejects(unlessAborted(abort.signal, never), reason, "also when it has fired already");
});
