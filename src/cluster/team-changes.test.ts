/** The cost of streams of events that begin behind a change. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { TeamChanges } from "./team-changes.ts";

const templateRow = (version: number) => ({ version, mark: "t:base", kind: "template", data: { name: "base" } });

test("of a team one client at a time reads what it has missed, in small pages", async () => {
  const [asked, answers]: [number[], PromiseWithResolvers<object[]>[]] = [[], []];
  const query = async (text: string, values: readonly unknown[]) => {
    if (text.startsWith("SELECT id, version FROM teams")) return [{ id: "red", version: 20 }];
    const answer = Promise.withResolvers<object[]>();
    asked.push(values.at(-1) as number);
    answers.push(answer);
    return await answer.promise;
  };
  const changes = new TeamChanges({ sql: { query, isAway: false } as never, log: {} as never });
  const opened = [1, 2].map(() => changes.open("red", "0", ({ missed }) => missed?.length));
  const atNow = await changes.open("red", undefined, ({ missed }) => missed);
  assert.equal(atNow, undefined, "who has missed nothing waits for nobody");
  await setImmediate();
  assert.equal(asked.length, 1);
  answers[0]!.resolve(Array.from({ length: 16 }, (_, at) => templateRow(at + 1)));
  await setImmediate();
  assert.equal(asked.length, 2, "the first one's second page");
  answers[1]!.resolve([templateRow(17)]);
  assert.equal(await opened[0], 17);
  await setImmediate();
  answers[2]!.resolve([]);
  assert.equal(await opened[1], 0);
  assert.ok(
    asked.every((rows) => rows === 16),
    asked.join(" "),
  );
  changes.close();
});
