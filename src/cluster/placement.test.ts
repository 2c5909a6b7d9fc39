/** Which host a new capsule is made on, by what the hosts say of themselves. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { HostRow } from "./membership.ts";
import { Placement } from "./placement.ts";

const gib = 1_024;

class FakeHosts {
  readonly me = { name: "me", epoch: 1, nonce: "" };
  readonly rows = new Map<string, HostRow & { isExpired: boolean; ageSec: number }>();
  readonly templates = new Map<string, string>();
  ownMb = 8 * gib;
  isExpired = false;
  lookups = 0;
  /** By PostgreSQL. */
  readonly found = new Map<string, string>();

  constructor(others: Record<string, object> = {}) {
    this.add("me");
    for (const [name, of] of Object.entries(others)) this.add(name, of);
  }

  add(name: string, load: object = {}): void {
    const all = { free_mb: 8 * gib, images: ["minimal"], vcpus_max: 4, memory_max_mb: 8 * gib, ...load };
    this.rows.set(name, {
      ...{ name, epoch: 1, state: "up", heartbeat: 1, address: "", port: 1, version: "", load: all },
      ...{ isExpired: false, ageSec: 0 },
    });
  }

  hosts() {
    return [...this.rows.values()];
  }

  alive(name: string) {
    const row = this.rows.get(name);
    return row?.isExpired === false ? row : undefined;
  }

  placement(random = 0, fetches = false): Placement {
    const known = (_team: string, name: string) => this.templates.get(name);
    const find = async (_team: string, name: string) => {
      this.lookups += 1;
      const host = this.found.get(name);
      return host === undefined ? undefined : { storage: "", host };
    };
    const room = () => ({ free_mb: this.ownMb, images: ["minimal"], vcpus_max: 4, memory_max_mb: 8 * gib });
    return new Placement({
      ...{ membership: this, templates: { known, find }, fetches, random: () => random },
      room: () => ({ ...room(), fetches }),
    });
  }
}

const wanted = { teamId: "team", template: "minimal", vcpus: 1, memoryMb: 512 };

test("a built-in image is used here, unless another host has clearly more memory free", async () => {
  const others = { near: { free_mb: 10 * gib }, full: { free_mb: 0 } };
  assert.deepEqual(await new FakeHosts(others).placement().hostsFor(wanted), [null, "near"]);
  const emptier = new FakeHosts({ ...others, empty: { free_mb: 11 * gib } });
  assert.deepEqual(await emptier.placement().hostsFor(wanted), ["empty", "near", null]);
  emptier.ownMb = 10;
  assert.deepEqual(await emptier.placement().hostsFor(wanted), ["empty", "near"]);
  assert.equal(emptier.lookups, 0);
});

test("where no host has memory free, this one is asked, and two others", async () => {
  const none = { free_mb: 0 };
  const hosts = new FakeHosts({ b: none, c: none, d: none });
  hosts.ownMb = 0;
  const asked = await hosts.placement().hostsFor(wanted);
  assert.equal(asked[0], null);
  assert.equal(new Set(asked).size, 3);
});

test("three of the other hosts are compared, and those differ", async () => {
  const big = { free_mb: 100 * gib };
  const hosts = new FakeHosts({ b: big, c: big, d: big, e: big, f: big });
  const first = new Set<string | null>();
  for (const random of [0, 0.3, 0.6, 0.99]) {
    const asked = await hosts.placement(random).hostsFor(wanted);
    assert.equal(asked.length, 3);
    for (const host of asked) first.add(host);
  }
  assert.ok(first.size > 3, [...first].join());
});

test("a host that is expired, drained, too small, of another release or without the image is not asked", async () => {
  const hosts = new FakeHosts({
    ...{ small: { vcpus_max: 1 }, little: { memory_max_mb: 512 }, bare: { images: [] }, away: {}, drained: {} },
  });
  Object.assign(hosts.rows.get("away")!, { isExpired: true });
  Object.assign(hosts.rows.get("drained")!, { state: "draining" });
  hosts.add("old", { free_mb: "a lot", images: "minimal", vcpus_max: null, memory_max_mb: undefined });
  hosts.ownMb = 0;
  assert.deepEqual(await hosts.placement().hostsFor({ ...wanted, vcpus: 2, memoryMb: 1_024 }), [null]);
  Object.assign(hosts.rows.get("drained")!.load, { vcpus_max: 8 });
  const large = hosts.placement().hostsFor({ ...wanted, vcpus: 5 });
  await assert.rejects(large, { code: "no_capacity", message: /no host that is up can have one of 5 vCPUs/ });
  assert.deepEqual(await hosts.placement().hostsFor({ ...wanted, vcpus: 9 }), [null], "this host refuses the size");
  assert.deepEqual(await hosts.placement().hostsFor({ ...wanted, memoryMb: 9 * gib }), [null]);
  Object.assign(hosts.rows.get("me")!, { state: "draining" });
  assert.deepEqual((await hosts.placement().hostsFor(wanted)).toSorted(), ["little", "small"]);
});

