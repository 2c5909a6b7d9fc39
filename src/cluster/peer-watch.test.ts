/** Hosts as another one counts them. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { FakeClock } from "../../test/fakes/fake-clock.ts";
import type { Membership } from "./membership.ts";
import { PeerWatch } from "./peer-watch.ts";

const me = { name: "a", epoch: 1, nonce: "nonce-a" };
const row = { epoch: 1, heartbeat: 1, address: "127.0.0.1", port: 1, version: "", load: {}, ageSec: 0 };
type Host = ReturnType<Membership["hosts"]>[number];
const host = (name: string, state = "up", isExpired = false): Host => ({ ...row, name, state, isExpired });

function watched(hosts: Host[]) {
  const clock = new FakeClock();
  const [asked, silent] = [[] as string[], new Set<string>()];
  const answers = async (name: string) => {
    asked.push(name);
    return !silent.has(name);
  };
  const watch = new PeerWatch({ membership: { me, hosts: () => hosts }, answers, clock });
  const round = async () => {
    asked.length = 0;
    clock.advance(15_000);
    await watch.settled();
    return asked.toSorted();
  };
  return { watch, silent, round };
}

test("each other host counts once: up, out of reach, expired or drained, and a host that is gone does not", async () => {
  const hosts = [host("a"), host("b"), host("c"), host("d", "up", true), host("e", "drained", true)];
  const { watch, silent, round } = watched([...hosts, host("f", "gone", true), host("g", "draining")]);
  assert.deepEqual(watch.counts(), { up: 3, unreachable: 0, expired: 1, drained: 1 });
  watch.start();
  silent.add("b").add("g");
  assert.deepEqual(await round(), ["b", "c", "g"], "those of which a heartbeat was seen");
  assert.deepEqual(watch.counts(), { up: 1, unreachable: 2, expired: 1, drained: 1 });
  silent.clear();
  await round();
  assert.deepEqual(watch.counts(), { up: 3, unreachable: 0, expired: 1, drained: 1 });
  await watch.stop();
  assert.deepEqual(await round(), []);
});

test("a cluster of many hosts is asked to the last one", async () => {
  const names = Array.from({ length: 40 }, (_, index) => `h${index}`);
  const { watch, silent, round } = watched(names.map((name) => host(name)));
  silent.add("h39");
  watch.start();
  assert.equal((await round()).length, 40);
  assert.deepEqual(watch.counts(), { up: 39, unreachable: 1, expired: 0, drained: 0 });
  await watch.stop();
});
