/** The reserve of the disk, from the side of the owner who did nothing. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { FakeDisk } from "../../../test/fakes/fake-disk.ts";
import type { Reservation } from "./disk-space.ts";
import { equalPart } from "./reserve-parts.ts";

const mib = 1 << 20;
/** Kept free by every change. */
const slackMib = 64;
const reserveMib = 120;
const noSpace = { code: "no_space" };

/** Owners whose capsules run and are paused on one disk. */
class Owners {
  readonly disk: FakeDisk;
  readonly sharers = new Set<string>();
  readonly overQuota = new Set<string>();
  readonly #sizes = new Map<string, number>();

  constructor(freeMib: number, ...sharers: string[]) {
    this.disk = new FakeDisk((slackMib + freeMib) * mib, reserveMib * mib);
    this.sharers = new Set(sharers);
  }

  /** Promised and not written. */
  begin(owner: string, id: string, needMib: number, written = () => 0): Reservation {
    const share = { owner, isOverQuota: this.overQuota.has(owner), sharers: this.sharers };
    return this.disk.space.reserveForPause({ id, share }, needMib * mib, `pausing ${id}`, written);
  }

  /** Paused, with `sizeMib` written of `needMib`. */
  pause(owner: string, id: string, needMib: number, sizeMib = needMib): void {
    const file = this.disk.file();
    using room = this.begin(owner, id, needMib, file.bytes);
    file.write(sizeMib * mib);
    room.keep();
    this.#sizes.set(id, sizeMib);
  }

