/** Capsules that always have more to do: how often each gets its turn. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate as tick } from "node:timers/promises";
import { Share, Turns } from "./turns.ts";

for (const capsules of [1, 2, 3]) {
  test(`${capsules} that wait again in each turn get one in each tick`, async () => {
    const turns = new Turns();
    const counts = Array<number>(capsules).fill(0);
    const shares = counts.map(() => new Share(turns));
    const wait = (index: number) =>
      turns.wait(shares[index]!, () => {
        counts[index]!++;
        if (counts[index]! < 1_000) wait(index);
      });
    for (const index of counts.keys()) wait(index);
    for (let ticks = 0; ticks < 10; ticks++) await tick();
    assert.ok(
      counts.every((count) => count >= 9 && count <= 11),
      `${counts} turns in 10 ticks`,
    );
    for (const share of shares) share.end();
    await tick();
    wait(0);
    for (let ticks = 0; ticks < 10; ticks++) await tick();
    assert.ok(counts[0]! <= 22, `${counts[0]} turns in 20 ticks`);
    for (const share of shares) share.end();
  });
}
