/** The turns of runs with decisions that are to be told. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { NetworkDecision } from "../wire/network.ts";
import type { CapsuleRun } from "./capsule-run.ts";
import type { FromRelay } from "./messages.ts";
import { readReply } from "./replies.ts";
import { UntoldRuns } from "./untold-runs.ts";

/** A run that has always as many decisions, each with a name of 250 characters. */
function runOf(number: number, decisions: number): CapsuleRun {
  const decision: NetworkDecision = {
    at: new Date(0).toISOString(),
    verdict: "denied",
    reason: "not listed",
    count: 1,
  };
  const decided = Array.from({ length: decisions }, (_, index) => ({ ...decision, host: `${index}`.padEnd(250, "x") }));
  return { number, takeDecisions: () => decided } as unknown as CapsuleRun;
}

test("runs are told in turn, 1 MiB at once, in messages that the service reads", () => {
  const sent: FromRelay[] = [];
  const untold = new UntoldRuns((message) => sent.push(message));
  const runs = Array.from({ length: 60 }, (_, index) => runOf(index + 1, 100));
  const told = () => {
    untold.tell();
    const messages = sent.splice(0);
    for (const message of messages) assert.ok(readReply(JSON.parse(JSON.stringify(message))), "the service reads it");
    assert.ok(JSON.stringify(messages).length < 1.1 * (1 << 20));
    return messages.flatMap((message) => (message.kind === "decisions" ? message.runs.map(([run]) => run) : []));
  };
  for (const run of runs) untold.add(run);
  const first = told();
  for (const run of runs) untold.add(run);
  const second = told();
  assert.ok(first.length >= 30 && first.length < 60, `${first.length}`);
  assert.deepEqual(
    [...first, ...second].slice(0, 60),
    Array.from({ length: 60 }, (_, index) => index + 1),
  );
});

test("a run is told by itself when it is asked about, once, and not after it is forgotten", () => {
  const sent: FromRelay[] = [];
  const untold = new UntoldRuns((message) => sent.push(message));
  const [one, other] = [runOf(1, 2), runOf(2, 2)];
  untold.add(one);
  untold.add(other);
  untold.tellOf(one);
  untold.tellOf(one);
  untold.forget(other);
  untold.tell();
  assert.deepEqual(
    sent.map((message) => message.kind === "decisions" && message.runs.map(([run]) => run)),
    [[1]],
  );
});
