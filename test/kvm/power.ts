/**
 * Reboots, and power cuts at random moments: QEMU's process is killed while clients are at work. The loss
 * is everything not flushed: the pages in the guest's memory, and the disks' new clusters that only QEMU's cache can find.
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import type { Client } from "../client.ts";
import { Random } from "../conformance/random.ts";
import { isLong, notInSmoke } from "./kvm-form.ts";
import { KvmPlayer } from "./kvm-player.ts";
import type { KvmWorld } from "./kvm-world.ts";

/** power-cuts.test.ts makes many. */
const powerCuts = isLong ? 3 : 1;
/** How many acknowledged steps come before a cut at least and at most, and how long after the last of them it comes. */
const fewestSteps = 4;
const mostSteps = 16;
const longestDelayMs = 1_000;

export function power(world: () => KvmWorld): void {
  test("after a reboot the service is up, paused capsules are as they were, and running ones have failed", {
    skip: notInSmoke,
  }, async () => {
    const paused = await world().client.capsule();
    await paused.sh("echo kept > /dev/shm/kept");
    await paused.pause();
    const running = await world().client.capsule();
    await world().machine.reboot();
    await world().served();
    const { status, error_reason } = await world().client.known(running.id).view();
    assert.equal(status, "error");
    assert.match(error_reason, /\w/);
    const same = world().client.known(paused.id);
    await same.resume();
    assert.equal(await same.sh("cat /dev/shm/kept"), "kept");
    await same.destroy();
    await world().client.known(running.id).destroy();
  });

  test(`${powerCuts} power cuts at random moments: nothing acknowledged is lost`, { timeout: 3_600_000 }, async (t) => {
    const random = new Random(t);
    const players = playersOf(random);
    for (let cut = 0; cut < powerCuts; cut++) {
      const steps = await cutPower(world(), players, random);
      t.diagnostic(`cut after ${steps} acknowledged steps`);
      await world().machine.start();
      await world().served();
      await assertKept(world().client, players);
      const failed = await world().sh("systemctl is-system-running --wait || systemctl --failed --no-legend");
      assert.equal(failed, "running", `after cut ${cut}`);
    }
  });
}

export function playersOf(random: Random): KvmPlayer[] {
  return Array.from({ length: 2 }, (_, index) => new KvmPlayer(`p${index}`, new Random(random.below(2 ** 31))));
}

/** Cuts the power while clients work, at any instant; resolves with how many steps were acknowledged. */
export async function cutPower(
  { client, machine }: KvmWorld,
  players: readonly KvmPlayer[],
  random: Random,
  fewest = fewestSteps,
): Promise<number> {
  let hasPower = true;
  let left = fewest + random.below(mostSteps - fewest + 1);
  const { promise: isTime, resolve } = Promise.withResolvers<void>();
  const playing = players.map((player) =>
    player.play(
      client,
      () => hasPower,
      () => left-- > 1 || resolve(),
    ),
  );
  const ended = Promise.all(playing);
  await Promise.race([isTime, ended]);
  await delay(random.below(longestDelayMs));
  hasPower = false;
  await machine.cut();
  return (await ended).reduce((sum, count) => sum + count, 0);
}

/** Holds the service to all that it had acknowledged, and removes what was made for requests whose answers were cut off. */
export async function assertKept(client: Client, players: readonly KvmPlayer[]): Promise<void> {
  for (const player of players) await player.assertKept(client);
  const ids = new Set(players.flatMap((player) => player.ids));
  const { json: views } = await client.expect(200, "GET", "/v1/capsules");
  for (const { id } of views) if (!ids.has(id)) await client.expect(204, "DELETE", `/v1/capsules/${id}`);
  const { json: templates } = await client.expect(200, "GET", "/v1/snapshots?type=snapshot");
  for (const { name } of templates) await client.expect(204, "DELETE", `/v1/snapshots/${name}`);
}
