import assert from "node:assert/strict";
import { test } from "node:test";
import { FakeClock } from "../../test/fakes/fake-clock.ts";
import { openDatabase } from "../db/database.ts";
import { IdempotencyRows } from "../db/idempotency-rows.ts";
import { SecretKey } from "../secret.ts";
import { idempotencyKeysMax, idempotencyMaxBytes } from "../wire/idempotency.ts";
import { type FirstRequest, Idempotency, type KeyedRequest } from "./idempotency.ts";

const day = 86_400_000;
const never = new AbortController().signal;
const answer = { status: 201, answer: '{"id":"cl-1"}' };

function fresh(database = openDatabase(":memory:"), clock = new FakeClock()) {
  const rows = new IdempotencyRows(database);
  const idempotency = new Idempotency(rows, new SecretKey(Buffer.alloc(32, 7)), () => clock.now());
  const begin = (more: Partial<KeyedRequest> = {}, signal = never) =>
    idempotency.begin({ teamId: "blue", route: "/v1/capsules", key: "k", bodyHash: "a", ...more }, signal);
  const first = async (more: Partial<KeyedRequest> = {}): Promise<FirstRequest> => {
    const begun = await begin(more);
    assert.ok(begun.first !== undefined, "an answer is kept");
    return begun.first;
  };
  const count = () => (database.prepare("SELECT COUNT(*) AS n FROM idempotency").get() as { n: number }).n;
  return { database, clock, idempotency, begin, first, count };
}

test("the first answer is kept for its team, path and key, over a restart", async () => {
  const { database, clock, first } = fresh();
  const request = await first();
  request.keep(answer);
  request.end();
  const { begin } = fresh(database, clock);
  assert.deepEqual((await begin()).kept?.answer, answer.answer);
  for (const other of [{ teamId: "red" }, { route: "/v1/snapshots" }, { key: "K" }]) {
    assert.ok((await begin(other)).first !== undefined, JSON.stringify(other));
  }
});

test("another body is refused at once, while the first request is under way and after it", async () => {
  const { first, begin } = fresh();
  const request = await first();
  await assert.rejects(begin({ bodyHash: "b" }), { code: "conflict" });
  request.keep(answer);
  request.end();
  await assert.rejects(begin({ bodyHash: "b" }), { code: "conflict" });
  assert.equal((await begin()).kept?.status, 201);
});

test("repeats wait for the first request; when it keeps nothing, one of them is the next first", async () => {
  const { first, begin } = fresh();
  const failing = await first();
  const repeats = [begin(), begin(), begin()];
  failing.keep(answer);
  failing.forget();
  failing.end();
  const next = await Promise.race(repeats);
  assert.ok(next.first !== undefined);
  next.first.keep(answer);
  next.first.end();
  const all = await Promise.all(repeats);
  assert.deepEqual(
    all.map((each) => each.kept?.answer),
    [undefined, answer.answer, answer.answer],
  );
});

test("a repeat whose client goes away waits no longer", async () => {
  const { first, begin } = fresh();
  await first();
  const client = new AbortController();
  const repeat = begin({}, client.signal);
  client.abort(new Error("gone"));
  await assert.rejects(repeat, /gone/);
});

test("an answer is kept for 24 hours, and then forgotten", async () => {
  const { first, begin, clock, idempotency, count } = fresh();
  const request = await first();
  request.keep(answer);
  request.end();
  clock.advance(day - 1);
  assert.equal((await begin()).kept?.status, 201);
  idempotency.forget();
  assert.equal(count(), 1);
  clock.advance(1);
  const again = await first({ bodyHash: "b" });
  again.end();
  clock.advance(1);
  idempotency.forget();
  assert.equal(count(), 0);
});

test("of one team 32 MiB of answers are kept; the oldest go first, and the newest stays", async () => {
  const { database, first, begin, count } = fresh();
  const long = { status: 201, answer: "x".repeat(idempotencyMaxBytes / 4) };
  database.exec("BEGIN");
  for (let i = 0; i < 6; i++) {
    const request = await first({ key: `key-${i}` });
    request.keep(long);
    request.end();
  }
  assert.equal(count(), 4);
  for (const [key, isKept] of [
    ["key-1", false],
    ["key-2", true],
    ["key-5", true],
  ] as const)
    assert.equal((await begin({ key })).kept !== undefined, isKept, key);
  const huge = await first({ key: "huge" });
  huge.keep({ status: 201, answer: "x".repeat(idempotencyMaxBytes + 1) });
  assert.equal(count(), 1);
  database.exec("ROLLBACK");
});

test(`of one team ${idempotencyKeysMax} are kept; the oldest go first`, async () => {
  const { database, first, begin, count } = fresh();
  const keep = async (more: Partial<KeyedRequest>) => {
    const request = await first(more);
    request.keep(answer);
    request.end();
  };
  await keep({ teamId: "red" });
  database.exec("BEGIN");
  for (let i = 0; i <= idempotencyKeysMax; i++) await keep({ key: `key-${i}` });
  database.exec("COMMIT");
  assert.equal(count(), idempotencyKeysMax + 1);
  assert.ok((await begin({ key: "key-0" })).first !== undefined);
  assert.equal((await begin({ key: "key-1" })).kept?.status, 201);
  assert.equal((await begin({ teamId: "red" })).kept?.status, 201);
});
