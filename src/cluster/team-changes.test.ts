/** The cost of streams of events that begin behind a change. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { TeamChanges } from "./team-changes.ts";

const templateRow = (version: number) => ({ version, mark: "t:base", kind: "template", data: { name: "base" } });

test("of a team one client at a time reads what it has missed, in small pages", async () => {
  const [asked, answers]: [number[], PromiseWithResolvers<object[]>[]] = [[], []];
  const query = async (text: string, values: readonly unknown[]) => {
    if (text.startsWith("SELECT id, version, version_min")) return [{ id: "red", version: 20, versionMin: 0 }];
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

/** Answers statements when the test says so. */
function heldQueries(version: () => number) {
  const pages: PromiseWithResolvers<object[]>[] = [];
  const query = async (text: string) => {
    if (text.startsWith("SELECT id, version, version_min")) return [{ id: "red", version: version(), versionMin: 0 }];
    const page = Promise.withResolvers<object[]>();
    pages.push(page);
    return await page.promise;
  };
  return { pages, sql: { query, isAway: true } as never };
}

test("a page that comes when its team's last stream has ended is not told to a new one", async () => {
  let version = 5;
  const { pages, sql } = heldQueries(() => version);
  const changes = new TeamChanges({ sql, log: {} as never });
  const told: string[] = [];
  changes.onChange((_team, id) => told.push(id));
  const first = await changes.open("red", undefined, (opened) => opened);
  version = 6;
  const polled = changes.poll();
  await setImmediate();
  assert.equal(pages.length, 1);
  first.end();
  version = 7;
  assert.equal((await changes.open("red", undefined, (opened) => opened)).id, "7");
  pages[0]!.resolve([templateRow(6)]);
  await polled;
  assert.deepEqual(told, []);
  changes.close();
});

test("what a statement has not read within a version is read by the next poll", async () => {
  let version = 5;
  const { pages, sql } = heldQueries(() => version);
  const changes = new TeamChanges({ sql, log: {} as never });
  const told: string[] = [];
  changes.onChange((_team, id) => told.push(id));
  await changes.open("red", undefined, () => undefined);
  version = 6;
  const failed = changes.poll();
  await setImmediate();
  const names = Array.from({ length: 101 }, (_, at) => ({ ...templateRow(6), mark: `t:${1_000 + at}` }));
  pages[0]!.resolve(names.slice(0, 100));
  await setImmediate();
  pages[1]!.reject(new Error("the database is away"));
  await failed;
  assert.equal(told.length, 100);
  const again = changes.poll();
  await setImmediate();
  pages[2]!.resolve(names.slice(100));
  await again;
  assert.deepEqual([told.length, told.at(-1)], [101, "6"]);
  changes.close();
});
