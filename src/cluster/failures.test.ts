/** Errors of PostgreSQL, which may hold values of clients, as those of requests and of the log. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { inspect } from "node:util";
import { describeError } from "../http/log.ts";
import { isAnswer, isUsable, Refusal, Unanswered, withoutValues } from "./failures.ts";

const secret = "hunter2";

function raised(code: string, message: string): Error {
  return Object.assign(new Error(message), {
    ...{ code, severity: "ERROR", detail: JSON.stringify({ answer: secret, body_hash: "b", quota: "capsules" }) },
    ...{ hint: secret, where: secret, internalQuery: secret },
  });
}

const shown = (error: unknown) =>
  `${inspect(error, { depth: 9 })} ${JSON.stringify(error)} ${JSON.stringify(describeError(error))}`;

test("a refusal tells clients what is theirs, and keeps the rest of its detail to the program", () => {
  const refusal = withoutValues(raised("CP007", "the Idempotency-Key was used")) as Refusal;
  assert.ok(refusal instanceof Refusal);
  assert.deepEqual([refusal.code, refusal.details], ["conflict", { quota: "capsules" }]);
  assert.equal(refusal.about.body_hash, "b");
  assert.doesNotMatch(shown(refusal), /hunter2/);
});

test("an error of a statement keeps its code and names, and no value", () => {
  const unique = withoutValues(raised("23505", 'duplicate key value violates unique constraint "capsule_names"'));
  assert.match((unique as Error).message, /capsule_names/);
  const value = withoutValues(raised("22P02", `invalid input syntax for type bigint: "${secret}"`));
  for (const error of [unique, value, new Unanswered("ask", value)]) assert.doesNotMatch(shown(error), /hunter2/);
  assert.deepEqual([unique, value].map(isAnswer), [true, true]);
  assert.ok(isUsable(value));
});

test("an error of a connection stays as it is", () => {
  const lost = Object.assign(new Error("connect ECONNREFUSED"), { code: "ECONNREFUSED" });
  assert.equal(withoutValues(lost), lost);
});
