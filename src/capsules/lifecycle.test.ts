import assert from "node:assert/strict";
import { test } from "node:test";
import { type Action, requiredStatuses, requires } from "../wire/requirements.ts";
import { allow, isFinal, next, statuses, transitionTable } from "./lifecycle.ts";

test("every status can be destroyed", () => {
  for (const status of statuses) assert.equal(next(status, "destroy"), "gone");
});

test("every status is the target of some arrow", () => {
  const reached = new Set<string>(Object.values(transitionTable).flatMap((arrows) => Object.values(arrows)));
  for (const status of statuses) assert.ok(reached.has(status), status);
});

test("a missing arrow is a bug and throws", () => {
  assert.throws(() => next("paused", "halt"), /paused capsule has no way to halt/);
});

test("an action is allowed in exactly the status it requires, and not while a change is under way", () => {
  for (const action of Object.keys(requires) as Action[]) {
    for (const status of statuses) {
      const required = requiredStatuses(action);
      const ask = () => allow(action, "cl-x", status, null);
      if (required === null || required.includes(status)) assert.doesNotThrow(ask);
      else assert.throws(ask, { code: "invalid_state" });
      if (required !== null) assert.throws(() => allow(action, "cl-x", status, "pause"), { code: "invalid_state" });
    }
  }
});

test("only stopped and error are left at a request alone, and lead to running", () => {
  assert.deepEqual(statuses.filter(isFinal), ["stopped", "error"]);
  for (const status of statuses.filter(isFinal)) assert.equal(next(status, "start"), "running");
});