  /** Resumed or destroyed: its checkpoint is gone. */
  remove(id: string): void {
    this.disk.freeBytes += (this.#sizes.get(id) ?? 0) * mib;
    this.#sizes.delete(id);
    this.disk.space.forgetPause(id);
  }

  /** The largest pause that would be allowed. */
  allowedMib(owner: string): number {
    let [allowed, refused] = [0, 1_024];
    while (refused - allowed > 1) {
      const middle = Math.floor((allowed + refused) / 2);
      try {
        this.begin(owner, "cl-probe", middle)[Symbol.dispose]();
        allowed = middle;
      } catch {
        refused = middle;
      }
    }
    return allowed;
  }
}

test("one owner pauses until it is refused, and takes nothing of another's part", () => {
  const owners = new Owners(reserveMib, "greedy", "other");
  assert.deepEqual([owners.allowedMib("greedy"), owners.allowedMib("other")], [60, 60]);
  for (let count = 0; count < 6; count++) owners.pause("greedy", `cl-${count}`, 10);
  assert.throws(() => owners.pause("greedy", "cl-6", 1), { ...noSpace, message: /only 0 MiB are free for its team$/ });
  assert.equal(owners.allowedMib("other"), 60, "to the last MiB");
  owners.pause("other", "cl-other", 60);
  assert.equal(owners.disk.freeBytes, slackMib * mib);
});

test("pauses that are under way count as those that have ended", () => {
  const owners = new Owners(reserveMib, "greedy", "other");
  const first = owners.begin("greedy", "cl-1", 40);
  assert.deepEqual([owners.allowedMib("greedy"), owners.allowedMib("other")], [20, 60]);
  first[Symbol.dispose](); // it failed
  assert.deepEqual([owners.allowedMib("greedy"), owners.allowedMib("other")], [60, 60]);
});

test("what a pause did not write in the end is given back to its owner", () => {
  const owners = new Owners(reserveMib, "a", "b");
  owners.pause("a", "cl-1", 50, 10);
  assert.deepEqual([owners.allowedMib("a"), owners.allowedMib("b")], [50, 60]);
});

test("a guest that writes memory until it is stopped is refused what is not its owner's", () => {
  const owners = new Owners(reserveMib, "a", "b");
  using room = owners.begin("a", "cl-1", 10);
  room.grow(60 * mib);
  assert.throws(() => room.grow(61 * mib), noSpace);
  assert.deepEqual([owners.allowedMib("a"), owners.allowedMib("b")], [0, 60]);
});

test("a resume or a destroy gives back what the pause took, however often", () => {
  const owners = new Owners(reserveMib, "a", "b");
  for (let round = 0; round < 5; round++) {
    owners.pause("a", "cl-1", 60);
    assert.throws(() => owners.pause("a", "cl-2", 1), noSpace);
    assert.equal(owners.allowedMib("b"), 60);
    owners.remove("cl-1");
  }
});

test("within its quota an owner may use all that is free beside the reserve, and its part", () => {
  const owners = new Owners(reserveMib + 100, "a", "b");
  assert.equal(owners.allowedMib("a"), 160);
  owners.pause("a", "cl-1", 130); // 30 of them of its part
  assert.deepEqual([owners.allowedMib("a"), owners.allowedMib("b")], [30, 60]);
  owners.disk.freeBytes += 30 * mib; // the reserve is whole: nothing of it is taken
  assert.deepEqual([owners.allowedMib("a"), owners.allowedMib("b")], [60, 60]);
});

test("over its quota an owner may use its part only, and has it once", () => {
  const owners = new Owners(reserveMib + 500, "over", "b");
  owners.overQuota.add("over");
  owners.pause("over", "cl-1", 40);
  assert.equal(owners.allowedMib("over"), 20, "although 580 MiB are free");
  owners.pause("over", "cl-2", 20);
  assert.throws(() => owners.pause("over", "cl-3", 1), noSpace);
  assert.equal(owners.allowedMib("b"), 500);
  owners.remove("cl-1");
  assert.equal(owners.allowedMib("over"), 40);
  owners.overQuota.clear();
  assert.equal(owners.allowedMib("over"), 540);
});

test("bytes beyond the quota do not shrink the parts of others when the disk fills up later", () => {
  const owners = new Owners(reserveMib + 60, "over", "b");
  owners.overQuota.add("over");
  owners.pause("over", "cl-1", 60);
  owners.sharers.delete("over");
  owners.disk.freeBytes -= mib;
  assert.equal(owners.allowedMib("b"), 119);
});

test("an owner without running capsules leaves its part to the others", () => {
  const owners = new Owners(reserveMib, "a", "b", "c");
  owners.pause("a", "cl-a", 30);
  owners.pause("b", "cl-b", 40);
  owners.sharers.delete("a");
  assert.deepEqual([owners.allowedMib("b"), owners.allowedMib("c")], [5, 45], "90 of the reserve, in two parts");
});

test("a new start of the server divides what is left", () => {
  const owners = new Owners(50, "a", "b");
  assert.deepEqual([owners.allowedMib("a"), owners.allowedMib("b")], [25, 25]);
});

test("what guests write into the reserve is missing from every part alike", () => {
  const owners = new Owners(reserveMib, "a", "b", "c");
  owners.pause("a", "cl-a", 40);
  owners.disk.freeBytes -= 50 * mib;
  assert.deepEqual(
    ["a", "b", "c"].map((owner) => owners.allowedMib(owner)),
    [0, 15, 15],
  );
});

test("equal parts fill up to one level", () => {
  assert.equal(equalPart(90, [0, 0, 0]), 30);
  assert.equal(equalPart(60, [30, 0, 0]), 30);
  assert.equal(equalPart(30, [60, 0, 0]), 15);
  assert.equal(equalPart(30, [60, 40, 10]), 40);
  assert.equal(equalPart(30, [60, 41, 10]), 40);
  assert.equal(equalPart(0, []), 0);
});

const seeds = process.env.CAPSULE_TEST_SEED === undefined ? [1, 2] : [Number(process.env.CAPSULE_TEST_SEED)];

for (const first of seeds)
  test(`whatever the others do, no owner may pause less than before (seed ${first})`, () => {
    const names = ["a", "b", "c", "d"];
    let seed = first;
    const random = (below: number) => {
      seed = (seed * 48_271) % (2 ** 31 - 1);
      return seed % below;
    };
    for (let round = 0; round < 30; round++) {
      const owners = new Owners(random(2 * reserveMib), ...names);
      const paused = new Map<string, string>();
      for (let step = 0; step < 40; step++) {
        const owner = names[random(3)]!; // never d
        const before = names.filter((each) => each !== owner).map((each) => [each, owners.allowedMib(each)] as const);
        const [mine] = [...paused].find(([, each]) => each === owner) ?? [];
        const isBelow = owners.disk.freeBytes <= (slackMib + reserveMib) * mib;
        if (mine !== undefined && random(3) === 0) {
          owners.remove(mine);
          paused.delete(mine);
        } else {
          const needMib = random(owners.allowedMib(owner) + 1);
          if (!isBelow && needMib > 0) continue;
          owners.pause(owner, `cl-${step}`, needMib, random(needMib + 1));
          paused.set(`cl-${step}`, owner);
        }
        for (const [each, mibBefore] of before) {
          assert.ok(
            owners.allowedMib(each) >= mibBefore,
            `${each}: ${owners.allowedMib(each)} instead of ${mibBefore}`,
          );
        }
      }
    }
  });
