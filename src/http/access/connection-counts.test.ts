/** Which connections are accepted, by address alone: no sockets. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { ConnectionCounts, type Counted } from "./connection-counts.ts";

class FakeConnection implements Counted {
  readonly address: string;
  isBusy = false;
  isClosed = false;

  constructor(address: string) {
    this.address = address;
  }

  isIdle(): boolean {
    return !this.isBusy;
  }

  close(): void {
    this.isClosed = true;
  }
}

const max = 10;

function counted({ perSec = 1_000_000, keylessMin = 0 } = {}) {
  const clock = { now: 0 };
  const counts = new ConnectionCounts({ max, perSec, keylessMin, now: () => clock.now });
  const enter = (address: string, isNearlyFull = false) => {
    const connection = new FakeConnection(address);
    clock.now += 1;
    return counts.enter(connection, { isNearlyFull }) ? connection : undefined;
  };
  /** Fails when the connection is refused. */
  const open = (address: string): FakeConnection => {
    const connection = enter(address);
    assert.ok(connection, address);
    return connection;
  };
  return { clock, counts, enter, open };
}

/** `count` addresses that share the larger network and no smaller one. */
const inside: Record<string, (index: number) => string> = {
  "/56": (index) => `2001:db8:1:${(0x200 + index).toString(16)}::1`,
  "/48": (index) => `2001:db8:1:${(index * 0x100).toString(16)}::1`,
  "/24": (index) => `192.0.2.${index}`,
  "/16": (index) => `192.0.${index}.1`,
  "/24 of a mapped address": (index) => `::ffff:192.0.2.${index}`,
};
const outside: Record<string, string> = { "/56": "2001:db8:1:300::1", "/24": "192.0.3.1" };

for (const [network, addressOf] of Object.entries(inside)) {
  const times = network === "/48" || network === "/16" ? 4 : 2;

  test(`connections without a valid key of one ${network} are ${times} times those of an address; one that is idle makes room`, () => {
    const { open, counts } = counted();
    const all = Array.from({ length: times * max }, (_, index) => open(addressOf(index)));
    assert.equal(all.filter(({ isClosed }) => isClosed).length, 0);
    const [first, second, third] = all as [FakeConnection, FakeConnection, FakeConnection];
    first.isBusy = true;
    counts.used(second);
    open(addressOf(100));
    assert.deepEqual(
      all.filter(({ isClosed }) => isClosed),
      [third],
      "idle for the longest time",
    );
  });

  test(`where all of a ${network} are busy, the oldest makes room; none does for a connection of another network`, () => {
    const { open, counts } = counted();
    const all = Array.from({ length: times * max }, (_, index) => open(addressOf(index)));
    for (const connection of all) connection.isBusy = true;
    const [first, second, third] = all as [FakeConnection, FakeConnection, FakeConnection];
    const isClosed = () => [first, second, third].map((connection) => connection.isClosed);
    if (outside[network] !== undefined) open(outside[network]);
    counts.authenticated(first, "red");
    open(addressOf(100)).isBusy = true;
    assert.deepEqual(isClosed(), [false, false, false], "one has shown a valid key");
    open(addressOf(101)).isBusy = true;
    assert.deepEqual(isClosed(), [false, true, false]);
    counts.leave(third);
    open(addressOf(102));
    assert.equal(all.filter((connection) => connection.isClosed).length, 1, "one has left");
  });
}

test("the bound of an address counts its connections with a valid key too, and none makes room", () => {
  const { open, enter, counts } = counted();
  const all = Array.from({ length: max }, (_, index) => open(`2001:db8::${index}`));
  for (const connection of all) counts.authenticated(connection, "red");
  assert.equal(enter("2001:db8::ffff"), undefined);
  assert.equal(all.filter(({ isClosed }) => isClosed).length, 0);
  open("2001:db8:0:1::1");
  counts.leave(all[0]!);
  open("2001:db8::ffff");
});

