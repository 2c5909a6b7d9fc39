/** Requests that wait for another host, and which of them are given up. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Exchange } from "../forwarding.ts";
import { PendingRequests } from "./pending-requests.ts";

class World {
  now = 0;
  isUp = true;
  isAbsent = false;
  isReached = true;
  probes = 0;
  readonly given: string[] = [];
  readonly pending: PendingRequests;

  constructor() {
    const probe = async () => {
      this.probes++;
      return this.isReached;
    };
    const links = { isUp: () => this.isUp, isAbsent: () => this.isAbsent, probe };
    this.pending = new PendingRequests(links, () => this.now);
  }

  add(name: string): () => void {
    const attempt = { giveUp: () => void this.given.push(name), stop() {} };
    return this.pending.add("b", attempt, {} as Exchange);
  }

  /** A check each second, as the timer makes them. */
  async pass(seconds: number): Promise<void> {
    for (let passed = 0; passed < seconds; passed++) {
      this.now += 1_000;
      this.pending.check();
      await new Promise((resolve) => setImmediate(resolve));
    }
  }

  [Symbol.dispose](): void {
    this.pending.close();
  }
}

test("a host that is up and takes connections is asked for one each 5 s, and a request waits as long as it takes", async () => {
  using world = new World();
  world.add("long");
  await world.pass(4);
  assert.equal(world.probes, 0, "most requests are answered before");
  await world.pass(600);
  assert.deepEqual([world.given, world.probes], [[], 120]);
});

test("a host that is up and takes no connection for 12 s has lost the requests from before", async () => {
  using world = new World();
  const end = world.add("answered");
  world.add("lost");
  await world.pass(10);
  world.isReached = false;
  await world.pass(11);
  end();
  world.add("later");
  await world.pass(5);
  assert.deepEqual(world.given, []);
  await world.pass(1);
  assert.deepEqual(world.given, ["lost"]);
});

test("a host that stops takes no connection, and answers what it has taken as long as it is up", async () => {
  using world = new World();
  world.add("long");
  await world.pass(10);
  world.isAbsent = true;
  world.isReached = false;
  await world.pass(60);
  assert.deepEqual(world.given, []);
  world.isUp = false;
  world.isAbsent = false;
  await world.pass(1);
  assert.deepEqual(world.given, ["long"]);
});

test("a connection that is made in time begins the 12 s anew", async () => {
  using world = new World();
  world.add("long");
  for (let times = 0; times < 5; times++) {
    world.isReached = false;
    await world.pass(11);
    world.isReached = true;
    await world.pass(1);
  }
  assert.deepEqual(world.given, []);
});

test("an expired host that takes no connection has lost all of its requests at once", async () => {
  using world = new World();
  world.add("first");
  world.isUp = false;
  await world.pass(3);
  assert.deepEqual(world.given, []);
  world.isReached = false;
  world.add("second");
  await world.pass(1);
  assert.deepEqual(world.given, ["first", "second"]);
});
