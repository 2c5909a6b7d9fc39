import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { ConnectionError, ServiceError } from "./errors.ts";
import { type Repeat, retryDelayMs, sleep } from "./retry.ts";

const half = () => 0.5;
const refused = new ConnectionError("unreachable", "");
const cut = new ConnectionError("cut_off", "");
const busy = new ServiceError("no_capacity", "", { retryAfterSec: 2 });

test("only requests that cannot be carried out twice are retried", () => {
  const isRetried = (error: unknown) =>
    (["always", "unsent", "never"] as Repeat[]).filter((repeat) => retryDelayMs(error, 0, repeat, half) !== undefined);
  assert.deepEqual(isRetried(refused), ["always", "unsent"]);
  assert.deepEqual(isRetried(cut), ["always"]);
  assert.deepEqual(isRetried(busy), ["always", "unsent"]);
  assert.deepEqual(isRetried(new ServiceError("quota_exceeded", "", { retryAfterSec: 1 })), ["always", "unsent"]);
  for (const code of ["internal_error", "agent_error", "timeout", "invalid_state", "not_found"] as const)
    assert.deepEqual(isRetried(new ServiceError(code, "", { retryAfterSec: 1 })), [], code);
  assert.deepEqual(isRetried(new ServiceError("no_capacity", "")), [], "without Retry-After");
  assert.deepEqual(isRetried(new ServiceError("no_capacity", "", { retryAfterSec: 3_600 })), [], "an hour");
  for (const code of ["timed_out", "fell_behind"] as const)
    assert.deepEqual(isRetried(new ConnectionError(code, "")), []);
  assert.deepEqual(isRetried(new Error("a bug")), []);
});

test("delays grow, are random, and stay between Retry-After and five seconds more", () => {
  assert.deepEqual(
    [0, 1, 2, 9].map((attempt) => retryDelayMs(refused, attempt, "always", half)),
    [100, 200, 400, 2_500],
  );
  fc.assert(
    fc.property(fc.nat(60), fc.float({ min: 0, max: 1, noNaN: true }), (attempt, random) => {
      const delayMs = retryDelayMs(refused, attempt, "always", () => random)!;
      assert.ok(delayMs >= 0 && delayMs <= 5_000);
      assert.ok(retryDelayMs(busy, attempt, "unsent", () => random)! >= 2_000);
    }),
  );
});

test("a wait is aborted by its signal", async () => {
  const stop = new AbortController();
  const waiting = sleep(3_600_000, stop.signal);
  stop.abort(new Error("enough"));
  await assert.rejects(waiting, /enough/);
  await assert.rejects(sleep(0, stop.signal), /enough/);
});