test("new connections have a rate; a valid key gives its connection's part back", () => {
  const { clock, open, enter, counts } = counted({ perSec: 2 });
  const come = (address: string) => {
    const connection = enter(address);
    if (connection !== undefined) counts.leave(connection);
    return connection !== undefined;
  };
  for (let i = 0; i < max; i++) assert.ok(come("192.0.2.1"), "at once as many as may be open");
  assert.ok(!come("192.0.2.1"));
  assert.ok(come("192.0.2.2"), "addresses of a larger IPv4 network share none");
  clock.now += 500;
  assert.ok(come("192.0.2.1"));
  assert.ok(!come("192.0.2.1"));
  for (let i = 0; i < 100 * max; i++) {
    const connection = open("198.51.100.1");
    counts.authenticated(connection, "red");
    counts.leave(connection);
  }
});

test("the networks of an IPv6 site share a rate", () => {
  const { enter, counts } = counted({ perSec: 2 });
  const accepted = (addressOf: (index: number) => string) => {
    let count = 0;
    for (let index = 0; index < 100; index++) {
      const connection = enter(addressOf(index));
      if (connection === undefined) continue;
      count++;
      counts.leave(connection);
    }
    return count;
  };
  assert.equal(accepted(inside["/56"]!), 2 * max);
  assert.equal(
    accepted((index) => `2001:db8:2:${(index * 0x100).toString(16)}::1`),
    4 * max,
  );
});

test("a nearly full server closes the one without a valid key that is idle for the longest time, and never the new one", () => {
  const { open, enter, counts } = counted();
  const [known, busy, idle, used] = ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1"].map(open);
  counts.authenticated(known!, "red");
  busy!.isBusy = true;
  counts.used(idle!);
  const isClosed = () => [known, busy, idle, used].map((connection) => connection?.isClosed);
  assert.ok(enter("192.0.2.2", true));
  assert.deepEqual(isClosed(), [false, false, false, true]);
  counts.makeRoom();
  assert.deepEqual(isClosed(), [false, false, true, true]);
  counts.makeRoom();
  counts.makeRoom();
  assert.deepEqual(isClosed(), [false, true, true, true], "the busy one, and then the one that came last");
  const alone = counted();
  assert.equal(alone.enter("192.0.2.1", true)?.isClosed, false);
});

test("of a nearly full server neither a team nor clients without a key take the places in which another team shows its key", () => {
  const [openMax, keylessMin] = [400, 40];
  const { open, counts } = counted({ keylessMin });
  let all: FakeConnection[] = [];
  let openMost = 0;
  const come = (address: string) => {
    if (all.length >= openMax - keylessMin) counts.makeRoom();
    const connection = open(address);
    all = [...all.filter(({ isClosed }) => !isClosed), connection];
    openMost = Math.max(openMost, all.length);
    return connection;
  };
  let notServed = 0;
  for (let index = 0; index < 100; index++) {
    counts.authenticated(come(`192.${index}.1.1`), index % 3 === 0 ? "green" : "red");
    const blue = come(`10.${index}.1.1`);
    for (let other = 0; other < keylessMin / 2; other++) {
      counts.authenticated(come(`172.${index}.${other}.1`), "red");
    }
    for (let other = 0; other < keylessMin / 4; other++) come(`203.${index}.${other}.1`);
    if (blue.isClosed) notServed++;
    counts.authenticated(blue, "blue");
    counts.leave(blue);
    blue.close();
  }
  assert.equal(notServed, 0);
  assert.ok(openMost <= openMax, `${openMost}`);
});

test("of connections with a key, the one of the largest team that was used least recently makes room", () => {
  const { open, counts } = counted({ keylessMin: 1 });
  const red = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(open);
  const blue = open("198.51.100.1");
  const keyless = open("203.0.113.1");
  counts.authenticated(blue, "blue");
  for (const connection of red) counts.authenticated(connection, "red");
  counts.used(red[0]!);
  red[1]!.isBusy = true;
  counts.makeRoom();
  assert.deepEqual(
    [...red, blue, keyless].map(({ isClosed }) => isClosed),
    [false, false, true, false, false],
  );
});

test("closed connections leave nothing behind", () => {
  const { open, counts } = counted();
  const all = Object.values(inside).flatMap((addressOf) =>
    Array.from({ length: max }, (_, index) => open(addressOf(index))),
  );
  for (const [index, connection] of all.entries()) if (index % 3 === 0) counts.authenticated(connection, "red");
  counts.makeRoom();
  assert.ok(counts.size > 0);
  for (const connection of all) counts.leave(connection);
  assert.equal(counts.size, 0);
});