test("what was sent to a host counts until its next heartbeat but one", async () => {
  const hosts = new FakeHosts({ b: { free_mb: 8 * gib * 1.25 + 512 + 130 } });
  const placement = hosts.placement();
  const first = async () => (await placement.hostsFor(wanted))[0];
  const made: (string | null | undefined)[] = [];
  for (let each = 0; each < 5; each++) {
    const host = await first();
    made.push(host);
    placement.sent(host!);
  }
  assert.deepEqual(made, ["b", "b", "b", null, "b"]);
  hosts.rows.get("b")!.heartbeat += 1;
  assert.equal(await first(), null);
  hosts.rows.get("b")!.heartbeat += 1;
  assert.equal(await first(), "b");
});

test("what was sent and made no capsule is taken back once, and so many as fit are counted", async () => {
  const hosts = new FakeHosts({ b: { free_mb: 100 * gib } });
  const placement = hosts.placement();
  const first = async () => (await placement.hostsFor(wanted))[0];
  const takeBack: (() => void)[] = [];
  for (let each = 0; each < 5_000; each++) takeBack.push(placement.sent("b"));
  assert.equal(await first(), "b", "36 GiB are left");
  for (const each of takeBack) each();
  Object.assign(hosts.rows.get("b")!, { load: { ...hosts.rows.get("b")!.load, free_mb: 12 * gib } });
  const again = Array.from({ length: 40 }, () => placement.sent("b"));
  assert.equal(await first(), null);
  for (const each of [...again, ...again]) each();
  placement.sent("b");
  assert.equal(await first(), "b");
});

test("a template is used where its files are, and 503 names a host that cannot be reached", async () => {
  const hosts = new FakeHosts({ b: { free_mb: 0 } });
  hosts.templates.set("tools", "b").set("own", "me");
  assert.deepEqual(await hosts.placement().hostsFor({ ...wanted, template: "tools" }), ["b"]);
  assert.deepEqual(await hosts.placement().hostsFor({ ...wanted, template: "own" }), [null]);
  Object.assign(hosts.rows.get("b")!, { isExpired: true });
  const away = hosts.placement().hostsFor({ ...wanted, template: "tools" });
  await assert.rejects(away, { code: "unavailable", details: { host: "b" }, message: /template tools is on host b/ });
});

test("with a bucket the host that has a template is asked first, and then those that can fetch it", async () => {
  const can = { fetches: true };
  const hosts = new FakeHosts({
    has: { ...can, free_mb: 0 },
    big: { ...can, free_mb: 20 * gib },
    old: { free_mb: 99 * gib },
  });
  hosts.templates.set("tools", "has");
  const asked = () => hosts.placement(0, true).hostsFor({ ...wanted, template: "tools", vcpus: 99 });
  assert.deepEqual(await asked(), ["has", "big", null]);
  hosts.rows.get("has")!.isExpired = true;
  assert.deepEqual(await asked(), ["big", null], "it is not waited for");
  hosts.templates.set("tools", "me");
  assert.deepEqual(await asked(), [null, "big"]);
  hosts.templates.set("tools", "old");
  assert.deepEqual(await asked(), ["old", "big", null], "it cannot fetch, and need not");
});

test("an unknown template is looked up once, and refused here", async () => {
  const hosts = new FakeHosts({ b: { images: ["minimal", "python"] } });
  assert.deepEqual(await hosts.placement().hostsFor({ ...wanted, template: "nothing" }), [null]);
  assert.equal(hosts.lookups, 1);
  assert.deepEqual(await hosts.placement().hostsFor({ ...wanted, template: "python" }), ["b"]);
  hosts.isExpired = true;
  assert.deepEqual(await hosts.placement().hostsFor({ ...wanted, template: "python" }), [null]);
});

test("a template whose host refuses is looked for once more, where no host fetches it", async () => {
  const hosts = new FakeHosts({ a: { images: ["minimal", "python"] }, b: {} });
  hosts.templates.set("tools", "a");
  const others = (template: string, asked: (string | null)[], fetches = false) =>
    hosts.placement(0, fetches).othersFor({ ...wanted, template }, asked);
  assert.deepEqual(await others("tools", ["a"]), [], "it was deleted");
  hosts.found.set("tools", "a");
  assert.deepEqual(await others("tools", ["a"]), []);
  hosts.found.set("tools", "b");
  assert.deepEqual(await others("tools", ["a"]), ["b"]);
  hosts.found.set("tools", "me");
  assert.deepEqual(await others("tools", ["a"]), [null]);
  assert.deepEqual(await others("tools", [null]), []);
  assert.equal(hosts.lookups, 5);
  hosts.found.set("python", "b");
  assert.deepEqual(await others("python", ["a"]), [], "an image");
  assert.deepEqual(await others("tools", ["a"], true), [], "each host fetches the new one");
  hosts.isExpired = true;
  assert.deepEqual(await others("tools", ["a"]), []);
  assert.equal(hosts.lookups, 5);
  hosts.isExpired = false;
  hosts.found.set("tools", "b");
  hosts.rows.get("b")!.isExpired = true;
  await assert.rejects(others("tools", ["a"]), { code: "unavailable", details: { host: "b" } });
});
